"""Answers as bytes: what follows the status line and the Date is made once, the Date once a second."""

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
    """What is said about the connection."""

    STAYS = 0
    CLOSES = 1
    STAYS_SAID = 2
    """HTTP/1.0 closes unless it is told."""


CONNECTION = (b"", b"Connection: close\r\n", b"Connection: keep-alive\r\n")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    rest: bytes
    """Everything after the status line, Date and Connection."""


def whole(status: int, body: bytes, headers: bytes = JSON) -> Answer:
    return Answer(status, b"%bContent-Length: %d\r\n\r\n%b" % (headers, len(body), body))


def error(status: int, message: str, headers: bytes = b"") -> Answer:
    return whole(status, errors.body(message), JSON + headers)


def refusal(status: int, message: str) -> Answer:
    """What the service or the wire says of a request, as a sentence of its own."""
    return error(status, f"{REFUSALS[status]} {message[:1].upper()}{message[1:]}")


def retry(status: int, message: str, seconds: int) -> Answer:
    return error(status, message, b"Retry-After: %d\r\n" % seconds)


def known_by(document: Document) -> bytes:
    """The headers by which a guest compares this document with another."""
    etag = wire_document.etag(document).encode()
    return b"ETag: %b\r\nForenotice-Epoch: %b\r\n" % (etag, wire_document.epoch(document).encode())


def unchanged(document: Document) -> Answer:
    return Answer(304, known_by(document) + b"\r\n")


APPROVED = whole(200, b"", b"")
UNKNOWN_CALLER = error(404, errors.UNKNOWN_CALLER)
UNAVAILABLE = retry(503, errors.UNAVAILABLE, 5)
FULL = retry(503, "Service unavailable. Too many connections: try again later", 5)
BAD_FRAMING = error(400, MALFORMED)
HEAD_TOO_LARGE = error(431, TOO_LARGE)


class Letterhead:
    """Status lines with the Date."""

    __slots__ = ("_by_status", "ok", "unchanged")

    def __init__(self, now: datetime) -> None:
        self.renew(now)

    def renew(self, now: datetime) -> None:
        date = f"Date: {dates.http(now)}\r\n".encode()
        self._by_status = {
            status: tuple(
                b"HTTP/1.1 %d %b\r\n%b%b" % (status, HTTPStatus(status).phrase.encode(), date, connection)
                for connection in CONNECTION
            )
            for status in STATUSES
        }
        self.ok = self._by_status[200]
        self.unchanged = self._by_status[304]

    def compose(self, answer: Answer, persistence: Persistence, *, head_only: bool = False) -> bytes:
        rest = answer.rest
        if head_only:
            rest = rest[: rest.index(b"\r\n\r\n") + 4]
        return self._by_status[answer.status][persistence] + rest
