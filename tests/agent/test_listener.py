"""The agent's HTTP server, with real clients of all manners."""

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.agent.parts import RUNTIME

from forenotice.agent.listener import Limits, Listener, Request, Response
from forenotice.wire import dates

HOST = "127.0.0.1"
SECONDS = 60.0


def echo(request: Request) -> Response:
    return Response.json(
        {"method": request.method, "body": request.body.decode(), "asked": request.headers.get("x-asked")}
    )


def broken(_: Request) -> Response:
    raise ValueError("a defect")


ROUTES = {
    ("GET", "/text"): lambda _: Response.text("fine"),
    ("POST", "/echo"): echo,
    ("GET", "/broken"): broken,
    ("GET", "/large"): lambda _: Response.text("x" * 8_000_000),
}


@contextmanager
def listening(routes: Any = ROUTES, **how: Any) -> Iterator[Listener]:
    listener = Listener(HOST, 0, routes, RUNTIME, **how)
    listener.start()
    try:
        yield listener
    finally:
        listener.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as listener:
        yield listener


@contextmanager
def calling(listener: Listener) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(*listener.address, timeout=SECONDS)
    try:
        yield connection
    finally:
        connection.close()


def ask(
    listener: Listener, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any, bytes]:
    with calling(listener) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def throw(listener: Listener, data: bytes, *, rest: bytes = b"") -> bytes:
    """All that comes back for these bytes until the other side closes; the rest is sent once something came back."""
    with socket.create_connection(listener.address, SECONDS) as line:
        line.sendall(data)
        back = b""
        while chunk := line.recv(65536):
            back += chunk
            line.sendall(rest)
            rest = b""
        return back


def test_a_page_is_given_with_its_type_length_and_date(listener: Listener) -> None:
    status, headers, body = ask(listener, "GET", "/text?with=query")
    assert (status, body) == (200, b"fine\n")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["Content-Length"] == "5"
    assert headers["Cache-Control"] == "no-store"
    assert dates.parse(headers["Date"])


def test_head_gives_the_same_head_without_the_body(listener: Listener) -> None:
    with calling(listener) as connection:
        for _ in range(2):
            connection.request("HEAD", "/text")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Content-Length"], answer.read()) == (200, "5", b"")


def test_a_route_gets_body_and_headers(listener: Listener) -> None:
    status, headers, body = ask(listener, "POST", "/echo", b"hello", **{"X-Asked": "yes"})
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == {"method": "POST", "body": "hello", "asked": "yes"}


def test_a_header_that_comes_twice_is_joined(listener: Listener) -> None:
    back = throw(listener, b"POST /echo HTTP/1.1\r\nHost: ::1\r\nConnection: close\r\nX-Asked: a\r\nX-Asked: b\r\n\r\n")
    assert b'"asked":"a, b"' in back


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nowhere", 404, None),
        ("POST", "/text", 405, "GET, HEAD"),
        ("GET", "/echo", 405, "POST"),
        ("HEAD", "/echo", 405, "POST"),
        ("OPTIONS", "/text", 405, "GET, HEAD"),
    ],
)
def test_what_is_not_there_is_said(listener: Listener, method: str, path: str, status: int, allow: str | None) -> None:
    found, headers, body = ask(listener, method, path)
    assert (found, headers["Allow"]) == (status, allow)
    assert method == "HEAD" or "error" in json.loads(body)


def test_a_web_page_does_not_reach_it_by_a_name_of_its_own(listener: Listener) -> None:
    for host, status in (("localhost:8256", 200), ("[::1]", 200), ("evil.example", 400), ("evil.example:80", 400)):
        assert ask(listener, "GET", "/text", Host=host)[0] == status
    everywhere = Listener("0.0.0.0", 0, ROUTES, RUNTIME)
    everywhere.start()
    try:
        assert ask(everywhere, "GET", "/text", Host="web-0.example")[0] == 200
    finally:
        everywhere.close()


