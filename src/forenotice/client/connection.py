"""A connection that asks and waits for the answer: HTTP/1.1 over a socket, past every proxy."""

import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from forenotice.client.exchange import Answer, Exchange, ProtocolError, no_host

if TYPE_CHECKING:
    import ssl

__all__ = ["Answer", "Connection", "ProtocolError"]

CONNECT_TIMEOUT = 5.0
PIECE = 64 * 1024


class Connection:
    """Connects when it is asked something, and stays connected while the other side lets it.

    For one thread at a time, but for `close`.
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
        self._asking = self._closed = False
        self.reached = False
        """Whether it was ever connected."""

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float,
        largest: int | None,
    ) -> Answer:
        """One answer, of whatever status. `timeout` is for everything together, connecting included.

        OSError: nobody is there, the answer did not come in time (TimeoutError), the connection broke or was closed.
        ProtocolError: what came is no answer, or its body is larger than `largest` bytes; None: it is left unread.
        """
        deadline = monotonic() + timeout
        with self._lock:
            if self._closed:
                raise _closed_here()
            self._asking = True
        try:
            kept = self._is_kept()
            try:
                return self._ask(method, target, headers, body, deadline, largest)
            except ConnectionError:
                # The other side may close what is kept just when we ask; it has not seen the request then.
                if not (kept and method == "GET" and self._exchange.silent) or self._closed:
                    raise
            return self._ask(method, target, headers, body, deadline, largest)
        except (OSError, ProtocolError):
            if self._closed:
                raise _closed_here() from None
            raise
        finally:
            with self._lock:
                self._asking = False
            if self._closed:
                self._drop()

    def close(self) -> None:
        """For good; a question under way in another thread ends with an OSError."""
        with self._lock:
            self._closed = True
            asking = self._asking
            if self._socket is not None:
                with suppress(OSError):
                    # Not the method of a TLS socket, which is not made for two threads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        if not asking:
            self._drop()

    def _ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        deadline: float,
        largest: int | None,
    ) -> Answer:
        try:
            connected = self._socket or self._connect(deadline)
            data = self._exchange.begin(method, target, headers, body, largest=largest)
            connected.settimeout(_left(deadline))
            connected.sendall(data)
            answer = None
            while answer is None:
                connected.settimeout(_left(deadline))
                answer = self._exchange.feed(connected.recv(PIECE))
        except BaseException:
            self._drop()
            raise
        if self._tls is not None or not self._exchange.next():
            self._drop()
        return answer

    def _is_kept(self) -> bool:
        """Whether the connection of the last answer is still there; whatever has come since ended it."""
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
                raise _closed_here()
        return made

    def _drop(self) -> None:
        with self._lock:
            dropped, self._socket = self._socket, None
        if dropped is not None:
            dropped.close()

    def _new_exchange(self) -> Exchange:
        return Exchange(self._host, self._port, default_port=80 if self._tls is None else 443)


def _closed_here() -> OSError:
    return ConnectionAbortedError("the connection was closed here")


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
