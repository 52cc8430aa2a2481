"""HTTP as it comes off the wire: split, pipelined, chunked, expected, old, absolute, too large, too slow, broken."""

import re
import socket
import struct
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.metadata.running import (
    APPROVAL,
    DEADLINE,
    EVENT,
    PATH,
    QUICK,
    Client,
    Running,
    passed,
    request,
    running,
    until,
)

from forenotice.metadata.options import Limits, Options

POST = request(method="POST", body=APPROVAL)
CHUNKED = request(method="POST", headers=("Metadata: true", "Transfer-Encoding: chunked"))
SLOW = Options(rate=None, limits=QUICK)
LARGE = "x" * 20_000


def chunks(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x;ext=1\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("data", [request(), POST, CHUNKED + chunks(APPROVAL, 7)], ids=["get", "post", "chunked"])
def test_it_does_not_matter_where_the_bytes_are_split(shared: Running, data: bytes) -> None:
    with shared.connect() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(1, len(data)):
            client.send(data[:position])
            client.send(data[position:])
            assert client.reply().status == 200


def test_one_byte_at_a_time(shared: Running) -> None:
    with shared.connect() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in POST + request():
            client.send(bytes([byte]))
        assert [client.reply().status, client.reply().status] == [200, 200]


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    with server.connect() as client:
        client.send(request() + POST + request("/nowhere") + request(headers=()) + request("/metadata/versions"))
        assert [client.reply().status for _ in range(5)] == [200, 200, 404, 400, 200]
        client.send(request() * 2000)
        assert {client.reply().status for _ in range(2000)} == {200}


def test_empty_lines_between_requests_are_ignored(shared: Running) -> None:
    with shared.connect() as client:
        client.send(b"\r\n" + request() + b"\r\n\r\n" + request())
        assert [client.reply().status, client.reply().status] == [200, 200]


@pytest.mark.parametrize("before", [b"", request(headers=())])
@pytest.mark.parametrize("blank", [b"\r\n", b"\n", b"\r"])
def test_empty_lines_do_not_go_on_without_end(shared: Running, before: bytes, blank: bytes) -> None:
    with shared.connect() as client:
        client.send(before + blank * 10_000)
        assert [client.reply().status for _ in range(2 if before else 1)] == [400] * (2 if before else 1)
        assert client.is_closed()


def test_nothing_after_a_request_that_closes_is_answered(shared: Running) -> None:
    with shared.connect() as client:
        client.send(request(headers=("Metadata: true", "Connection: close")) + request())
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (200, "close")
        assert client.is_closed()


@pytest.mark.parametrize("size", [1, 5, 4096])
def test_a_chunked_approval(server: Running, size: int) -> None:
    with server.connect() as client:
        client.send(CHUNKED + chunks(APPROVAL, size))
        assert client.reply().status == 200
    assert len(server.guests.approvals) == 1


def test_a_body_with_a_get_is_skipped(shared: Running) -> None:
    with shared.connect() as client:
        client.send(request(body=b"anything") + request())
        assert [client.reply().status, client.reply().status] == [200, 200]


def test_an_expected_continue_is_sent_before_the_body(server: Running) -> None:
    head, body = POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-Continue\r\n\r\n"), APPROVAL
    with server.connect() as client:
        client.send(head.removesuffix(body))
        assert client.reply().status == 100
        client.send(body)
        assert client.reply().status == 200
        # A client that does not wait is not told to go on.
        client.send(head)
        assert client.reply().status == 200
    assert len(server.guests.approvals) == 2


def test_an_expected_continue_waits_for_earlier_answers(server: Running) -> None:
    server.guests.gate.clear()
    head = POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n").removesuffix(APPROVAL)
    with server.connect() as client:
        client.send(POST + head)
        assert client.is_silent()
        server.guests.gate.set()
        assert [client.reply().status, client.reply().status] == [200, 100]
        client.send(APPROVAL)
        assert client.reply().status == 200


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
        client.send(head)
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (status, "close")
        client.send(b"0123456789")
        assert client.is_closed()


def test_http_1_0_closes_unless_told_otherwise(shared: Running) -> None:
    with shared.connect() as client:
        client.send(request(version="1.0"))
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (200, "close")
        assert client.is_closed()
    with shared.connect() as client:
        for _ in range(3):
            client.send(request(version="1.0", headers=("Metadata: true", "Connection: keep-alive")))
            reply = client.reply()
            assert (reply.status, reply["Connection"]) == (200, "keep-alive")


OFFER = ("Metadata: true", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
OFFERS = {
    "get": request(headers=OFFER),
    "post": request(method="POST", headers=OFFER, body=APPROVAL),
    "chunked": request(method="POST", headers=(*OFFER, "Transfer-Encoding: chunked")) + chunks(APPROVAL, 7),
    "old": request(headers=OFFER, version="1.0"),
    "close": request(headers=("Metadata: true", "Connection: upgrade, close", "Upgrade: x")),
}


@pytest.mark.parametrize("kind", OFFERS)
def test_an_offer_to_upgrade_is_passed_over_and_the_connection_closed(server: Running, kind: str) -> None:
    """Java's HttpClient and `curl --http2` offer HTTP/2 with every request in the clear."""
    data = OFFERS[kind]
    cuts = (len(data), 60, len(data) - 3)
    for cut in cuts:
        with server.connect() as client:
            client.send(data[:cut])
            client.send(data[cut:] + request())
            reply = client.reply()
            assert (reply.status, reply["Connection"]) == (200, "close")
            assert client.is_closed()
    assert len(server.guests.approvals) == (len(cuts) if kind in ("post", "chunked") else 0)


AFTER_AN_OFFER = {
    "another": (OFFERS["post"] + OFFERS["post"], 200),
    "connect": (OFFERS["post"] + b"CONNECT a:80 HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    "trailers": (
        request(method="POST", headers=(*OFFER, "Transfer-Encoding: chunked")) + b"0\r\n" + b"a: b\r\n" * 101,
        431,
    ),
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
        client.send(data[cut:])
        assert client.reply().status == status
        assert client.is_closed()
    assert capsys.readouterr().err == ""


def test_an_offer_to_upgrade_does_not_excuse_its_body(server: Running) -> None:
    head = request(method="POST", headers=(*OFFER, "Expect: 100-continue", f"Content-Length: {len(APPROVAL)}"))
    with server.connect() as client:
        client.send(head)
        assert client.reply().status == 100
        client.send(APPROVAL)
        assert client.reply().status == 200
    with server.connect() as client:
        client.send(request(method="POST", headers=(*OFFER, "Transfer-Encoding: chunked")) + b"nonsense\r\n")
        assert client.reply().status == 400
    with server.connect() as client:
        client.send(request(method="POST", headers=OFFER, body=b" " * (65 * 1024)))
        assert "64 KiB" in client.reply().text
    assert len(server.guests.approvals) == 1


def test_a_flood_of_offers_to_upgrade_is_answered_once(shared: Running, capsys: pytest.CaptureFixture[str]) -> None:
    with shared.connect() as client:
        client.send(request(headers=OFFER) * 2400)
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (200, "close")
        assert client.is_closed()
    assert shared.ask().status == 200
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "body",
    [b"\r\n", b"Content-Length: 4\r\n\r\nabcd", b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"],
    ids=["none", "length", "chunked"],
)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_connect_is_no_way_through(
    shared: Running, body: bytes, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is what follows it in the same packet, with a body or without."""
    with shared.connect() as client:
        client.send(f"CONNECT 10.0.0.1:80 HTTP/{version}\r\nHost: x\r\n".encode() + body + request())
        assert client.reply().status == 404
        assert client.is_closed()
    assert capsys.readouterr().err == ""


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


@pytest.mark.parametrize("data", BROKEN)
@pytest.mark.parametrize("before", [b"", request()], ids=["first", "later"])
def test_what_is_not_http_is_refused_and_closed(shared: Running, data: bytes, before: bytes) -> None:
    with shared.connect() as client:
        client.send(before + data)
        if before:
            assert client.reply().status == 200
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (400, "close")
        assert re.search(
            r"Bad request\. (This is not well-formed HTTP/1\.1|Host is given|The only transfer)", reply.text
        )
        assert client.is_closed()
    assert shared.ask().status == 200


@pytest.mark.parametrize(
    "data",
    [
        request(headers=("Metadata: true", f"X-Large: {LARGE}")),
        request(headers=("Metadata: true", *(f"X-{number}: {'y' * 500}" for number in range(40)))),
        request(headers=("Metadata: true", *(f"X-{number}: y" for number in range(101)))),
        request(f"{PATH}&x={LARGE}"),
        f"GET {PATH} HTTP/1.1\r\nX-Unfinished: {LARGE}".encode(),
        f"GET /{LARGE}".encode(),
    ],
    ids=["value", "sum", "number", "target", "unfinished header", "unfinished target"],
)
def test_a_head_that_is_too_large_is_refused(shared: Running, data: bytes) -> None:
    with shared.connect() as client:
        for start in range(0, len(data), 3000):
            client.send(data[start : start + 3000])
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (431, "close")
    with shared.connect() as client:
        client.send(data)
        assert client.reply().status == 431 or client.is_closed()


def test_a_head_of_many_small_headers_is_served(shared: Running) -> None:
    assert shared.ask(headers=("Metadata: true", *(f"X-{number}: y" for number in range(90)))).status == 200


@pytest.mark.parametrize("expect", [(), ("Expect: 100-continue",)])
def test_a_body_that_is_too_large_is_refused(server: Running, expect: tuple[str, ...]) -> None:
    body = b" " * (64 * 1024) + APPROVAL
    with server.connect() as client:
        client.send(request(method="POST", headers=("Metadata: true", *expect), body=body))
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (400, "close")
        assert "64 KiB" in reply.text
        assert client.is_closed()
    assert server.guests.approvals == []


def test_a_body_of_the_largest_size_is_taken(server: Running) -> None:
    with server.connect() as client:
        client.send(request(method="POST", body=APPROVAL.ljust(64 * 1024)))
        assert client.reply().status == 200


def test_a_chunked_body_that_is_too_large_is_refused(server: Running) -> None:
    with server.connect() as client:
        client.send(CHUNKED + chunks(b" " * (65 * 1024), 1024))
        assert client.reply().status == 400
    with server.connect() as client:
        client.send(CHUNKED + b"1;" + b"x" * 100_000)
        assert client.is_silent()
        client.send(b"x" * 1_000_000)
        assert client.reply().status == 400
    assert server.guests.approvals == []


def test_trailers_are_limited_like_headers(shared: Running) -> None:
    with shared.connect() as client:
        client.send(CHUNKED + b"0\r\n" + b"T: x\r\n" * 200 + b"\r\n")
        assert client.reply().status == 431


def test_a_large_body_after_a_refusing_gate_is_told_of_that_gate(shared: Running) -> None:
    with shared.connect() as client:
        client.send(request(method="POST", headers=(), body=b"x" * 100_000))
        assert "metadata header" in client.reply().text


# Clients that are too slow, with limits that tests can wait for


@pytest.mark.parametrize("data", [b"", b"GET /meta", POST[:-5], CHUNKED + b"5\r\nab"])
def test_a_request_that_does_not_come_is_cut_off(data: bytes) -> None:
    with running(options=SLOW) as server, server.connect() as client:
        client.send(data)
        assert client.is_closed()
        until(lambda: server.server.counters.open == 0)


def test_a_request_that_trickles_in_is_cut_off_too() -> None:
    with running(options=SLOW) as server, server.connect() as client:

        def is_cut() -> bool:
            try:
                client.send(b"X-Slow: 1\r\n")
            except OSError:
                return True
            return False

        client.send(b"GET / HTTP/1.1\r\n")
        until(is_cut)
        assert server.server.counters.cut == 1


def test_a_connection_between_requests_may_rest_longer() -> None:
    with running(options=SLOW) as server, server.connect() as client:
        for _ in range(3):
            client.send(request())
            assert client.reply().status == 200
            assert client.is_silent(0.5)
        assert client.is_closed()
        assert server.server.counters.cut == 0


def test_an_answer_that_comes_late_does_not_count_against_the_client() -> None:
    with running(options=SLOW) as server, server.connect() as client:
        server.guests.gate.clear()
        client.send(POST)
        assert client.is_silent(1.2)
        server.guests.gate.set()
        assert client.reply().status == 200


def test_a_client_that_never_stops_sending_requests_is_not_slow() -> None:
    with running(options=SLOW) as server, server.connect() as client:
        whole = request()
        pending = whole[:50]
        client.send(pending)
        for _ in range(12):
            assert client.is_silent(0.1)
            client.send(whole[50:] + pending)
            assert client.reply().status == 200


def test_a_client_that_does_not_read_its_answers_is_cut_off() -> None:
    limits = Limits(request_seconds=0.5, sweep_seconds=0.1, write_bytes=4096)
    with running(options=Options(rate=None, limits=limits)) as server:
        connected = socket.socket()
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connected.settimeout(DEADLINE)
        connected.bind(("127.1.0.21", 0))
        connected.connect(("127.0.0.1", server.port))
        with Client(connected) as client:
            connected.settimeout(1)
            with pytest.raises(OSError, match=r"timed out|reset|Broken"):
                client.send(request() * 400_000)
            until(lambda: server.server.counters.open == 0)
        assert server.server.counters.cut == 1
        assert server.ask().status == 200


def test_answers_that_nobody_reads_are_noticed_long_before_the_system_has_kept_a_megabyte() -> None:
    limits = Limits(request_seconds=0.3, sweep_seconds=0.1)
    with running(options=Options(rate=None, limits=limits)) as server, server.connect() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(request() * 2000)
        until(lambda: server.server.counters.cut == 1)


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


def test_a_client_that_reads_slowly_gets_everything() -> None:
    with running(options=Options(rate=None, limits=Limits(write_bytes=2048))) as server, server.connect() as client:
        client.send(request() * 3000)
        assert {client.reply().status for _ in range(3000)} == {200}


def test_a_client_that_is_reset_is_forgotten(shared: Running) -> None:
    client = shared.connect()
    client.send(request()[:20])
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    until(lambda: shared.server.counters.open == 0)


def test_a_client_that_ends_in_the_middle_is_forgotten(shared: Running) -> None:
    for data in (b"GET /meta", POST[:-5]):
        with shared.connect() as client:
            client.send(data)
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_closed()


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
        client.send(request())
        assert client.reply().status == 200
    until(lambda: shared.server.counters.open == 0)
