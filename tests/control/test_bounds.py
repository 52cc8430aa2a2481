"""What somebody without a token can take: few connections, a small head, and little time."""

import http.client
import socket
import time
from contextlib import ExitStack

import pytest
from tests.control.running import Control

from notbefore.control import bounds

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
        found += connection.recv(65536)
    head, _, body = found.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
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


def test_connections_are_counted(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CONNECTIONS", 3)
    with ExitStack() as held:
        kept = [held.enter_context(connect(control)) for _ in range(3)]
        for connection in kept:
            connection.sendall(POLL)
            assert answer(connection).startswith(b"HTTP/1.1 200")
        with connect(control) as fourth:
            assert rest(fourth) == b""
    deadline = time.monotonic() + 20
    while not answers(control):
        assert time.monotonic() < deadline
