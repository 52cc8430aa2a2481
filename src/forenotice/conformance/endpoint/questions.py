"""Requests as they go over the wire, also those that no ordinary client would send."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

PATH = "/metadata/scheduledevents"
HTTP_1_1 = "HTTP/1.1"
LONGEST_BODY = 160
"""Of what a report shows, in characters."""


class Framing(StrEnum):
    """How the end of the body is told, and whether it waits to be asked for."""

    LENGTH = "length"
    CHUNKED = "chunked"
    EXPECT = "expect"


FRAMED: Mapping[Framing, Mapping[str, str]] = {
    Framing.LENGTH: {},
    Framing.CHUNKED: {"Transfer-Encoding": "chunked"},
    Framing.EXPECT: {"Expect": "100-continue"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    version: str
    """Its api-version as far as reports go; what is sent is in the query."""
    method: str = "GET"
    path: str = PATH
    query: str
    headers: Mapping[str, str] = field(default_factory=lambda: {"Metadata": "true"})
    body: bytes | None = None
    framing: Framing = Framing.LENGTH
    protocol: str = HTTP_1_1
    absolute: bool = False

    def having(self, **headers: str) -> "Question":
        """With more headers; an underscore stands for a hyphen."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **more})

    def __str__(self) -> str:
        """For a report: what makes this request what it is, and not more of its body than can be read."""
        parts = [self.method, self._target("HOST"), *([self.protocol] if self.protocol != HTTP_1_1 else [])]
        fields = {"Metadata": "", **{name.title(): value for name, value in self._fields().items()}}
        told = ", ".join(f"{name}: {value}" if value else f"no {name}" for name, value in fields.items())
        parts.append(f"[{told}]")
        if self.body is not None:
            body = self.body.decode(errors="backslashreplace")
            cut = f"{body[:LONGEST_BODY].rstrip()}... ({len(body)} bytes)"
            parts.append(cut if len(body) > LONGEST_BODY else body or "(empty body)")
        return " ".join(parts)

    def head(self, authority: str) -> bytes:
        fields = {"Host": authority, "Connection": "close", **self._fields()}
        if not fields["Host"]:
            del fields["Host"]
        if self.body is not None and self.framing is not Framing.CHUNKED:
            fields["Content-Length"] = str(len(self.body))
        lines = [f"{self.method} {self._target(authority)} {self.protocol}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _target(self, authority: str) -> str:
        origin = f"http://{authority}" if self.absolute else ""
        return f"{origin}{self.path}{'?' if self.query else ''}{self.query}"

    def _fields(self) -> Mapping[str, str]:
        return {**self.headers, **FRAMED[self.framing]}

    def tail(self) -> bytes:
        """The body, in two chunks where it comes in chunks."""
        body = self.body or b""
        if self.framing is not Framing.CHUNKED:
            return body
        half = len(body) // 2
        chunks = [part for part in (body[:half], body[half:]) if part]
        return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in chunks) + b"0\r\n\r\n"


def get(version: str) -> Question:
    return Question(version=version, query=f"api-version={version}")


def post(version: str, body: bytes) -> Question:
    return replace(get(version), method="POST", body=body)
