"""What a client without a token can take: few connections, a small head, and little time."""

import asyncio
import http.client
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from ipaddress import ip_address

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tests.acceptance.running import until
from tests.control.running import Control, serving

from forenotice.control import connection_limits, requests
from forenotice.control.server import ControlServer

POLL = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
HELD = b"POST /v1/hosts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 9\r\n\r\n"
CLOSING = POLL.replace(b"Host", b"Connection: close\r\nHost")
HALF_A_BODY = b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def connect(control: Control) -> socket.socket:
    return socket.create_connection(("127.0.0.1", control.port), timeout=60)


def rest(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    found = b""
    try:
        while chunk := connection.recv(65536):
            found += chunk
    except ConnectionError:
        pass
    return found


def answer(connection: socket.socket) -> bytes:
    """One whole response: head and body may come apart."""
    found = b""
    while b"\r\n\r\n" not in found:
        chunk = connection.recv(65536)
        assert chunk, found
        found += chunk
    head, _, body = found.partition(b"\r\n\r\n")
    lengths = (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    length = next(lengths, 0)
    while len(body) < length:
        body += connection.recv(65536)
    return head


def exchange(control: Control, sent: bytes) -> bytes:
    """All that comes for it until the server closes."""
    with connect(control) as connection:
        connection.sendall(sent)
        return rest(connection)


# Servers are shared where connections are not counted.


@pytest.mark.parametrize("expects", [b"", b"Expect: 100-continue\r\n"])
def test_a_refusal_reaches_a_client_that_is_still_sending(unchanged: Control, expects: bytes) -> None:
    head = b"POST /v1/hosts HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 200000\r\n%b\r\n" % expects
    with connect(unchanged) as connection:
        connection.sendall(head)
        assert answer(connection).startswith(b"HTTP/1.1 401")
        if not expects:
            assert not select.select([connection], [], [], 0.2)[0]
            connection.sendall(b"x" * 200_000)
        assert connection.recv(1) == b""


def test_the_rest_of_a_refused_request_is_not_waited_for(
    unchanged: Control, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    monkeypatch.setattr(connection_limits, "LINGER_BYTES", 1000)
    for size, seconds in ((0, 0.1), (5000, 20)):
        monkeypatch.setattr(connection_limits, "LINGER_SECONDS", seconds)
        with connect(unchanged) as connection:
            connection.settimeout(10)
            connection.sendall(HELD.replace(b"9\r\n", b"9999\r\nConnection: close\r\n") % b"x")
            assert answer(connection).startswith(b"HTTP/1.1 401")
            connection.sendall(b"x" * size)
            assert rest(connection) == b""
    monkeypatch.setattr(connection_limits, "LINGER_SECONDS", 1)
    monkeypatch.setattr(connection_limits, "LINGER_BYTES", 1024 * 1024)
    with connect(unchanged) as connection:
        connection.sendall(b"POST /v1/hosts HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 401")
        connection.settimeout(0.05)
        until(lambda: is_cut_off(connection))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.3)


@pytest.mark.parametrize("head", [b"", b"GET /", b"GET / HTTP/1.1\r\nX: ", b"\r\n", POLL + b"GET /", POLL + b"\r\n"])
def test_a_head_must_come_in_time(unchanged: Control, hasty: None, head: bytes) -> None:
    begun = time.monotonic()
    assert exchange(unchanged, head).count(b"HTTP/1.1 200") == head.count(POLL)
    assert time.monotonic() - begun < connection_limits.READ_SECONDS


def is_cut_off(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"x")
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("head", [b"GET /" + b"x" * 200_000, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000])
def test_a_head_is_bounded(unchanged: Control, head: bytes) -> None:
    assert b"head of the request is too large" in exchange(unchanged, head)


@pytest.mark.parametrize("with_token", [True, False])
def test_a_body_does_not_count_as_a_head_even_after_its_response(control: Control, with_token: bool) -> None:
    body = b" " * 200_000 + b'{"name": "host-a"}'
    token = control.token.encode() if with_token else b"x"
    head = HELD.replace(b"Length: 9", b"Length: %d" % len(body)) % token
    with connect(control) as connection:
        connection.sendall(head + (body if with_token else b""))
        assert answer(connection).startswith(b"HTTP/1.1 201" if with_token else b"HTTP/1.1 401")
        connection.sendall(POLL if with_token else body + POLL)
        assert answer(connection).startswith(b"HTTP/1.1 200")


def test_of_requests_at_once_two_are_answered(unchanged: Control) -> None:
    assert exchange(unchanged, POLL + CLOSING).count(b"HTTP/1.1 200") == 2
    many = exchange(unchanged, POLL * 1000)
    assert many.count(b"HTTP/1.1 200") == 2
    assert many.lower().count(b"connection: close") == 1
    assert b"400" not in many


@pytest.mark.parametrize("garbage", [b"\0\0\0", HALF_A_BODY + b"not a length\r\n"])
def test_garbage_behind_a_request_does_not_break_its_response(unchanged: Control, garbage: bytes) -> None:
    found = exchange(unchanged, POLL + garbage)
    assert found.startswith(b"HTTP/1.1 200")
    assert found.count(b"HTTP/1.1") == 1
    chunked = HELD.replace(b"Content-Length: 9", b"Transfer-Encoding: chunked") % unchanged.token.encode()
    assert exchange(unchanged, chunked + b"not a length\r\n").startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("sent", [b"", b"{"])
def test_a_body_must_come_in_time(
    unchanged: Control, monkeypatch: pytest.MonkeyPatch, hasty: None, sent: bytes
) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.1)
    found = exchange(unchanged, HELD % unchanged.token.encode() + sent)
    assert found.startswith(b"HTTP/1.1 408")
    assert b'"code":"too_slow"' in found


def test_a_body_that_keeps_coming_has_more_time(unchanged: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(requests, "BYTES_A_SECOND", 1)
    with connect(unchanged) as connection:
        connection.sendall(HELD % unchanged.token.encode() + b"{")
        assert not select.select([connection], [], [], 0.3)[0]
        connection.sendall(b"}" + b" " * 7)
        assert answer(connection).startswith(b"HTTP/1.1 400")


def test_a_stream_ends_with_its_connection_though_another_request_waits_behind_it() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        begun.set()
        assert (await receive())["type"] == "http.disconnect"
        ended.set()

    with serving(ControlServer(stream, "127.0.0.1", 0)) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(POLL + POLL)
            assert begun.wait(60)
        assert ended.wait(60)


SHEET = 18 * 1024
LONG = 1024 * 1024


@contextmanager
def answering(size: int) -> Iterator[int]:
    """A server whose responses have so many bytes, by its port."""
    body = b"x" * size

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(body)(scope, receive, send)

    with serving(ControlServer(answer, "127.0.0.1", 0)) as port:
        yield port


def unread(port: int, sent: bytes, address: str = "127.0.0.1") -> socket.socket:
    """A client that sends a request and does not read."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(20)
    made.bind((address, 0))
    made.connect(("127.0.0.1", port))
    made.sendall(sent)
    return made


@pytest.mark.parametrize(("size", "sent"), [(SHEET, POLL * 1000), (LONG, POLL), (LONG, POLL * 2)])
def test_clients_that_do_not_read_do_not_shut_an_operator_out(size: int, sent: bytes) -> None:
    with answering(size) as port, ExitStack() as held:
        for address in ("127.0.0.2", "127.0.0.3"):
            for _ in range(connection_limits.CONNECTIONS_OF_ONE):
                held.enter_context(unread(port, sent, address))
        for _ in range(3):
            begun = time.monotonic()
            with socket.create_connection(("127.0.0.1", port), timeout=60) as operator:
                operator.sendall(CLOSING)
                assert len(rest(operator)) > size
            assert time.monotonic() - begun < connection_limits.READ_SECONDS / 2


def test_an_answer_must_be_read_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "READ_SECONDS", 0.3)
    with answering(LONG) as port:
        for sent in (POLL, CLOSING, POLL + POLL):
            with unread(port, sent) as connection:
                until(partial(is_cut_off, connection))


def test_an_answer_that_is_read_steadily_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "READ_SECONDS", 0.2)
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.2)
    with answering(LONG) as port, unread(port, CLOSING) as connection:
        found, begun = 0, time.monotonic()
        while chunk := connection.recv(32 * 1024):
            found += len(chunk)
            # At a MiB a second.
            threading.Event().wait(max(0, found / LONG - (time.monotonic() - begun)))
        assert found > LONG


def test_the_address_with_most_connections_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "CONNECTIONS", 4)
    with answering(3) as port, ExitStack() as held:
        first = held.enter_context(unread(port, POLL))
        assert answer(first).startswith(b"HTTP/1.1 200")
        for _ in range(9):
            held.enter_context(unread(port, b"GET", "127.0.0.2"))
        latest = held.enter_context(unread(port, POLL, "127.0.0.2"))
        assert answer(latest).startswith(b"HTTP/1.1 200")
        first.sendall(POLL)
        assert answer(first).startswith(b"HTTP/1.1 200")


def test_requests_that_never_cease_do_not_shut_an_operator_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "CONNECTIONS", 8)
    monkeypatch.setattr(connection_limits, "FEW", 2)
    release, under_way = threading.Event(), threading.Semaphore(0)

    async def answer_late(scope: Scope, receive: Receive, send: Send) -> None:
        under_way.release()
        if scope["client"][0] != "127.0.0.1":
            await asyncio.to_thread(release.wait, 20)
        await Response(b"x")(scope, receive, send)

    with serving(ControlServer(answer_late, "127.0.0.1", 0)) as port, ExitStack() as held:
        held.callback(release.set)
        few = [held.enter_context(unread(port, POLL, "127.0.0.2")) for _ in range(2)]
        many = [held.enter_context(unread(port, POLL, "127.0.0.3")) for _ in range(6)]
        for _ in few + many:
            assert under_way.acquire(timeout=20)
        for _ in range(3):
            assert answer(held.enter_context(unread(port, POLL))).startswith(b"HTTP/1.1 200")
        release.set()
        for one in few:
            assert answer(one).startswith(b"HTTP/1.1 200")


def answers(control: Control) -> bool:
    try:
        return control.ask("GET", "/healthz", token=None).status == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize("limit", ["CONNECTIONS", "CONNECTIONS_OF_ONE"])
def test_the_connection_that_is_waited_for_longest_makes_room(
    control: Control, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(connection_limits, limit, 3)
    with ExitStack() as held:
        head, body, answered = (held.enter_context(connect(control)) for _ in range(3))
        body.sendall(HELD % control.token.encode())
        answered.sendall(POLL)
        assert answer(answered).startswith(b"HTTP/1.1 200")
        for waiting in (head, body):
            new = held.enter_context(connect(control))
            new.sendall(POLL)
            assert answer(new).startswith(b"HTTP/1.1 200")
            assert rest(waiting) == b""
        answered.sendall(POLL)
        assert answer(answered).startswith(b"HTTP/1.1 200")


def test_fewer_connections_where_the_system_allows_few_descriptors(control: Control) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 512
    with ExitStack() as held:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        first, *_ = [held.enter_context(connect(control)) for _ in range(few // 8)]
        first.sendall(POLL)
        assert answer(first).startswith(b"HTTP/1.1 200")
        for _ in range(few // 8):
            held.enter_context(connect(control))
        assert rest(first) == b""
        assert answers(control)


def test_what_is_being_answered_makes_no_room(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "CONNECTIONS", 2)
    stream = b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n" % control.token.encode()
    with connect(control) as first, connect(control) as second:
        for connection in (first, second):
            connection.sendall(stream)
            assert connection.recv(8) == b"HTTP/1.1"
        with connect(control) as third:
            assert rest(third) == b""
    until(lambda: answers(control))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::1", "::2", False),
    ],
)
def test_whose_address_it_is(one: str, other: str, same: bool) -> None:
    assert (connection_limits.address_of(one) == connection_limits.address_of(other)) is same


def test_a_place_is_kept_for_this_machine(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "CONNECTIONS", 2)
    monkeypatch.setattr(connection_limits, "KEPT_FOR_LOOPBACK", 1)
    monkeypatch.setattr(connection_limits, "address_of", lambda _: ip_address("10.0.0.1"))
    begun = time.monotonic()
    with connect(control) as stranger, connect(control) as other:
        other.sendall(POLL)
        assert answer(other).startswith(b"HTTP/1.1 200")
        assert rest(stranger) == b""
        assert time.monotonic() - begun < connection_limits.READ_SECONDS
        monkeypatch.undo()
        assert answers(control)
        other.sendall(POLL)
        assert answer(other).startswith(b"HTTP/1.1 200")
