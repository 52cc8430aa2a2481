"""A small HTTP/1.1 server for the agent's own pages: a thread for each connection, bounded in every direction."""

import contextlib
import ipaddress
import re
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import h11
import msgspec

from forenotice.limits import ConnectionLimit
from forenotice.runtime import Runtime, Started
from forenotice.wire import dates, host_header

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
    """Until a request has been read, and again until its response is sent."""
    patience_seconds: float = 0.25
    """When all connections are taken, one that has kept us waiting for longer is closed for a new one."""


USUAL = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""
    body: bytes = b""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: int = 200
    kind: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @classmethod
    def text(cls, text: str, status: int = 200) -> "Response":
        return cls(status=status, body=text.encode() + b"\n")

    @classmethod
    def json(cls, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> "Response":
        body = msgspec.json.encode(value) + b"\n"
        return cls(status=status, kind="application/json", headers=headers or {}, body=body)


Routes = Mapping[tuple[str, str], Callable[[Request], Response]]
"""By method and path; what answers GET answers HEAD too. Called in the connection's thread."""
Failed = Callable[[str, Exception], None]


class Listener:
    def __init__(
        self,
        host: str,
        port: int,
        routes: Routes,
        runtime: Runtime,
        *,
        failed: Failed = lambda _path, _error: None,
        limits: Limits = USUAL,
    ) -> None:
        self.address = (host, port)
        """Where it listens; once started, with the port that the system chose for port 0."""
        self.routes = routes
        self.runtime = runtime
        self.failed = failed
        self.limits = limits
        self.is_local = False
        """It listens on a loopback address, where a web page must not reach it by a name of its own (DNS rebinding)."""
        self._connections: ConnectionLimit[_Connection] = ConnectionLimit()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: Started | None = None
        self._waker: socket.socket | None = None

    def start(self) -> None:
        """OSError: not possible now; it may be called again."""
        wide = ":" in self.address[0]
        server = socket.create_server(
            self.address,
            family=socket.AF_INET6 if wide else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=wide and socket.has_dualstack_ipv6(),
        )
        server.setblocking(False)
        host, port, *_ = server.getsockname()
        self.is_local = ipaddress.ip_address(host).is_loopback
        woken, self._waker = socket.socketpair()
        try:
            self._thread = self.runtime.start_thread(lambda: self._accept_all(server, woken), "listener")
        except RuntimeError as error:
            server.close()
            woken.close()
            raise OSError(str(error)) from None
        self.address = (host, port)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            connections = list(self._connections)
            self._changed.notify_all()
        if self._waker is not None and self._thread is not None:
            self._waker.close()
            self._thread.join(JOIN)
        for connection in connections:
            connection.drop()
        deadline = self.runtime.monotonic() + JOIN
        with self._changed:
            self._changed.wait_for(lambda: not self._connections, max(0.0, deadline - self.runtime.monotonic()))

    def _accept_all(self, server: socket.socket, woken: socket.socket) -> None:
        with server, woken, selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while not self._closing:
                selector.select()
                self._make_room()
                try:
                    accepted, (source, *_) = server.accept()
                except BlockingIOError:
                    continue
                except OSError:
                    # Out of descriptors, as a rule: the same client is still there a moment later.
                    with self._changed:
                        self._changed.wait_for(lambda: self._closing, self.limits.patience_seconds)
                    continue
                self._serve(_Connection(self, accepted, source))

    def _make_room(self) -> None:
        patience = self.limits.patience_seconds
        with self._changed:
            while len(self._connections) >= self.limits.connections and not self._closing:
                slowest = self._connections.first_to_go(
                    lambda each: (
                        (-each.waiting_since,) if self.runtime.monotonic() - each.waiting_since > patience else None
                    )
                )
                for connection in slowest:
                    self._connections.remove(connection)
                    connection.drop()
                if not slowest:
                    self._changed.wait(patience)

    def _serve(self, connection: "_Connection") -> None:
        def run() -> None:
            connection.run()
            with self._changed:
                self._connections.remove(connection)
                self._changed.notify_all()

        with self._changed:
            if not self._closing:
                self._connections.add(connection, None)
                with contextlib.suppress(RuntimeError):  # no more threads
                    self.runtime.start_thread(run, "listener-connection")
                    return
                self._connections.remove(connection)
        connection.close()

    def respond(self, request: Request) -> Response:
        if self.is_local and not host_header.is_allowed(request.headers.get("host", "localhost")):
            return Response.json({"error": "this name in Host is not known here: ask for localhost or an address"}, 400)
        method = "GET" if request.method == "HEAD" else request.method
        route = self.routes.get((method, request.path))
        if route is None:
            allowed = sorted(method for method, known in self.routes if known == request.path)
            if not allowed:
                return Response.json({"error": "there is no such page"}, 404)
            headers = {"Allow": ", ".join([*allowed, "HEAD"] if "GET" in allowed else allowed)}
            return Response.json({"error": "this method is not allowed here"}, 405, headers)
        try:
            return route(request)
        except Exception as error:
            self.failed(request.path, error)
            return Response.json({"error": "the agent failed to answer this; its log says why"}, 500)


class _Connection:
    """One request, one response."""

    def __init__(self, listener: Listener, connected: socket.socket, source: str) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._socket = connected
        self._source = source
        self._http = h11.Connection(h11.SERVER, self._limits.head_bytes)
        self._wait_for_client()

    def _wait_for_client(self) -> None:
        self.waiting_since = self._listener.runtime.monotonic()
        """When it began to keep us waiting; infinite while it waits for us."""
        self._deadline = self.waiting_since + self._limits.request_seconds

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def run(self) -> None:
        try:
            self._serve()
            self._linger()
        except OSError:
            pass  # The client is gone, or too slow.
        finally:
            self.close()

    def _serve(self) -> None:
        try:
            request = self._read()
        except h11.RemoteProtocolError as error:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._send(Response.json({"error": "this request cannot be read"}, error.error_status_hint))
            return
        if request is not None:
            self.waiting_since = float("inf")
            response = self._listener.respond(request)
            self._wait_for_client()
            self._send(response, bare=request.method == "HEAD")

    def _read(self) -> Request | None:
        """None: there was none."""
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
        path = _ORIGIN.sub("", head.target.decode("latin-1"), count=1).partition("?")[0]
        return Request(method=head.method.decode("ascii"), path=path, headers=headers, body=body, source=self._source)

    def _next(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            self._http.receive_data(self._receive())
        return event  # type: ignore[return-value]

    def _send(self, response: Response, *, bare: bool = False) -> None:
        headers = {
            "Date": dates.http(self._listener.runtime.clock.now()),
            "Content-Type": response.kind,
            "Content-Length": str(len(response.body)),
            "Cache-Control": "no-store",
            "Connection": "close",
            **response.headers,
        }
        phrase = HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, reason=phrase, headers=list(headers.items()))
        body = () if bare else (h11.Data(data=response.body),)
        self._write(b"".join(self._http.send(part) or b"" for part in (head, *body, h11.EndOfMessage())))

    def _linger(self) -> None:
        """Unread bytes at the close would reset the connection, and our response would be lost."""
        self._socket.shutdown(socket.SHUT_WR)
        for _ in range(self._limits.body_bytes // CHUNK + 4):
            if not self._receive():
                return

    def _receive(self) -> bytes:
        self._socket.settimeout(self._left())
        return self._socket.recv(CHUNK)

    def _write(self, data: bytes | None) -> None:
        self._socket.settimeout(self._left())
        self._socket.sendall(data or b"")

    def _left(self) -> float:
        left = self._deadline - self._listener.runtime.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
