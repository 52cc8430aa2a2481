"""A bounded generator of guests' requests: one thread, many source addresses, never more under way than asked for."""

import select
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

PATH = "/metadata/scheduledevents"
TARGET = f"{PATH}?api-version=2020-07-01"
POLL = f"GET {TARGET} HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n\r\n".encode()
LAST_POLL = POLL.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

PATIENCE = 20.0
"""Seconds that nothing may happen."""

OPENING_AT_ONCE = 256
"""Far fewer than the server's queue of new connections holds."""

_BIND_ADDRESS_NO_PORT = 24
"""Linux: the port is chosen with the destination, so that one source port serves many addresses."""


def approval(event_id: str) -> bytes:
    body = f'{{"StartRequests":[{{"EventId":"{event_id}"}}]}}'
    head = f"POST {TARGET} HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def waiting_poll(etag: str, seconds: int) -> bytes:
    return POLL.replace(b"\r\n\r\n", f"\r\nIf-None-Match: {etag}\r\nPrefer: wait={seconds}\r\n\r\n".encode())


def connect(port: int, address: str) -> socket.socket:
    made = socket.socket()
    made.settimeout(PATIENCE)
    made.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        made.bind((address, 0))
        made.connect(("127.0.0.1", port))
    except BaseException:
        made.close()
        raise
    return made


def ask(port: int, address: str, request: bytes = LAST_POLL) -> tuple[int, bytes]:
    """Status and whole answer of one request that closes its connection."""
    with connect(port, address) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return int(answer.split(b" ", 2)[1]), answer


@contextmanager
def connected(port: int, addresses: Iterable[str]) -> Iterator[list[socket.socket]]:
    """A connection from each address, as long as the `with` lasts; each has polled once."""
    connections: list[socket.socket] = []

    def opening() -> Iterator[tuple[socket.socket, bytes]]:
        for address in addresses:
            connections.append(connect(port, address))
            yield connections[-1], POLL

    try:
        exchange(opening(), at_once=OPENING_AT_ONCE)
        yield connections
    finally:
        for connection in connections:
            connection.close()


def exchange(requests: Iterable[tuple[socket.socket, bytes]], *, at_once: int, closing: bool = False) -> int:
    """Send each request on its connection and await its 200, `at_once` at a time; gives how many there were."""
    answered = 0
    coming = iter(requests)
    under_way: dict[int, socket.socket] = {}
    with select.epoll() as poll:
        while True:
            for connection, request in islice(coming, at_once - len(under_way)):
                under_way[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
                connection.send(request)
            if not under_way:
                return answered
            for connection in _readable(poll, under_way):
                answered += 1
                if closing:
                    connection.close()


def exchange_in_turn(requests: Iterable[tuple[socket.socket, bytes]]) -> int:
    """One at a time. Answers are looked for rather than waited for: a core that sleeps takes long to wake."""
    answered = 0
    for connection, request in requests:
        connection.setblocking(False)
        connection.send(request)
        deadline = time.perf_counter() + PATIENCE
        while True:
            try:
                _require_200(connection, connection.recv(65536))
                break
            except BlockingIOError:
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"a guest was not answered for {PATIENCE:.0f} s") from None
        answered += 1
    return answered


def exchange_anew(port: int, addresses: Iterable[str], *, at_once: int) -> int:
    """One poll per connection."""
    return exchange(((connect(port, address), LAST_POLL) for address in addresses), at_once=at_once, closing=True)


def await_change(connections: list[socket.socket]) -> float:
    """The moment, by the performance counter, at which the last of these was told of a change."""
    waiting = {connection.fileno(): connection for connection in connections}
    with select.epoll() as poll:
        for connection in connections:
            poll.register(connection, select.EPOLLIN)
        while waiting:
            for _ in _readable(poll, waiting):
                pass
        return time.perf_counter()


def _readable(poll: select.epoll, waiting: dict[int, socket.socket]) -> Iterator[socket.socket]:
    """Those that have their 200 now; they are not waiting any more."""
    ready = poll.poll(PATIENCE)
    if not ready:
        raise TimeoutError(f"{len(waiting)} guests were not answered for {PATIENCE:.0f} s")
    for descriptor, _ in ready:
        connection = waiting.pop(descriptor)
        poll.unregister(descriptor)
        _require_200(connection, connection.recv(65536))
        yield connection


def _require_200(connection: socket.socket, answer: bytes) -> None:
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"{connection.getsockname()[0]} was answered {answer[:200]!r}")
