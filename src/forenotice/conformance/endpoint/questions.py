"""Requests as they go over the wire, also those that no ordinary client would send."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

PATH = "/metadata/scheduledevents"


class Framing(StrEnum):
    """How the end of the body is told, and whether it waits to be asked for."""

    LENGTH = "length"
    CHUNKED = "chunked"
    EXPECT = "expect"


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
    protocol: str = "HTTP/1.1"
    absolute: bool = False

    def having(self, **headers: str) -> "Question":
        """With more headers; an underscore stands for a hyphen."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **more})

    def head(self, authority: str) -> bytes:
        origin = f"http://{authority}" if self.absolute else ""
        target = f"{origin}{self.path}?{self.query}" if self.query else f"{origin}{self.path}"
        fields = {"Host": authority, "Connection": "close", **self.headers}
        if not fields["Host"]:
            del fields["Host"]
        if self.body is not None and self.framing is not Framing.CHUNKED:
            fields["Content-Length"] = str(len(self.body))
        if self.framing is Framing.CHUNKED:
            fields["Transfer-Encoding"] = "chunked"
        if self.framing is Framing.EXPECT:
            fields["Expect"] = "100-continue"
        lines = [f"{self.method} {target} {self.protocol}", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

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
