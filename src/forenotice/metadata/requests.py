"""The requests on one connection, as httptools finds them in its bytes, within limits."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import httptools

from forenotice.metadata import checks, responses
from forenotice.metadata.checks import Action, Head, Refuse
from forenotice.metadata.options import Limits
from forenotice.metadata.published import Guest
from forenotice.metadata.responses import Persistence, Response
from forenotice.wire import errors

UNKNOWN_METHOD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/1\.[01]\r\n")
"""A well-formed request line whose method the parser does not know."""

BLANK_BYTES = 64
"""Empty lines between two requests, which some clients send."""

FRAMING_HEADERS = (b"content-length", b"transfer-encoding")

BODY_TOO_LARGE = responses.error(400, "Bad request. The body is larger than 64 KiB: approve fewer events at once")
NO_HEAD = Head(method="", target=b"", headers={})
NO_HOST = responses.error(400, errors.NO_HOST)
TWO_HOSTS = responses.error(400, "Bad request. Host is given twice: give it once")
UNKNOWN_CODING = responses.error(400, "Bad request. The only transfer coding that is read here is chunked")


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One request. It is never changed once it is complete."""

    head: Head
    action: Action
    persistence: Persistence
    expects: bool = False
    """It waits for `100 Continue` before it sends its body."""
    complete: bool = False
    body: bytes = b""
    fault: Response | None = None
    """What is wrong with the body."""
    admitted: Guest | None = None
    """Who sent it, if that was checked before its turn."""
    method: str = field(init=False)
    plain_poll: checks.Poll | None = field(init=False)
    """The poll that it is, when it can be answered from memory at once."""

    def __post_init__(self) -> None:
        self.method, action = self.head.method, self.action
        self.plain_poll = action if isinstance(action, checks.Poll) and action.wait is None else None

    @classmethod
    def refused(cls, response: Response) -> "Request":
        return cls(NO_HEAD, Refuse(response=response), Persistence.CLOSES, complete=True)


class _Stop(Exception):  # noqa: N818 - it is no error: it stops the parser
    """Raised out of a callback when nothing further is to be read."""


