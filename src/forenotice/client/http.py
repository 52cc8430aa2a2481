"""HTTP/1.1 to an endpoint, past every proxy: the bytes of a request and its response, connections, a pool of them."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import h11

if TYPE_CHECKING:
    import ssl

LARGEST_HEAD = 32 * 1024
LARGEST_BODY = 4 * 1024 * 1024
"""Of a document, and there are none near that."""
CONNECT_TIMEOUT = 5.0
PIECE = 64 * 1024
KEPT = 2
"""Connections that a pool keeps: one that polls, and one for other requests."""


class ProtocolError(Exception):
    """The response is not HTTP/1.1, or too large."""


def no_host(name: str) -> OSError:
    """The resolver raises a ValueError for a name that it cannot look up."""
    return OSError(f"{name!r} is not the name of a host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: int
    reason: str = ""
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes


class Exchange:
    """The requests and responses of one connection, one after another."""

    def __init__(self, host: str, port: int, *, default_port: int = 80) -> None:
        name = f"[{host}]" if ":" in host else host
        self._authority = name if port == default_port else f"{name}:{port}"
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._largest: int | None = 0
        self.silent = True
        """Nothing of a response to the present request has come."""

    def begin(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, *, largest: int | None
    ) -> bytes:
        """The bytes to send. ProtocolError: they would be no request.

        `largest` is of the response's body; None: it is left unread, and the head is the response.
        """
        length = {} if body is None else {"Content-Length": str(len(body))}
        fields = {"Host": self._authority, **headers, **length}
        self._head, self._body, self._largest, self.silent = None, bytearray(), largest, True
        try:
            request = h11.Request(method=method, target=target, headers=list(fields.items()))
            sent = [self._state.send(request), body and self._state.send(h11.Data(body)), self._ended()]
        except (h11.LocalProtocolError, UnicodeEncodeError) as error:
            raise ProtocolError(f"this cannot be sent: {error}") from None
        return b"".join(part for part in sent if part)

    def feed(self, data: bytes) -> Response | None:
        """What has come, empty at the end of the connection; gives the response once it is whole."""
        if data:
            self.silent = False
        elif self._head is None:
            raise ConnectionResetError("the connection was closed before a response came")
        try:
            self._state.receive_data(data)
            while True:
                match self._state.next_event():
                    case h11.Response() as head:
                        self._head = head
                        if self._largest is None:
                            return self._response()
                    case h11.Data(data=part):
                        self._take(part)
                    case h11.EndOfMessage():
                        return self._response()
                    case h11.InformationalResponse():
                        continue
                    case _:
                        return None
        except h11.RemoteProtocolError as error:
            raise ProtocolError(f"the response is not valid HTTP: {error}") from None

    def next(self) -> bool:
        """Whether this connection may carry another request."""
        if self._state.trailing_data[0]:
            # It would be taken for the next response.
            return False
        try:
            self._state.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        return True

    def _ended(self) -> bytes | None:
        return self._state.send(h11.EndOfMessage())

    def _take(self, part: bytes | bytearray) -> None:
        self._body += part
        if self._largest is not None and len(self._body) > self._largest:
            raise ProtocolError(f"the response is larger than {self._largest} bytes")

    def _response(self) -> Response:
        head = self._head
        assert head is not None
        headers: dict[str, str] = {}
        for name, value in head.headers:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        return Response(
            status=head.status_code, reason=head.reason.decode("latin-1"), headers=headers, body=bytes(self._body)
        )


class Connection:
    """Connects for its first request, and stays connected while the server lets it.

    For one thread at a time, except `close`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: "ssl.SSLContext | None" = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        source: str = "",
    ) -> None:
        """`source` is the address to connect from, where that is possible."""
        self._host, self._port = host, port
        self._source = source
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._exchange = self._new_exchange()
        self._in_use = self._closed = False
        self.reached = False
        """Whether it was ever connected."""

    def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float,
        largest: int | None,
    ) -> Response:
        """One response, of whatever status. `timeout` includes connecting.

        OSError: no connection, no response in time (TimeoutError), or the connection broke or was closed.
        ProtocolError: it is not HTTP, or its body is larger than `largest` bytes; None: the body is left unread.
        """
        deadline = monotonic() + timeout

        def begin() -> bytes:
            return self._exchange.begin(method, target, headers, body, largest=largest)

        with self._lock:
            if self._closed:
                raise closed_here()
            self._in_use = True
        try:
            kept = self._is_kept()
            try:
                return self._send(begin, deadline)
            except ConnectionError:
                # The server may close a kept connection just when we send; it has not seen the request then.
                if not (kept and method == "GET" and self._exchange.silent) or self._closed:
                    raise
            return self._send(begin, deadline)
        except (OSError, ProtocolError):
            if self._closed:
                raise closed_here() from None
            raise
        finally:
            with self._lock:
                self._in_use = False
            if self._closed:
                self._drop()

    def close(self) -> None:
        """For good; a request under way in another thread ends with an OSError."""
        with self._lock:
            self._closed = True
            in_use = self._in_use
            if self._socket is not None:
                with suppress(OSError):
                    # Not the method of a TLS socket, which is not made for two threads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        if not in_use:
            self._drop()

    def _send(self, begin: Callable[[], bytes], deadline: float) -> Response:
        try:
            connected = self._socket or self._connect(deadline)
            data = begin()
            connected.settimeout(_left(deadline))
            connected.sendall(data)
            response = None
            while response is None:
                connected.settimeout(_left(deadline))
                response = self._exchange.feed(connected.recv(PIECE))
        except BaseException:
            self._drop()
            raise
        if self._tls is not None or not self._exchange.next():
            self._drop()
        return response

    def _is_kept(self) -> bool:
        """Whether the connection of the last response is still there; whatever has come since ended it."""
        if self._socket is None:
            return False
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            pass
        self._drop()
        return False

    def _connect(self, deadline: float) -> socket.socket:
        failure = OSError(f"{self._host} has no address")
        for family, kind, protocol, _, address in self._addresses():
            try:
                connected = self._hold(socket.socket(family, kind, protocol))
                connected.settimeout(min(self._connect_timeout, _left(deadline)))
                if self._source:
                    with suppress(OSError):
                        connected.bind((self._source, 0))
                connected.connect(address)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    connected = self._secure(connected, self._tls, deadline)
                self._exchange = self._new_exchange()
                self.reached = True
                return connected
            except OSError as error:
                failure = error
                self._drop()
        raise failure

    def _addresses(self) -> Sequence[tuple[Any, ...]]:
        try:
            return socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except ValueError:
            raise no_host(self._host) from None

    def _secure(self, connected: socket.socket, tls: "ssl.SSLContext", deadline: float) -> socket.socket:
        secured = tls.wrap_socket(connected, server_hostname=self._host, do_handshake_on_connect=False)
        self._hold(secured)
        secured.settimeout(_left(deadline))
        secured.do_handshake()
        return secured

    def _hold(self, made: socket.socket) -> socket.socket:
        """From here on `close` reaches it."""
        with self._lock:
            self._socket = made
            if self._closed:
                raise closed_here()
        return made

    def _drop(self) -> None:
        with self._lock:
            dropped, self._socket = self._socket, None
        if dropped is not None:
            dropped.close()

    def _new_exchange(self) -> Exchange:
        return Exchange(self._host, self._port, default_port=80 if self._tls is None else 443)


