"""The blocking connection: whole deadlines, bounded bodies, reuse, and an end from another thread."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from time import monotonic

import pytest
from tests.client.scripted import Asked, Scripted, answer, full_port, scripted

from forenotice.client.http import KEPT, Connection, Pool, ProtocolError, Response

SOON = 30.0


def ask(connection: Connection, method: str = "GET", timeout: float = SOON, largest: int = 1000) -> Response:
    body = b"{}" if method == "POST" else None
    return connection.request(method, "/x?y=z", {"Metadata": "true"}, body, timeout=timeout, largest=largest)


@contextmanager
def connected(*answers: bytes | None) -> Iterator[tuple[Connection, Scripted]]:
    """To a server that gives these one after another, the last one again and again."""
    with scripted(lambda asked, ended: answers[min(asked.number, len(answers) - 1)]) as server:
        connection = Connection("127.0.0.1", server.port)
        yield connection, server
        connection.close()


def test_a_question_and_its_answer() -> None:
    with connected(answer("418 I'm a Teapot", b"short", "X-Two: a", "X-Two: b")) as (connection, server):
        got = ask(connection, "POST")
    assert (got.status, got.reason, got.body) == (418, "I'm a Teapot", b"short")
    assert got.headers["x-two"] == "a, b"
    [asked] = server.asked
    assert (asked.method, asked.target, asked.body) == ("POST", "/x?y=z", b"{}")
    assert (asked.headers["host"], asked.headers["metadata"]) == (f"127.0.0.1:{server.port}", "true")


@pytest.mark.parametrize(
    "whole",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}",
    ],
)
def test_every_framing_is_read(whole: bytes) -> None:
    with connected(whole) as (connection, _server):
        assert [ask(connection).body, ask(connection).body] == [b"{}", b"{}"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_connection_that_was_closed_meanwhile_is_not_used(method: str) -> None:
    closing = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection("127.0.0.1", server.getsockname()[1])
        for _ in range(2):
            thread = threading.Thread(target=lambda: answer_and_close(server, closing))
            thread.start()
            assert ask(connection, method).status == 200
            thread.join()
        connection.close()


def answer_and_close(server: socket.socket, data: bytes) -> None:
    accepted, _ = server.accept()
    with accepted:
        accepted.recv(65536)
        accepted.sendall(data)


HALF = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{"


@pytest.mark.parametrize(
    ("method", "responses", "failure", "sent"),
    [
        # Only a GET is sent again, when a kept connection ends just then and nothing of a response has come.
        ("GET", [answer(), None, answer()], None, 3),
        ("POST", [answer(), None, answer()], ConnectionError, 2),
        ("GET", [None], ConnectionError, 1),
        ("GET", [answer(), HALF], ProtocolError, 2),
    ],
)
def test_what_is_sent_again(
    method: str, responses: list[bytes | None], failure: type[Exception] | None, sent: int
) -> None:
    with connected(*responses) as (connection, server):
        if len(responses) > 1:
            ask(connection)
        with pytest.raises(failure) if failure else nullcontext():
            assert ask(connection, method).status == 200
    assert len(server.asked) == sent


def test_a_connection_is_used_again_unless_stray_bytes_came() -> None:
    with connected(answer(body=b"a")) as (connection, server):
        assert [ask(connection).body for _ in range(5)] == [b"a"] * 5
    assert len(server.connections) == 1
    with connected(answer(body=b"1") + answer(body=b"stray"), answer(body=b"2")) as (connection, _server):
        assert [ask(connection).body, ask(connection).body] == [b"1", b"2"]


@pytest.mark.parametrize(
    "strange",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        answer(body=b"x" * 1001),
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 1001,
    ],
)
def test_what_is_no_answer_or_too_much_is_refused(strange: bytes) -> None:
    with connected(strange, answer(body=b"fine")) as (connection, _server):
        with pytest.raises(ProtocolError):
            ask(connection)
        assert ask(connection).body == b"fine"


def test_what_cannot_be_sent_is_refused() -> None:
    with connected(answer()) as (connection, _server):
        for target, headers in (("/x y", {}), ("/x", {"A": "b\r\nC: d"})):
            with pytest.raises(ProtocolError, match="cannot be sent"):
                connection.request("GET", target, headers, timeout=SOON, largest=1)


def test_the_deadline_is_for_the_whole_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()
        thread = threading.Thread(target=drip, args=(server, ended))
        thread.start()
        connection = Connection("127.0.0.1", server.getsockname()[1])
        before = monotonic()
        with pytest.raises(TimeoutError):
            ask(connection, timeout=0.4)
        took = monotonic() - before
        ended.set()
        thread.join()
        connection.close()
    assert 0.3 < took < 20


def drip(server: socket.socket, ended: threading.Event) -> None:
    accepted, _ = server.accept()
    with accepted:
        accepted.sendall(b"HTTP/1.1 200 OK\r\n")
        while not ended.wait(0.05):
            accepted.sendall(b"X: y\r\n")


def test_nobody_there() -> None:
    connection = Connection("127.0.0.1", 9)
    with pytest.raises(ConnectionRefusedError):
        ask(connection)
    with pytest.raises(OSError, match="host"):
        ask(Connection("a..b", 80))


def interrupted(connection: Connection, when: Callable[[], bool]) -> tuple[BaseException, float]:
    """What a question in another thread ends with, and how long after the close."""
    found: list[BaseException] = []

    def run() -> None:
        try:
            ask(connection, timeout=60)
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = monotonic() + SOON
    pause = threading.Event()
    while not when():
        assert monotonic() < deadline
        pause.wait(0.01)
    before = monotonic()
    connection.close()
    thread.join(SOON)
    return found[0], monotonic() - before


def test_closing_ends_a_question_in_another_thread() -> None:
    def silent(asked: Asked, ended: threading.Event) -> None:
        ended.wait(90)

    with scripted(silent) as server:
        connection = Connection("127.0.0.1", server.port)
        error, took = interrupted(connection, lambda: bool(server.asked))
        assert isinstance(error, ConnectionAbortedError)
        assert took < 20
        with pytest.raises(ConnectionAbortedError):
            ask(connection)


def test_closing_ends_an_attempt_to_connect() -> None:
    with full_port() as port:
        connection = Connection("127.0.0.1", port, connect_timeout=60)
        begun = monotonic()
        error, took = interrupted(connection, lambda: monotonic() > begun + 0.2)
    assert isinstance(error, ConnectionAbortedError)
    assert took < 20


def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve_tls, args=(server, context, 2))
        thread.start()
        port = server.getsockname()[1]
        trusting = Connection("127.0.0.1", port, tls=ssl.create_default_context(cafile=str(certificate)))
        assert ask(trusting).body == b"safe"
        trusting.close()
        wary = Connection("127.0.0.1", port, tls=ssl.create_default_context())
        with pytest.raises(ssl.SSLError):
            ask(wary)
        wary.close()
        thread.join()


def serve_tls(server: socket.socket, context: ssl.SSLContext, times: int) -> None:
    for _ in range(times):
        accepted, _ = server.accept()
        try:
            with context.wrap_socket(accepted, server_side=True) as secured:
                secured.recv(65536)
                secured.sendall(answer(body=b"safe"))
        except OSError:
            accepted.close()


# Connections that are lent to one borrower at a time


class Made:
    def __init__(self, host: str, port: int) -> None:
        self.place = (host, port)
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made() -> list[Made]:
    return []


@pytest.fixture
def pool(made: list[Made]) -> Pool[Made]:
    def make(host: str, port: int) -> Made:
        made.append(Made(host, port))
        return made[-1]

    return Pool(make)


def test_what_is_given_back_is_lent_again_also_after_a_failure(pool: Pool[Made], made: list[Made]) -> None:
    with pytest.raises(OSError, match="broken"), pool.lend("a", 1):
        raise OSError("broken")
    with pool.lend("a", 1) as one, pool.lend("a", 1) as other:
        assert one is not other
        assert one.place == ("a", 1)
    assert len(made) == 2


def test_few_are_kept_and_the_oldest_go(pool: Pool[Made], made: list[Made]) -> None:
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(pool.lend("a", 1))
    assert sum(not each.closed for each in made) == KEPT
    for port in range(2, 6):
        with pool.lend("a", port) as connection:
            assert connection.place == ("a", port)
    assert [each.closed for each in made] == [*[True] * 7, False, False]


def test_the_end_is_for_all_and_for_good(pool: Pool[Made], made: list[Made]) -> None:
    with pool.lend("a", 1), pool.lend("a", 1):
        pass
    with pool.lend("a", 1):
        pool.close()
        assert [each.closed for each in made] == [True, True]
        made[0].closed = made[1].closed = False
    assert sum(each.closed for each in made) == 1
    with pytest.raises(ConnectionAbortedError), pool.lend("a", 1):
        pass
