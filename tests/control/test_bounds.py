"""What somebody without a token can take: few connections, a small head, and little time."""

import http.client
import select
import socket
import time
from contextlib import ExitStack
from ipaddress import ip_address

import pytest
from tests.control.running import Control

from forenotice.control import bounds, guarding

POLL = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def connect(control: Control) -> socket.socket:
    return socket.create_connection(("127.0.0.1", control.port), timeout=20)


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
    """One whole answer: head and body may come apart."""
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


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "HEAD_SECONDS", 0.3)


@pytest.mark.parametrize("head", [b"", b"GET /", b"GET / HTTP/1.1\r\nX: ", b"\r\n", POLL + b"GET /", POLL + b"\r\n"])
def test_a_head_must_come_in_time(control: Control, hasty: None, head: bytes) -> None:
    begun = time.monotonic()
    with connect(control) as connection:
        connection.sendall(head)
        assert rest(connection).count(b"HTTP/1.1 200") == head.count(POLL)
    assert time.monotonic() - begun < 4


def is_cut_off(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"x")
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_body_that_nobody_asked_for_does_not_keep_a_connection(control: Control, hasty: None) -> None:
    with connect(control) as connection:
        connection.sendall(b"POST /v1/hosts HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 401")
        connection.settimeout(0.05)
        deadline = time.monotonic() + 20
        while not is_cut_off(connection):
            assert time.monotonic() < deadline


@pytest.mark.parametrize("head", [b"GET /" + b"x" * 200_000, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000])
def test_a_head_is_bounded(control: Control, head: bytes) -> None:
    with connect(control) as connection:
        connection.sendall(head)
        assert b"head of the request is too large" in rest(connection)


def test_bodies_do_not_count_as_heads(control: Control) -> None:
    body = b" " * 200_000 + b'{"name": "host-a"}'
    head = b"POST /v1/hosts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"
    with connect(control) as connection:
        connection.sendall(head % (control.token.encode(), len(body)) + body)
        assert answer(connection).startswith(b"HTTP/1.1 201")
        connection.sendall(POLL)
        assert answer(connection).startswith(b"HTTP/1.1 200")


def test_a_body_that_comes_after_its_answer_is_no_head_either(control: Control) -> None:
    with connect(control) as connection:
        connection.sendall(b"POST /v1/hosts HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 401")
        connection.sendall(b"x" * 200_000)
        connection.sendall(POLL)
        assert answer(connection).startswith(b"HTTP/1.1 200")


def test_two_requests_at_once_are_both_answered(control: Control) -> None:
    with connect(control) as connection:
        connection.sendall(POLL + POLL.replace(b"Host", b"Connection: close\r\nHost"))
        assert rest(connection).count(b"HTTP/1.1 200") == 2


def answers(control: Control) -> bool:
    try:
        return control.ask("GET", "/healthz", token=None).status == 200
    except (OSError, http.client.HTTPException):
        return False


HELD = b"POST /v1/hosts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 9\r\n\r\n"


@pytest.mark.parametrize("limit", ["CONNECTIONS", "CONNECTIONS_OF_ONE"])
def test_whoever_is_waited_for_longest_makes_room(
    control: Control, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(bounds, limit, 3)
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


def test_what_is_being_answered_makes_no_room(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CONNECTIONS", 2)
    stream = b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n" % control.token.encode()
    with connect(control) as first, connect(control) as second:
        for connection in (first, second):
            connection.sendall(stream)
            assert connection.recv(8) == b"HTTP/1.1"
        with connect(control) as third:
            assert rest(third) == b""
    deadline = time.monotonic() + 20
    while not answers(control):
        assert time.monotonic() < deadline


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
    assert (bounds.address_of(one) == bounds.address_of(other)) is same


def test_a_place_is_kept_for_this_machine(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CONNECTIONS", 2)
    monkeypatch.setattr(bounds, "KEPT_FOR_LOOPBACK", 1)
    monkeypatch.setattr(bounds, "address_of", lambda _: ip_address("10.0.0.1"))
    begun = time.monotonic()
    with connect(control) as stranger, connect(control) as other:
        other.sendall(POLL)
        assert answer(other).startswith(b"HTTP/1.1 200")
        assert rest(stranger) == b""
        assert time.monotonic() - begun < 4
        monkeypatch.undo()
        assert answers(control)
        other.sendall(POLL)
        assert answer(other).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"{"])
def test_a_body_must_come_in_time(control: Control, monkeypatch: pytest.MonkeyPatch, hasty: None, sent: bytes) -> None:
    monkeypatch.setattr(guarding, "BODY_SECONDS", 0.1)
    with connect(control) as connection:
        connection.sendall(HELD % control.token.encode() + sent)
        said = rest(connection)
    assert said.startswith(b"HTTP/1.1 408")
    assert b'"code":"too_slow"' in said


def test_a_body_that_keeps_coming_has_more_time(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(guarding, "BYTES_A_SECOND", 1)
    with connect(control) as connection:
        connection.sendall(HELD % control.token.encode() + b"{")
        assert not select.select([connection], [], [], 0.3)[0]
        connection.sendall(b"}" + b" " * 7)
        assert answer(connection).startswith(b"HTTP/1.1 400")


def test_one_token_cannot_have_everything_under_way(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "MOST_OF_ONE", 2)
    other = control.post("/v1/tokens", {"name": "other", "role": "admin"})["token"]
    with connect(control) as first, connect(control) as second:
        for connection in (first, second):
            connection.sendall(HELD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n") % control.token.encode())
            # It is asked for its body, so it is counted.
            assert answer(connection).startswith(b"HTTP/1.1 100")
        said = control.ask("GET", "/v1/hosts")
        assert (said.status, said.headers["retry-after"]) == (503, "1")
        assert "2 requests of this token" in said.message
        assert control.ask("GET", "/v1/hosts", token=other).status == 200
    deadline = time.monotonic() + 20
    while control.ask("GET", "/v1/hosts").status != 200:
        assert time.monotonic() < deadline