def closed_here() -> OSError:
    return ConnectionAbortedError("the connection was closed here")


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """Connections that are kept for the next request; each is lent to one borrower at a time."""

    def __init__(self, make: Callable[[str, int], C]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._idle: list[tuple[tuple[str, int], C]] = []
        self._lent: list[C] = []
        self._closed = False

    @contextmanager
    def lend(self, host: str, port: int) -> Iterator[C]:
        """ConnectionAbortedError: the pool is closed."""
        place = (host, port)
        with self._lock:
            if self._closed:
                raise closed_here()
            mine = next((kept for kept in self._idle if kept[0] == place), None)
            if mine is not None:
                self._idle.remove(mine)
            connection = self._make(host, port) if mine is None else mine[1]
            self._lent.append(connection)
        try:
            yield connection
        finally:
            with self._lock:
                self._lent.remove(connection)
                self._idle.insert(0, (place, connection))
                # Those of another place, or of a busier time, are surplus.
                surplus = self._idle[0 if self._closed else KEPT :]
                del self._idle[len(self._idle) - len(surplus) :]
            for _, each in surplus:
                each.close()

    def close(self) -> None:
        """What is under way ends at once."""
        with self._lock:
            self._closed = True
            everything = [*self._lent, *(connection for _, connection in self._idle)]
            self._idle.clear()
        for connection in everything:
            connection.close()
