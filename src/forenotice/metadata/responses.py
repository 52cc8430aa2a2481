"""Responses as bytes: all that follows the status line and the Date is made once, those once a second."""

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from http import HTTPStatus

from forenotice.core.documents import Document
from forenotice.wire import dates, errors
from forenotice.wire import document as wire_document

JSON = b"Content-Type: application/json; charset=utf-8\r\n"
TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
TOO_LARGE = "Request header fields too large. Send at most 16 KiB of headers, 100 of them"
MALFORMED = "Bad request. This is not well-formed HTTP/1.1"

REFUSALS = {400: "Bad request.", 403: "Forbidden.", 404: "Not found."}
STATUSES = (200, 304, 400, 403, 404, 405, 429, 431, 503)


class Persistence(IntEnum):
    """What the Connection header says."""

    STAYS = 0
    CLOSES = 1
    STAYS_SAID = 2
    """HTTP/1.0 closes unless the header says otherwise."""


CONNECTION = (b"", b"Connection: close\r\n", b"Connection: keep-alive\r\n")


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    rest: bytes
    """Everything after the status line, Date and Connection."""


def with_body(status: int, body: bytes, headers: bytes = JSON) -> Response:
    return Response(status, b"%bContent-Length: %d\r\n\r\n%b" % (headers, len(body), body))


def error(status: int, message: str, headers: bytes = b"") -> Response:
    return with_body(status, errors.body(message), JSON + headers)


def refusal(status: int, message: str) -> Response:
    """A message of the service or of `wire`, as a sentence of its own."""
    return error(status, f"{REFUSALS[status]} {message[:1].upper()}{message[1:]}")


def retry(status: int, message: str, seconds: int) -> Response:
    return error(status, message, b"Retry-After: %d\r\n" % seconds)


def validators(document: Document) -> bytes:
    """The headers by which a guest compares this document with another."""
    etag = wire_document.etag(document).encode()
    return b"ETag: %b\r\nForenotice-Epoch: %b\r\n" % (etag, document.tag.encode())


def not_modified(document: Document) -> Response:
    return Response(304, validators(document) + b"\r\n")


APPROVED = with_body(200, b"", b"")
UNKNOWN_CALLER = error(404, errors.UNKNOWN_CALLER)
UNAVAILABLE = retry(503, errors.UNAVAILABLE, 5)
FULL = retry(503, "Service unavailable. Too many connections: try again later", 5)
BAD_FRAMING = error(400, MALFORMED)
HEAD_TOO_LARGE = error(431, TOO_LARGE)


class StatusLines:
    """Status line, Date and Connection of every status."""

    __slots__ = ("_by_status", "not_modified", "ok")

    def __init__(self, now: datetime) -> None:
        self.renew(now)

    def renew(self, now: datetime, headers: bytes = b"") -> None:
        date = f"Date: {dates.http(now)}\r\n".encode() + headers
        self._by_status = {
            status: tuple(
                b"HTTP/1.1 %d %b\r\n%b%b" % (status, HTTPStatus(status).phrase.encode(), date, connection)
                for connection in CONNECTION
            )
            for status in STATUSES
        }
        self.ok = self._by_status[200]
        self.not_modified = self._by_status[304]

    def compose(self, response: Response, persistence: Persistence, *, head_only: bool = False) -> bytes:
        rest = response.rest
        if head_only:
            rest = rest[: rest.index(b"\r\n\r\n") + 4]
        return self._by_status[response.status][persistence] + rest