def test_a_route_that_raises_is_500_and_reported_and_the_connection_goes_on() -> None:
    failures = []
    with (
        listening(failed=lambda path, error: failures.append((path, str(error)))) as listener,
        calling(listener) as connection,
    ):
        for path, status in (("/broken", 500), ("/text", 200), ("/broken", 500)):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert b"defect" not in answer.read()
            assert answer.status == status
    assert failures == [("/broken", "a defect")] * 2


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET /text HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"GET /text HTTP/1.1\r\nHost: ::1\r\nX: " + b"x" * 9000, b"431"),
        (b"POST /echo HTTP/1.1\r\nHost: ::1\r\nContent-Length: 17000\r\n\r\n" + b"x" * 16500, b"413"),
        (b"POST /echo HTTP/1.1\r\nHost: ::1\r\nTransfer-Encoding: chunked\r\n\r\n4065\r\n" + b"x" * 16485, b"413"),
        (b"POST /echo HTTP/1.1\r\nHost: ::1\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 60_000, b"413"),
        (b"POST /echo HTTP/1.1\r\nHost: ::1\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
    ],
)
def test_what_cannot_be_read_or_is_too_large_is_refused_and_the_connection_ends(
    listener: Listener, data: bytes, status: bytes
) -> None:
    back = throw(listener, data)
    assert back.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in back.lower()


def test_absolute_targets_old_clients_chunks_and_expectations_are_served(listener: Listener) -> None:
    last = b"Host: ::1\r\nConnection: close\r\n"
    assert b"fine" in throw(listener, b"GET http://127.0.0.1:80/text?x HTTP/1.1\r\n" + last + b"\r\n")
    assert b"fine" in throw(listener, b"GET /text HTTP/1.0\r\n\r\n")
    chunked = b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + last + b"\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    assert b'"body":"hello"' in throw(listener, chunked)
    expecting = b"POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n" + last + b"\r\n"
    back = throw(listener, expecting, rest=b"ok")
    assert back.startswith(b"HTTP/1.1 100 ")
    assert b'"body":"ok"' in back


def test_requests_that_follow_each_other_at_once_are_answered_in_order(listener: Listener) -> None:
    def asking(body: bytes, more: bytes = b"") -> bytes:
        return b"POST /echo HTTP/1.1\r\nHost: ::1\r\n%sContent-Length: 1\r\n\r\n%s" % (more, body)

    back = throw(listener, asking(b"1") + asking(b"2") + asking(b"3", b"Connection: close\r\n"))
    assert [back.find(b'"body":"%d"' % number) > 0 for number in (1, 2, 3)] == [True] * 3
    assert back.index(b'"body":"1"') < back.index(b'"body":"2"') < back.index(b'"body":"3"')


HALF = b"POST /echo HTTP/1.1\r\nHost: ::1\r\nContent-Length: 5\r\n\r\nhe"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /te",
        HALF,
        HALF + b"llo" + HALF,
    ],
)
def test_a_request_that_does_not_come_to_its_end_is_dropped(data: bytes) -> None:
    with listening(limits=Limits(request_seconds=0.2)) as listener:
        begun = time.monotonic()
        back = throw(listener, data)
        assert 0.1 < time.monotonic() - begun < 5
        assert back.count(b"HTTP/1.1 200") == data.count(b"llo")


def test_one_byte_now_and_then_does_not_prolong_a_request() -> None:
    with (
        listening(limits=Limits(request_seconds=0.3)) as listener,
        socket.create_connection(listener.address, 0.05) as line,
    ):
        line.sendall(b"GET /text HTTP/1.1\r\nHost: ::1\r\nX: ")

        def dropped() -> bool:
            try:
                line.sendall(b"x")
                return line.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(dropped)


def test_who_does_not_read_the_answer_is_dropped() -> None:
    with (
        listening(limits=Limits(request_seconds=0.2)) as listener,
        socket.create_connection(listener.address, SECONDS) as line,
    ):
        line.sendall(b"GET /large HTTP/1.1\r\nHost: ::1\r\n\r\n")
        until(lambda: not visitors(), what="the connection is given up")


def visitors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "listener-connection"]


def test_an_idle_connection_is_dropped_after_a_while_and_used_until_then() -> None:
    with listening(limits=Limits(idle_seconds=0.3)) as listener, calling(listener) as connection:
        for _ in range(3):
            connection.request("GET", "/text")
            assert connection.getresponse().read() == b"fine\n"
        line = connection.sock
        begun = time.monotonic()
        assert line.recv(1) == b""
        assert 0.2 < time.monotonic() - begun < 30


