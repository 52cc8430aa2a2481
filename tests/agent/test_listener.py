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
from contextlib import closing, contextmanager
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
        {"method": request.method, "body": request.body.decode(), "header": request.headers.get("x-header")}
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
def listening(routes: Any = ROUTES, *, host: str = HOST, **how: Any) -> Iterator[Listener]:
    with closing(Listener(host, 0, routes, RUNTIME, **how)) as made:
        made.start()
        yield made


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as made:
        yield made


def ask(
    listener: Listener, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any, bytes]:
    with closing(http.client.HTTPConnection(*listener.address, timeout=SECONDS)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def throw(listener: Listener, data: bytes, *, rest: bytes = b"") -> bytes:
    """All that comes back for these bytes until the other side closes; the rest is sent once something came back."""
    with socket.create_connection(listener.address, SECONDS) as connected:
        connected.sendall(data)
        back = b""
        while chunk := connected.recv(65536):
            back += chunk
            if rest:
                connected.sendall(rest)
                rest = b""
        return back


def connections() -> int:
    return sum(thread.name == "listener-connection" for thread in threading.enumerate())


def test_a_page_has_its_type_length_and_date_and_head_the_same_without_the_body(listener: Listener) -> None:
    for method, content in (("GET", b"fine\n"), ("HEAD", b"")):
        status, headers, body = ask(listener, method, "/text?with=query")
        assert (status, body) == (200, content)
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        assert (headers["Content-Length"], headers["Cache-Control"], headers["Connection"]) == (
            "5",
            "no-store",
            "close",
        )
        assert dates.parse(headers["Date"])


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
def test_a_page_or_method_that_is_not_there(
    listener: Listener, method: str, path: str, status: int, allow: str | None
) -> None:
    found, headers, body = ask(listener, method, path)
    assert (found, headers["Allow"]) == (status, allow)
    assert method == "HEAD" or "error" in json.loads(body)


def test_a_web_page_does_not_reach_it_by_a_name_of_its_own(listener: Listener) -> None:
    for host, status in (("localhost:8256", 200), ("[::1]", 200), ("evil.example", 400), ("evil.example:80", 400)):
        assert ask(listener, "GET", "/text", Host=host)[0] == status
    with listening(host="0.0.0.0") as everywhere:
        assert ask(everywhere, "GET", "/text", Host="web-0.example")[0] == 200


def test_a_route_that_raises_is_500_and_reported() -> None:
    failures = []
    with listening(failed=lambda path, error: failures.append((path, str(error)))) as listener:
        status, _, body = ask(listener, "GET", "/broken")
    assert (status, b"defect" in body, failures) == (500, False, [("/broken", "a defect")])


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
def test_a_request_that_cannot_be_read_or_is_too_large_is_refused(
    listener: Listener, data: bytes, status: bytes
) -> None:
    assert throw(listener, data).startswith(b"HTTP/1.1 " + status)


def test_all_forms_of_a_request_are_served(listener: Listener) -> None:
    post, host = b"POST /echo HTTP/1.1\r\n", b"Host: ::1\r\n"
    assert b"fine" in throw(listener, b"GET http://127.0.0.1:80/text?x HTTP/1.1\r\n" + host + b"\r\n")
    assert b"fine" in throw(listener, b"GET /text HTTP/1.0\r\n\r\n")
    twice = throw(listener, post + host + b"X-Header: a\r\nX-Header: b\r\nContent-Length: 2\r\n\r\nhi")
    assert b'"method":"POST","body":"hi","header":"a, b"' in twice
    chunked = post + b"Transfer-Encoding: chunked\r\n" + host + b"\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    assert b'"body":"hello"' in throw(listener, chunked)
    expecting = post + b"Expect: 100-continue\r\nContent-Length: 2\r\n" + host + b"\r\n"
    back = throw(listener, expecting, rest=b"ok")
    assert back.startswith(b"HTTP/1.1 100 ")
    assert b'"body":"ok"' in back


# Slow clients


@pytest.mark.parametrize("data", [b"", b"GET /te", b"POST /echo HTTP/1.1\r\nHost: ::1\r\nContent-Length: 5\r\n\r\nhe"])
def test_a_request_that_does_not_come_to_its_end_is_dropped(data: bytes) -> None:
    with listening(limits=Limits(request_seconds=0.2)) as listener:
        begun = time.monotonic()
        assert throw(listener, data) == b""
        assert 0.1 < time.monotonic() - begun < 5


def test_one_byte_now_and_then_does_not_prolong_a_request() -> None:
    with (
        listening(limits=Limits(request_seconds=0.3)) as listener,
        socket.create_connection(listener.address, 0.05) as connected,
    ):
        connected.sendall(b"GET /text HTTP/1.1\r\nHost: ::1\r\nX: ")

        def dropped() -> bool:
            try:
                connected.sendall(b"x")
                return connected.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(dropped)


def test_a_client_that_does_not_read_the_response_is_dropped() -> None:
    with (
        listening(limits=Limits(request_seconds=0.2)) as listener,
        socket.create_connection(listener.address, SECONDS) as connected,
    ):
        connected.sendall(b"GET /large HTTP/1.1\r\nHost: ::1\r\n\r\n")
        until(lambda: not connections(), what="the connection is given up")


# Many clients


def test_when_all_connections_are_taken_those_that_keep_us_waiting_make_room() -> None:
    with listening(limits=Limits(connections=3, patience_seconds=0.05)) as listener:
        idle = [socket.create_connection(listener.address, SECONDS) for _ in range(3)]
        until(lambda: connections() == 3)
        for _ in range(5):
            assert ask(listener, "GET", "/text")[0] == 200
        until(lambda: connections() <= 3)
        assert idle[0].recv(1) == b""
        for connected in idle:
            connected.close()


def test_a_crowd_is_served_one_after_the_other_and_never_more_at_a_time_than_allowed() -> None:
    inside, most = [], []

    def busy(_: Request) -> Response:
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.01)
        inside.pop()
        return Response.text("done")

    few = Limits(connections=2, patience_seconds=SECONDS)
    with listening({("GET", "/busy"): busy}, limits=few) as listener, ThreadPoolExecutor(20) as crowd:
        statuses = list(crowd.map(lambda _: ask(listener, "GET", "/busy")[0], range(40)))
    assert statuses == [200] * 40
    assert max(most) <= 2


