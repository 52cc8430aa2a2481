"""The subjects in NATS by which the service and the edge of a host reach each other, and the names of streams."""

import re
from dataclasses import dataclass

DOCS, UP = "NB_DOCS", "NB_UP"
OURS = "nb."
"""All that the service and edges send each other begins with it; replies come at other subjects."""
CONSUMER = "centre"
ALL_BEATS, ALL_QUESTIONS = "nb.beat.*", "nb.ask.*"
CENTRE_INBOX, EDGE_INBOX = "_CENTRE", "_INBOX_"
"""Prefixes of subjects for replies; an edge's has its host's token behind it."""

_ESCAPED = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPE = re.compile(rb"=([0-9A-F]{2})")


def token(host: str) -> str:
    """A host's name as one token of a subject; different names have different tokens."""
    return _ESCAPED.sub(lambda found: b"=%02X" % found[0][0], host.encode()).decode()


def host_of(subject: str) -> str:
    """The host that a subject of an edge names."""
    name = subject.split(".")[2].encode()
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), name).decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """Of one host; its edge may use these and no others."""

    docs: str
    """Its state, in a stream that keeps the last one,"""
    live: str
    """and again as soon as the stream has it."""
    approve: str
    heard: str
    beat: str
    ask: str
    inbox: str
    """The prefix of those at which its edge gets replies."""

    @classmethod
    def of(cls, host: str) -> "Subjects":
        name = token(host)
        return cls(
            docs=f"nb.docs.{name}",
            live=f"nb.live.{name}",
            approve=f"nb.up.{name}.approve",
            heard=f"nb.up.{name}.heard",
            beat=f"nb.beat.{name}",
            ask=f"nb.ask.{name}",
            inbox=f"{EDGE_INBOX}{name}",
        )