class RequestParser:
    """Feeds httptools, and adds each request to `arrived` once its head is complete."""

    def __init__(self, limits: Limits, check: Callable[[Head], Action], arrived: list[Request]) -> None:
        self._limits = limits
        self._check = check
        self._arrived = arrived
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.between = True
        """No request is under way."""
        self.stopped = False
        """Nothing further is parsed: the last request closes the connection, or was no request."""
        self._serial = 0
        """Counts requests, to tell whether bytes still belong to the same one."""
        self._begin()

    def feed(self, data: bytes) -> None:
        if self.stopped:
            return
        fresh, known, serial = self.between, len(self._arrived), self._serial
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _Stop):
                raise
            self.stopped = True
        except httptools.HttpParserInvalidMethodError:
            other = UNKNOWN_METHOD.match(data.lstrip(b"\r\n")) if fresh and len(self._arrived) == known else None
            self._fail(self._refusal(other))
        except httptools.HttpParserError:
            # Bytes after a request that closes the connection are ignored.
            if not self.stopped:
                self._fail(responses.BAD_FRAMING)
        else:
            # Bytes are counted when they all belong to one unfinished request, or to none; of several, the last is
            # counted with what follows.
            begun = fresh and not self.between
            if self._serial == serial + begun and (fresh or not self.between):
                self._count_bytes(len(data))

    def close(self) -> None:
        """Let go of the parser, which holds on to this parser."""
        self.stopped = True
        self._parser = None

    def _parse(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
            return
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        # The parser stops after the head. We do not upgrade, so a body is read as if that had not been offered
        # (RFC 9110, 7.8); it is the last one.
        if not self.stopped:
            self._parser = self._body_parser()
            self._parse(rest)

    def _body_parser(self) -> httptools.HttpRequestParser:
        framing = [b"%b: %b\r\n" % (name, self._headers[name]) for name in FRAMING_HEADERS if name in self._headers]
        calls = SimpleNamespace(
            on_header=self.on_header, on_body=self.on_body, on_message_complete=self.on_message_complete
        )
        parser = httptools.HttpRequestParser(calls)
        parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
        return parser

    def _begin(self) -> None:
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._head_size = 0
        self._received = 0
        self._current: Request | None = None
        self._chunks: list[bytes] = []
        self._body_size = 0

    def _count_bytes(self, received: int) -> None:
        """Limit what is under way, whatever the parser has made of it so far."""
        self._received += received
        if self.between:
            if self._received > BLANK_BYTES:
                self._begin()
                self._fail(responses.BAD_FRAMING)
        elif self._current is None and self._received > self._limits.head_bytes:
            self._fail(responses.HEAD_TOO_LARGE)
        elif self._received > self._limits.framing_bytes:
            self._fail(BODY_TOO_LARGE)

    def _fail(self, response: Response) -> None:
        self.stopped = True
        if self._current is None:
            self._arrived.append(Request.refused(response))
        elif not self._current.complete:
            self._end_body(response)

    def _end_body(self, fault: Response | None = None) -> None:
        request = self._current
        assert request is not None
        request.body = b"".join(self._chunks)
        request.fault = fault
        if fault is not None:
            request.persistence = Persistence.CLOSES
        request.complete = True

    def _refusal(self, other: re.Match[bytes] | None) -> Response:
        if other is not None:
            action = self._check(Head(method="", target=other[2], headers={}))
            if isinstance(action, Refuse):
                return action.response
        return responses.BAD_FRAMING

    # What httptools calls

    def on_message_begin(self) -> None:
        self._serial += 1
        self._begin()
        self.between = False

    def on_url(self, part: bytes) -> None:
        self._target += part
        self._count_head(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._count_head(len(name) + len(value) + 4)
        # Trailers, which come after the body, are ignored.
        if self._current is None:
            key = name.lower()
            before = self._headers.get(key)
            value = value.strip(b" \t")
            self._headers[key] = value if before is None else b"%b, %b" % (before, value)

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        version = self._parser.get_http_version()
        fault = self._head_fault(version)
        if fault is not None:
            self._fail(fault)
            raise _Stop
        head = Head(method=self._parser.get_method().decode("ascii"), target=self._target, headers=self._headers)
        persistence = Persistence.CLOSES
        if self._parser.should_keep_alive() and not self._parser.should_upgrade():
            persistence = Persistence.STAYS if version == "1.1" else Persistence.STAYS_SAID
        expects = self._headers.get(b"expect", b"").lower() == b"100-continue" and self._has_body() and version == "1.1"
        self._current = Request(head, self._check(head), persistence, expects=expects)
        self._arrived.append(self._current)
        if int(self._headers.get(b"content-length", b"0")) > self._limits.body_bytes:
            self._fail(BODY_TOO_LARGE)
            raise _Stop

    def _head_fault(self, version: str) -> Response | None:
        if version not in ("1.0", "1.1"):
            return responses.BAD_FRAMING
        if version == "1.1" and b"host" not in self._headers:
            return NO_HOST
        if b"," in self._headers.get(b"host", b""):
            return TWO_HOSTS
        if self._headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            return UNKNOWN_CODING
        return None

    def _has_body(self) -> bool:
        return self._headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self._headers

    def on_body(self, part: bytes) -> None:
        self._chunks.append(part)
        self._body_size += len(part)
        if self._body_size > self._limits.body_bytes:
            self._fail(BODY_TOO_LARGE)
            raise _Stop

    def on_message_complete(self) -> None:
        assert self._parser is not None
        assert self._current is not None
        if self._parser.should_upgrade() and self._has_body():
            # Only the parser is done: the body follows.
            return
        self._end_body()
        self.between = True
        self._received = 0
        self.stopped = self._current.persistence is Persistence.CLOSES

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._limits.head_bytes or self._header_count > self._limits.headers:
            self._fail(responses.HEAD_TOO_LARGE)
            raise _Stop
