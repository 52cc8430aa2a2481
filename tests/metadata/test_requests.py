"""HTTP as it comes off the wire: split, pipelined, chunked, expected, old, absolute, too large, too slow, broken."""

import socket
import struct
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.metadata.running import APPROVAL, EVENT, PATH, QUICK, Running, passed, request, running, until

from forenotice.metadata.options import Limits, Options

POST = request(method="POST", body=APPROVAL)
CHUNKED = request(method="POST", headers=("Metadata: true", "Transfer-Encoding: chunked"))
SLOW = Options(rate=None, limits=QUICK)
LARGE = "x" * 20_000


def chunks(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x;ext=1\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "approvals"),
    [(request(), 0), (POST, 1), (CHUNKED + chunks(APPROVAL, 7), 1)],
    ids=["get", "post", "chunked"],
)
def test_it_does_not_matter_where_the_bytes_are_split(shared: Running, data: bytes, approvals: int) -> None:
    before = len(shared.guests.approvals)
    with shared.connect() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(1, len(data)):
            client.send(data[:position])
            assert client.ask(data[position:]).status == 200
    assert len(shared.guests.approvals) == before + approvals * (len(data) - 1)


OFFER = ("Metadata: true", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
OFFERED_CHUNKS = request(method="POST", headers=(*OFFER, "Transfer-Encoding: chunked"))
OFFERS = {
    "get": request(headers=OFFER),
    "post": request(method="POST", headers=OFFER, body=APPROVAL),
    "chunked": OFFERED_CHUNKS + chunks(APPROVAL, 7),
    "old": request(headers=OFFER, version="1.0"),
    "close": request(headers=("Metadata: true", "Connection: upgrade, close", "Upgrade: x")),
}
BROKEN = [
    b"\x00\x01\x02\x03",
    b"GARBAGE\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /metadata/scheduledevents\r\n\r\n",
    b"GET /x HTTP/2.0\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /x HTTP/1.1\nHost: x\n\n",
    b"GET /x HTTP/1.1\r\nHost x\r\n\r\n",
    b"GET /x HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
    b"GET /x HTTP/1.1\r\nA: \x00\r\n\r\n",
    b"POST /x HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /x HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
    b"POST /x HTTP/1.1\r\nContent-Length: -3\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    CHUNKED + b"nonsense\r\n",
    CHUNKED.replace(b": chunked", b": gzip, chunked"),
    CHUNKED.replace(b": chunked", b": chunked\r\nTransfer-Encoding: chunked"),
    request(headers=("Metadata: true", "Host: x")),
    request(headers=("Metadata: true", "Host: 169.254.169.254")),
    CHUNKED + b"-1\r\n",
]
BLANKS = {f"endless {blank!r}": (blank * 10_000, [400]) for blank in (b"\r\n", b"\n", b"\r")}
NOT_HTTP = {f"not HTTP {data[:40]!r} {number}": (data, [400]) for number, data in enumerate(BROKEN)}
CONNECTS = {
    f"CONNECT {version} {name}": (
        f"CONNECT 10.0.0.1:80 HTTP/{version}\r\nHost: x\r\n".encode() + body + request(),
        [404],
    )
    for version in ("1.0", "1.1")
    for name, body in (
        ("bare", b"\r\n"),
        ("length", b"Content-Length: 4\r\n\r\nabcd"),
        ("chunked", b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"),
    )
}
TOO_LARGE = {
    "value": request(headers=("Metadata: true", f"X-Large: {LARGE}")),
    "sum": request(headers=("Metadata: true", *(f"X-{number}: {'y' * 500}" for number in range(40)))),
    "number": request(headers=("Metadata: true", *(f"X-{number}: y" for number in range(101)))),
    "target": request(f"{PATH}&x={LARGE}"),
    "unfinished header": f"GET {PATH} HTTP/1.1\r\nX-Unfinished: {LARGE}".encode(),
    "unfinished target": f"GET /{LARGE}".encode(),
    "trailers": CHUNKED + b"0\r\n" + b"T: x\r\n" * 200 + b"\r\n",
}
SERVED = {
    "pipelined": (
        request() + POST + request("/nowhere") + request(headers=()) + request("/metadata/versions"),
        [200, 200, 404, 400, 200],
    ),
    "many pipelined": (request() * 2000, [200] * 2000),
    "empty lines between": (b"\r\n" + request() + b"\r\n\r\n" + request(), [200, 200]),
    "a body with a GET": (request(body=b"anything") + request(), [200, 200]),
    "HTTP/1.0 kept": (request(version="1.0", headers=("Metadata: true", "Connection: keep-alive")) * 3, [200] * 3),
    "90 small headers": (request(headers=("Metadata: true", *(f"X-{number}: y" for number in range(90)))), [200]),
    "the largest body": (request(method="POST", body=APPROVAL.ljust(64 * 1024)), [200]),
}
CLOSED = {
    **BLANKS,
    **{f"later {name}": (request(headers=()) + data, [400, *statuses]) for name, (data, statuses) in BLANKS.items()},
    **NOT_HTTP,
    **{f"later {name}": (request() + data, [200, *statuses]) for name, (data, statuses) in NOT_HTTP.items()},
    **CONNECTS,
    "after a close": (request(headers=("Metadata: true", "Connection: close")) + request(), [200]),
    "HTTP/1.0": (request(version="1.0"), [200]),
    "a large body": (request(method="POST", body=b" " * (64 * 1024) + APPROVAL), [400]),
    "a large body that is expected": (
        request(method="POST", headers=("Metadata: true", "Expect: 100-continue"), body=b" " * (64 * 1024) + APPROVAL),
        [400],
    ),
    "large chunks": (CHUNKED + chunks(b" " * (65 * 1024), 1024), [400]),
    "a flood of offers": (request(headers=OFFER) * 2400, [200]),
    "an offer with bad chunks": (OFFERED_CHUNKS + b"nonsense\r\n", [400]),
    "an offer with a large body": (request(method="POST", headers=OFFER, body=b" " * (65 * 1024)), [400]),
}


@pytest.mark.parametrize("name", SERVED)
def test_requests_are_answered_in_order_and_the_connection_stays(shared: Running, name: str) -> None:
    sent, statuses = SERVED[name]
    with shared.connect() as client:
        client.send(sent)
        replies = [client.reply() for _ in statuses]
        assert [reply.status for reply in replies] == statuses
        assert replies[-1].headers.get("connection", "keep-alive") == "keep-alive"


@pytest.mark.parametrize("name", CLOSED)
def test_the_last_answer_says_that_the_connection_is_closed(
    shared: Running, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sent, statuses = CLOSED[name]
    before = len(shared.guests.approvals)
    with shared.connect() as client:
        client.send(sent)
        replies = [client.reply() for _ in statuses]
        assert [reply.status for reply in replies] == statuses
        assert replies[-1]["Connection"] == "close"
        assert client.is_closed()
    assert shared.ask().status == 200
    assert (len(shared.guests.approvals), capsys.readouterr().err) == (before, "")


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_head_that_is_too_large_is_refused(shared: Running, name: str) -> None:
    data = TOO_LARGE[name]
    with shared.connect() as client:
        for start in range(0, len(data), 3000):
            client.send(data[start : start + 3000])
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (431, "close")
    with shared.connect() as client:
        assert client.ask(data).status == 431 or client.is_closed()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GARBAGE\r\n\r\n", "not well-formed HTTP/1.1"),
        (request(headers=("Metadata: true", "Host: x")), "Host is given"),
        (CHUNKED.replace(b": chunked", b": gzip, chunked"), "transfer coding"),
        (request(method="POST", body=b" " * (65 * 1024)), "64 KiB"),
        # A large body after a refusing check is told of that check.
        (request(method="POST", headers=(), body=b"x" * 100_000), "metadata header"),
    ],
)
def test_a_refusal_says_what_is_wrong(shared: Running, data: bytes, said: str) -> None:
    with shared.connect() as client:
        client.send(data)
        assert said in client.reply().text


def test_an_expected_continue_is_sent_before_the_body(server: Running) -> None:
    head, body = POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-Continue\r\n\r\n"), APPROVAL
    with server.connect() as client:
        assert client.ask(head.removesuffix(body)).status == 100
        assert client.ask(body).status == 200
        # A client that does not wait is not told to go on.
        assert client.ask(head).status == 200
    assert len(server.guests.approvals) == 2


def test_an_expected_continue_waits_for_earlier_answers(server: Running) -> None:
    server.guests.gate.clear()
    head = POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n").removesuffix(APPROVAL)
    with server.connect() as client:
        client.send(POST + head)
        assert client.is_silent()
        server.guests.gate.set()
        assert [client.reply().status, client.reply().status] == [200, 100]
        assert client.ask(APPROVAL).status == 200


@pytest.mark.parametrize(
    ("target", "headers", "source", "status"),
    [
        ("/nowhere", ("Metadata: true",), "127.1.0.21", 404),
        (PATH, (), "127.1.0.21", 400),
        (PATH, ("Metadata: true",), "127.9.9.9", 404),
    ],
)
def test_who_is_refused_is_not_asked_for_the_body(
    shared: Running, target: str, headers: tuple[str, ...], source: str, status: int
) -> None:
    head = request(target, method="POST", headers=(*headers, "Expect: 100-continue", "Content-Length: 10"))
    with shared.connect(source) as client:
        reply = client.ask(head)
        assert (reply.status, reply["Connection"]) == (status, "close")
        client.send(b"0123456789")
        assert client.is_closed()


@pytest.mark.parametrize("kind", OFFERS)
def test_an_offer_to_upgrade_is_passed_over_and_the_connection_closed(server: Running, kind: str) -> None:
    """Java's HttpClient and `curl --http2` offer HTTP/2 with every request in the clear."""
    data = OFFERS[kind]
    cuts = (len(data), 60, len(data) - 3)
    for cut in cuts:
        with server.connect() as client:
            client.send(data[:cut])
            reply = client.ask(data[cut:] + request())
            assert (reply.status, reply["Connection"]) == (200, "close")
            assert client.is_closed()
    assert len(server.guests.approvals) == (len(cuts) if kind in ("post", "chunked") else 0)


AFTER_AN_OFFER = {
    "another": (OFFERS["post"] + OFFERS["post"], 200),
    "connect": (OFFERS["post"] + b"CONNECT a:80 HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    "trailers": (OFFERED_CHUNKS + b"0\r\n" + b"a: b\r\n" * 101, 431),
}


@pytest.mark.parametrize("kind", AFTER_AN_OFFER)
def test_what_comes_with_the_end_of_an_offers_head(
    shared: Running, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, status = AFTER_AN_OFFER[kind]
    cut = data.index(b"\r\n\r\n") + 3
    with shared.connect() as client:
        client.send(data[:cut])
        assert client.is_silent()
        assert client.ask(data[cut:]).status == status
        assert client.is_closed()
    assert capsys.readouterr().err == ""


def test_an_offer_to_upgrade_does_not_excuse_its_body(server: Running) -> None:
    head = request(method="POST", headers=(*OFFER, "Expect: 100-continue", f"Content-Length: {len(APPROVAL)}"))
    with server.connect() as client:
        assert client.ask(head).status == 100
        assert client.ask(APPROVAL).status == 200
    assert len(server.guests.approvals) == 1


def test_extensions_of_chunks_are_limited(server: Running) -> None:
    with server.connect() as client:
        client.send(CHUNKED + b"1;" + b"x" * 100_000)
        assert client.is_silent()
        assert client.ask(b"x" * 1_000_000).status == 400
    assert server.guests.approvals == []


# Clients that are too slow, with limits that tests can wait for


def test_a_request_that_does_not_come_or_trickles_in_is_cut_off() -> None:
    with running(options=SLOW) as server, ExitStack() as stack:
        for data in (b"", b"GET /meta", POST[:-5], CHUNKED + b"5\r\nab"):
            stack.enter_context(server.connect()).send(data)
        client = stack.enter_context(server.connect())

        def is_cut() -> bool:
            try:
                client.send(b"X-Slow: 1\r\n")
            except OSError:
                return True
            return False

        client.send(b"GET / HTTP/1.1\r\n")
        until(is_cut)
        until(lambda: server.server.counters.open == 0)
        assert server.server.counters.cut == 4


def test_a_connection_between_requests_may_rest_longer_and_a_late_response_does_not_count() -> None:
    with running(options=SLOW) as server, server.connect() as client, server.connect() as other:
        server.guests.gate.clear()
        other.send(POST)
        for _ in range(3):
            assert client.ask(request()).status == 200
            assert client.is_silent(0.5)
        assert client.is_closed()
        assert server.server.counters.cut == 0
        server.guests.gate.set()
        assert other.reply().status == 200


def test_a_client_that_never_stops_sending_requests_is_not_slow() -> None:
    with running(options=SLOW) as server, server.connect() as client:
        whole = request()
        client.send(whole[:50])
        for _ in range(12):
            assert client.is_silent(0.1)
            assert client.ask(whole[50:] + whole[:50]).status == 200


def test_answers_that_nobody_reads_are_noticed_long_before_the_system_has_kept_a_megabyte() -> None:
    limits = Limits(request_seconds=0.3, sweep_seconds=0.1)
    with running(options=Options(rate=None, limits=limits)) as server, server.connect() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(request() * 2000)
        until(lambda: server.server.counters.cut == 1)
        assert server.ask().status == 200


def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    limits = Limits(request_seconds=2.5, sweep_seconds=0.1, write_bytes=4096)
    with running(options=Options(rate=None, limits=limits)) as server, server.connect() as client:
        # Few and long: making the document must not take longer than the limit, also on a busy machine.
        long = replace(EVENT, description="x" * 6000)
        events = [replace(long, id=f"C7061BAC-AFDC-4513-B24B-{number:012X}") for number in range(4000)]
        server.show(3, *events)
        server.settle()
        client.send(request())
        for _ in range(12):
            paced = passed(0.25)
            client.take(700_000)
            until(paced)
        assert client.reply().status == 200
        assert server.server.counters.cut == 0


@pytest.mark.parametrize("data", [b"GET /meta", POST[:-5]])
@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_leaves_in_the_middle_is_forgotten(shared: Running, data: bytes, reset: bool) -> None:
    with shared.connect() as client:
        client.send(data)
        if reset:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_closed()
    until(lambda: shared.server.counters.open == 0)


PIECES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            request(),
            POST,
            CHUNKED,
            b"GET ",
            b"POST ",
            PATH.encode(),
            b" HTTP/1.1\r\n",
            b"\r\n",
            b"Metadata: true\r\n",
            b"Content-Length: 5\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Expect: 100-continue\r\n",
            b"Connection: upgrade\r\nUpgrade: x\r\n",
            b"5\r\nabcde\r\n",
            b"0\r\n\r\n",
            b"\x00",
            b"%",
        ]
    ),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(PIECES, max_size=8).map(b"".join), min_size=1, max_size=3))
def test_nothing_that_is_sent_keeps_the_next_client_from_being_served(shared: Running, sent: list[bytes]) -> None:
    with shared.connect() as client:
        try:
            for data in sent:
                client.send(data)
            client.socket.shutdown(socket.SHUT_WR)
            while client.socket.recv(65536):
                pass
        except OSError:
            pass
    with shared.connect() as client:
        assert client.ask(request()).status == 200
    until(lambda: shared.server.counters.open == 0)


def test_what_a_guest_has_sent_is_not_in_the_log_of_a_defect(server: Running) -> None:
    """asyncio logs the connection in which there was one."""
    with server.connect() as client:
        assert client.ask(request(headers=("Metadata: true", "X: secret"))).status == 200
        (connection,) = server.server._endpoint.connections.open
        assert "secret" not in repr(connection)