def test_when_all_connections_are_taken_the_idle_make_room() -> None:
    few = Limits(connections=3, patience_seconds=0.05)
    with listening(limits=few) as listener:
        idle = [socket.create_connection(listener.address, SECONDS) for _ in range(3)]
        until(lambda: len(visitors()) == 3)
        for _ in range(5):
            assert ask(listener, "GET", "/text")[0] == 200
        until(lambda: len(visitors()) <= 3)
        idle[0].settimeout(SECONDS)
        assert idle[0].recv(1) == b""
        for line in idle:
            line.close()


def test_a_crowd_is_served_one_after_the_other_and_never_more_at_a_time_than_allowed() -> None:
    few = Limits(connections=2, patience_seconds=SECONDS)
    inside, most = [], []

    def busy(_: Request) -> Response:
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.01)
        inside.pop()
        return Response.text("done")

    with listening({("GET", "/busy"): busy}, limits=few) as listener, ThreadPoolExecutor(20) as crowd:
        statuses = list(crowd.map(lambda _: ask(listener, "GET", "/busy", Connection="close")[0], range(40)))
    assert statuses == [200] * 40
    assert max(most) <= 2


def test_those_who_are_being_answered_are_never_dropped_for_others() -> None:
    go, inside = threading.Event(), threading.Event()

    def slow(_: Request) -> Response:
        inside.set()
        go.wait(SECONDS)
        return Response.text("slow")

    routes = {("GET", "/slow"): slow, **ROUTES}
    with (
        listening(routes, limits=Limits(connections=1, patience_seconds=0.02)) as listener,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(ask, listener, "GET", "/slow")
        assert inside.wait(SECONDS)
        second = pool.submit(ask, listener, "GET", "/text")
        with pytest.raises(TimeoutError):
            second.result(0.2)
        go.set()
        assert first.result(SECONDS)[2] == b"slow\n"
        assert second.result(SECONDS)[2] == b"fine\n"


def test_a_port_that_is_taken_is_an_oserror_and_may_be_tried_again() -> None:
    with socket.create_server((HOST, 0)) as taken:
        listener = Listener(HOST, taken.getsockname()[1], ROUTES, RUNTIME)
        with pytest.raises(OSError, match="in use"):
            listener.start()
    try:
        listener.start()
        assert ask(listener, "GET", "/text")[0] == 200
    finally:
        listener.close()


FEW = """
import os, resource, sys
from forenotice.runtime import Runtime
from forenotice.agent.listener import Limits, Listener, Response
routes = {("GET", "/text"): lambda _: Response.text("fine")}
listener = Listener("127.0.0.1", 0, routes, Runtime(), limits=Limits(connections=64))
listener.start()
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4,) * 2)
print(listener.address[1], flush=True)
sys.stdin.read()
"""


def test_it_outlives_a_lack_of_descriptors() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FEW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        place = (HOST, int(child.stdout.readline()))
        crowd = [socket.create_connection(place, SECONDS) for _ in range(20)]
        crowd[-1].settimeout(0.5)
        crowd[-1].sendall(b"GET /text HTTP/1.0\r\n\r\n")
        with pytest.raises(TimeoutError):
            crowd[-1].recv(1)
        for line in crowd[:-1]:
            line.close()
        crowd[-1].settimeout(SECONDS)
        with crowd[-1] as line:
            assert line.recv(15) == b"HTTP/1.1 200 OK"


def test_closing_ends_it_at_once_with_all_its_connections() -> None:
    with listening() as listener, calling(listener) as connection:
        connection.request("GET", "/text")
        connection.getresponse().read()
        begun = time.monotonic()
        listener.close()
        listener.close()
        assert time.monotonic() - begun < 5
        assert connection.sock.recv(1) == b""
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(listener.address, SECONDS)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("listener")]


def test_one_that_never_started_can_be_closed() -> None:
    Listener(HOST, 0, ROUTES, RUNTIME).close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_it_listens_on_ipv6_and_ipv4_together() -> None:
    listener = Listener("::", 0, ROUTES, RUNTIME)
    listener.start()
    try:
        for host in ("::1", "127.0.0.1"):
            with socket.create_connection((host, listener.address[1]), SECONDS) as line:
                line.sendall(b"GET /text HTTP/1.0\r\n\r\n")
                assert line.recv(15) == b"HTTP/1.1 200 OK"
    finally:
        listener.close()
