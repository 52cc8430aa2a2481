"""A small HTTP/1.1 server for the agent's own pages: a thread for each connection, bounded in every direction."""

import contextlib
import ipaddress
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import h11
import msgspec

from forenotice.clock import Clock, SystemClock
from forenotice.wire import dates, hosts

CHUNK = 16 * 1024
BACKLOG = 64
JOIN = 1.0
_ORIGIN = re.compile(r"https?://[^/?]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connections: int = 16
    head_bytes: int = 8 * 1024
    body_bytes: int = 16 * 1024
    """Peers send an event's Resources: a hundred names of 64 letters, a placement group's most, are 7 KiB."""
    request_seconds: float = 5.0
    """From a request's first byte until its answer is sent; what a route takes is its own affair."""
    idle_seconds: float = 60.0
    """Between two requests."""
    patience_seconds: float = 0.25
    """A connection that has kept us waiting for longer makes room for a new one when all are taken."""


USUAL = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""
    body: bytes = b""
    source: str = ""
    """The address that it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int = 200
    kind: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @classmethod
    def text(cls, text: str, status: int = 200) -> "Reply":
        return cls(status=status, body=text.encode() + b"\n")

    @classmethod
    def json(cls, value: object, status: int = 200) -> "Reply":
        return cls(status=status, kind="application/json", body=msgspec.json.encode(value) + b"\n")


Route = Callable[[Request], Reply]
"""Answers in a moment, in a thread of its own."""

Routes = Mapping[tuple[str, str], Route]
"""By method and path; what answers GET answers HEAD too."""

Failed = Callable[[str, Exception], None]
"""Told the path of a route that raised, and what."""


class Listener:
    def __init__(
        self,
        host: str,
        port: int,
        routes: Routes,
        *,
        failed: Failed = lambda _path, _error: None,
        limits: Limits = USUAL,
        clock: Clock | None = None,
    ) -> None:
        self.address = (host, port)
        """Where it listens; once started, with the port that the system chose for port 0."""
        self._desk = _Desk(routes, failed, clock or SystemClock())
        self._limits = limits
        self._visits: set[_Visit] = set()
        self._changed = threading.Condition()
        self._closing = False
        self._porter: threading.Thread | None = None
        self._bell: socket.socket | None = None

    def start(self) -> None:
        """Listen. OSError: not possible now; it may be called again."""
        wide = ":" in self.address[0]
        door = socket.create_server(
            self.address,
            family=socket.AF_INET6 if wide else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=wide and socket.has_dualstack_ipv6(),
        )
        door.setblocking(False)
        self._desk.is_local = ipaddress.ip_address(door.getsockname()[0]).is_loopback
        bell, self._bell = socket.socketpair()
        self._porter = threading.Thread(target=self._attend, args=(door, bell), name="listener", daemon=True)
        try:
            self._porter.start()
        except RuntimeError as error:
            raise OSError(str(error)) from None
        host, port, *_ = door.getsockname()
        self.address = (host, port)

    def close(self) -> None:
        """Stop listening and drop every connection."""
        with self._changed:
            self._closing = True
            visits = list(self._visits)
            self._changed.notify_all()
        if self._bell is not None and self._porter is not None:
            self._bell.close()
            self._porter.join(JOIN)
        for visit in visits:
            visit.drop()
        deadline = time.monotonic() + JOIN
        for visit in visits:
            visit.thread.join(max(0.0, deadline - time.monotonic()))

    def _attend(self, door: socket.socket, bell: socket.socket) -> None:
        with door, bell, selectors.DefaultSelector() as selector:
            selector.register(door, selectors.EVENT_READ)
            selector.register(bell, selectors.EVENT_READ)
            while not self._closing:
                selector.select()
                self._make_room()
                try:
                    line, (source, *_) = door.accept()
                except BlockingIOError:
                    continue
                except OSError:
                    # Out of descriptors, as a rule: the same caller is still there a moment later.
                    self._pause()
                    continue
                self._welcome(line, source)

    def _make_room(self) -> None:
        with self._changed:
            while len(self._visits) >= self._limits.connections and not self._closing:
                slowest = min(self._visits, key=lambda visit: visit.waiting_since)
                if time.monotonic() - slowest.waiting_since > self._limits.patience_seconds:
                    self._visits.remove(slowest)
                    slowest.drop()
                else:
                    self._changed.wait(self._limits.patience_seconds)

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, self._limits.patience_seconds)

    def _welcome(self, line: socket.socket, source: str) -> None:
        visit = _Visit(line, source, self._desk, self._limits, ended=self._gone)
        with self._changed:
            if not self._closing:
                self._visits.add(visit)
                with contextlib.suppress(RuntimeError):  # no more threads
                    visit.thread.start()
                    return
                self._visits.remove(visit)
        line.close()

    def _gone(self, visit: "_Visit") -> None:
        with self._changed:
            self._visits.discard(visit)
            self._changed.notify_all()


class _Desk:
    """What is answered to a request."""

    def __init__(self, routes: Routes, failed: Failed, clock: Clock) -> None:
        self._routes = routes
        self._failed = failed
        self._clock = clock
        self.is_local = False
        """It listens on a loopback address, where a web page must not reach it by a name of its own (DNS rebinding)."""

    def answer(self, request: Request) -> Reply:
        if self.is_local and not hosts.is_known(request.headers.get("host", "localhost")):
            return Reply.json({"error": "this name in Host is not known here: ask for localhost or an address"}, 400)
        method = "GET" if request.method == "HEAD" else request.method
        route = self._routes.get((method, request.path))
        if route is None:
            return self._nothing(request.path)
        try:
            return route(request)
        except Exception as error:
            self._failed(request.path, error)
            return Reply.json({"error": "the agent failed to answer this; its log says why"}, 500)

    def _nothing(self, path: str) -> Reply:
        allowed = sorted(method for method, known in self._routes if known == path)
        if not allowed:
            return Reply.json({"error": "there is no such page"}, 404)
        if "GET" in allowed:
            allowed.append("HEAD")
        said = Reply.json({"error": "this method is not allowed here"}, 405)
        return Reply(status=405, kind=said.kind, body=said.body, headers={"Allow": ", ".join(allowed)})

    def head(self, reply: Reply, *, last: bool) -> h11.Response:
        headers = {
            "Date": dates.http(self._clock.now()),
            "Content-Type": reply.kind,
            "Content-Length": str(len(reply.body)),
            "Cache-Control": "no-store",
            **reply.headers,
            **({"Connection": "close"} if last else {}),
        }
        return h11.Response(
            status_code=reply.status, reason=HTTPStatus(reply.status).phrase, headers=list(headers.items())
        )


class _Visit:
    """One connection, from its first byte to its last."""

    def __init__(
        self, line: socket.socket, source: str, desk: _Desk, limits: Limits, *, ended: Callable[["_Visit"], None]
    ) -> None:
        self.waiting_since = time.monotonic()
        """When it began to keep us waiting; infinite while it waits for us."""
        self.thread = threading.Thread(target=self._attend, name="listener-visit", daemon=True)
        self._line = line
        self._source = source
        self._desk = desk
        self._limits = limits
        self._ended = ended
        self._http = h11.Connection(h11.SERVER, limits.head_bytes)
        self._deadline = self.waiting_since + limits.request_seconds

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def _attend(self) -> None:
        try:
            while self._serve():
                self._http.start_next_cycle()
                self.waiting_since = time.monotonic()
                begun = bool(self._http.trailing_data[0])
                self._deadline = self.waiting_since + (
                    self._limits.request_seconds if begun else self._limits.idle_seconds
                )
            self._linger()
        except OSError:
            pass  # It is gone, or too slow.
        finally:
            self._line.close()
            self._ended(self)

    def _serve(self) -> bool:
        """Whether another request may follow."""
        try:
            request = self._read()
        except h11.RemoteProtocolError as error:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                refusal = Reply.json({"error": "this request cannot be read"}, error.error_status_hint)
                self._send(refusal, last=True)
            return False
        if request is None:
            return False
        self.waiting_since = float("inf")
        reply = self._desk.answer(request)
        self.waiting_since = time.monotonic()
        self._deadline = self.waiting_since + self._limits.request_seconds
        self._send(reply, last=False, bare=request.method == "HEAD")
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def _read(self) -> Request | None:
        """None: there will be no more."""
        head = self._next()
        if not isinstance(head, h11.Request):
            return None
        body = b""
        while isinstance(part := self._next(), h11.Data):
            body += part.data
            if len(body) > self._limits.body_bytes:
                raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)
        headers: dict[str, str] = {}
        for raw_name, raw_value in head.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        target = _ORIGIN.sub("", head.target.decode("latin-1"), count=1)
        return Request(
            method=head.method.decode("ascii"),
            path=target.partition("?")[0],
            headers=headers,
            body=body,
            source=self._source,
        )

    def _next(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            data = self._receive()
            if self._http.their_state is h11.IDLE:
                # From the first byte on, it is no longer idle.
                self._deadline = min(self._deadline, time.monotonic() + self._limits.request_seconds)
            self._http.receive_data(data)
        return event  # type: ignore[return-value]

    def _send(self, reply: Reply, *, last: bool, bare: bool = False) -> None:
        parts = [self._http.send(self._desk.head(reply, last=last))]
        if not bare:
            parts.append(self._http.send(h11.Data(data=reply.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._write(b"".join(part for part in parts if part))

    def _linger(self) -> None:
        """Unread bytes at the close would reset the connection, and take our last answer with them."""
        self._line.shutdown(socket.SHUT_WR)
        for _ in range(self._limits.body_bytes // CHUNK + 4):
            if not self._receive():
                return

    def _receive(self) -> bytes:
        self._line.settimeout(self._left())
        return self._line.recv(CHUNK)

    def _write(self, data: bytes | None) -> None:
        self._line.settimeout(self._left())
        self._line.sendall(data or b"")

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
