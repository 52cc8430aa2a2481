"""What peers say to each other, and how each knows who has said it: secrets, signatures and addresses."""

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import msgspec

from forenotice import secretfiles
from forenotice.agent import config
from forenotice.agent.handlers import tables
from forenotice.agent.listener import Reply, Request
from forenotice.client.events import same_name
from forenotice.client.http import Response
from forenotice.core import errors

HEADER = "X-Forenotice-Signature"
WINDOW = timedelta(seconds=60)
"""How far the clocks of two VMs, and a message's way, may be apart."""
SHORTEST_SECRET = 16

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Value = TypeVar("Value")


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    event_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    resources: tuple[str, ...]
    ready_at: Moment | None
    """None: the sender is not ready, whatever it said before."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    sender: Annotated[str, msgspec.Meta(min_length=1)]
    """The VM that this is about, and the only one that may say it; as Resources spell it."""
    receiver: str
    said_at: Moment
    """By the sender's clock: what it says later counts, in whichever order it arrives."""
    readiness: Readiness | None
    """None: it only asks whether it is heard."""


class Signer:
    """Signs for one sender and one receiver: what was signed for others does not hold.

    Who has a secret can sign for everybody who shares it; `Addresses` say more about who it was.
    """

    def __init__(self, secret: bytes, own: Mapping[str, bytes] | None = None) -> None:
        """`own` are secrets that are shared with one VM only, by its name."""
        self._secret = secret
        self._own = own or {}

    @classmethod
    def read(cls, config: config.Peers) -> "Signer":
        """ConfigError: a secret is not usable."""
        own = {name: _secret(path) for name, path in config.secret_files.items()}
        return cls(_secret(config.secret_file), own)

    def sign(self, message: Message, body: bytes) -> str:
        """Of a message that is to be sent as this body."""
        return self._mark(message.receiver, message.sender, message.receiver, b"POST", config.READY_PATH.encode(), body)

    def holds(self, request: Request, message: Message) -> bool:
        """Whether its sender may have sent it, to this receiver."""
        given = request.headers.get(HEADER.lower(), "")
        parts = (request.method.encode(), request.path.encode(), request.body)
        return _same(given, self._mark(message.sender, message.sender, message.receiver, *parts))

    def sign_reply(self, reply: Reply, message: Message, request: Request) -> Reply:
        """The same, signed as the answer to just this request."""
        asked = request.headers.get(HEADER.lower(), "")
        mark = self._mark(message.sender, message.receiver, message.sender, *_answer(asked, reply.status, reply.body))
        return Reply(status=reply.status, kind=reply.kind, headers={HEADER: mark}, body=reply.body)

    def reply_holds(self, answer: Response, message: Message, asked: str) -> bool:
        """Whether the receiver itself has answered just this request, which was signed so."""
        given = answer.headers.get(HEADER.lower(), "")
        parts = _answer(asked, answer.status, answer.body)
        return _same(given, self._mark(message.receiver, message.receiver, message.sender, *parts))

    def _mark(self, other: str, sender: str, receiver: str, *parts: bytes) -> str:
        names = msgspec.json.encode([sender.removeprefix("_").lower(), receiver.removeprefix("_").lower()])
        secret = _of(self._own, other) or self._secret
        key = hmac.digest(secret, b"forenotice peers " + names, "sha256")
        return "v2=" + hmac.digest(key, b"\n".join(parts), "sha256").hex()


class Addresses:
    """Where peers are to be told things, and from where they may say some."""

    def __init__(self, config: config.Peers) -> None:
        self._places = {name: tables.peer(address) for name, address in config.addresses.items()}
        self._port = config.port

    def of(self, name: str) -> tuple[str, int]:
        return _of(self._places, name) or (name.removeprefix("_"), self._port)

    def source(self, me: str, listen: str) -> str:
        """Which address others know this VM by: as given for it, else where it listens; empty if that is not known."""
        place = _of(self._places, me) or (urlsplit(f"//{listen}").hostname or "", 0)
        try:
            found = ipaddress.ip_address(place[0])
        except ValueError:
            return ""
        return "" if found.is_unspecified else str(found)

    def flaw(self, name: str, source: str) -> str:
        """Why this VM is not believed to speak from there; empty when it is, or when its address was not given."""
        place = _of(self._places, name)
        if place is None:
            return ""
        try:
            known = {_plain(str(found[4][0])) for found in socket.getaddrinfo(place[0], None, type=socket.SOCK_STREAM)}
        except (OSError, ValueError):
            return f"{place[0]}, the address of {name} in [peers], is not known here"
        if _plain(source) in known:
            return ""
        return f"this came from {_plain(source)}, and [peers] has {place[0]} for {name}"


def _secret(path: str) -> bytes:
    try:
        secret = secretfiles.read(Path(path), "the peers' secret").strip()
    except errors.RefusedError as error:
        raise config.ConfigError(error.message) from None
    if len(secret) < SHORTEST_SECRET:
        raise config.ConfigError(f"the peers' secret {path} is too short: give {SHORTEST_SECRET} bytes")
    return secret


def _of(known: Mapping[str, Value], name: str) -> Value | None:
    return next((value for other, value in known.items() if same_name(other, name)), None)


def _answer(asked: str, status: int, body: bytes) -> tuple[bytes, ...]:
    return b"answer", asked.encode(), str(status).encode(), body


def _same(given: str, mark: str) -> bool:
    return given.isascii() and hmac.compare_digest(given, mark)


def _plain(address: str) -> str:
    """Without the zone of a link, and IPv4 as itself where a listener for both shows it as IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(found, "ipv4_mapped", None) or found)