def test_a_connection_whose_request_is_being_served_is_never_dropped_for_others() -> None:
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


def test_it_survives_a_lack_of_descriptors() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FEW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        place = (HOST, int(child.stdout.readline()))
        crowd = [socket.create_connection(place, SECONDS) for _ in range(20)]
        last = crowd.pop()
        last.settimeout(0.5)
        last.sendall(b"GET /text HTTP/1.0\r\n\r\n")
        with pytest.raises(TimeoutError):
            last.recv(1)
        for connected in crowd:
            connected.close()
        last.settimeout(SECONDS)
        with last:
            assert last.recv(15) == b"HTTP/1.1 200 OK"


# Start and end


def test_a_port_that_is_taken_is_an_oserror_and_may_be_tried_again() -> None:
    with socket.create_server((HOST, 0)) as taken:
        listener = Listener(HOST, taken.getsockname()[1], ROUTES, RUNTIME)
        with pytest.raises(OSError, match="in use"):
            listener.start()
    with closing(listener):
        listener.start()
        assert ask(listener, "GET", "/text")[0] == 200


def test_closing_ends_it_at_once_with_all_its_connections() -> None:
    with listening() as listener, socket.create_connection(listener.address, SECONDS) as connected:
        until(connections)
        begun = time.monotonic()
        listener.close()
        listener.close()
        assert time.monotonic() - begun < 5
        assert connected.recv(1) == b""
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(listener.address, SECONDS)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("listener")]
    Listener(HOST, 0, ROUTES, RUNTIME).close()  # one that never started


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_it_listens_on_ipv6_and_ipv4_together() -> None:
    with listening(host="::") as listener:
        for host in ("::1", "127.0.0.1"):
            with socket.create_connection((host, listener.address[1]), SECONDS) as connected:
                connected.sendall(b"GET /text HTTP/1.0\r\n\r\n")
                assert connected.recv(15) == b"HTTP/1.1 200 OK"
