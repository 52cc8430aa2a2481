"""Every request is logged with its response, whatever became of it; and the log itself."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest
from tests.emulator.faulty import SHORT, Faulty, faulty
from tests.metadata.running import APPROVAL, DEADLINE, EVENT_ID, PATH, Client, request

from forenotice.core import errors
from forenotice.emulator.request_log import LoggedRequest, RequestLog
from forenotice.metadata.options import Options

MINUTE = timedelta(minutes=1)


@pytest.fixture
def server() -> Iterator[Faulty]:
    with faulty() as server:
        yield server


@pytest.fixture
def delayed(server: Faulty) -> Iterator[Client]:
    """A guest of an endpoint that is slow."""
    server.switch_on("latency", amount=MINUTE)
    with server.connect() as client:
        yield client


def test_a_poll_is_logged(server: Faulty) -> None:
    server.moving.moved = timedelta(days=1)
    before = monotonic()
    server.ask(headers=("Metadata: true", "X-Twice: a", "X-Twice: b"))
    (asked,) = server.requests
    assert abs(asked.at - server.moving.now()) < timedelta(seconds=5)
    assert before <= asked.monotonic <= asked.answered <= monotonic()
    assert (asked.vm, asked.method, asked.target, asked.api_version) == ("web-0", "GET", PATH, "2020-07-01")
    assert (asked.headers["metadata"], asked.headers["x-twice"]) == ("true", "a, b")
    assert (asked.body, asked.status, asked.fault, asked.event_ids) == (b"", 200, None, ())
    assert (server.requests.polls, server.requests.approvals) == ((asked,), ())
    # The same poll again would otherwise be answered by the bytes that it is, unseen.
    with server.connect() as client:
        for _ in range(3):
            client.send(request())
            assert client.reply().status == 200
    assert [asked.status for asked in server.requests.polls] == [200] * 4


def test_an_approval_is_logged_with_its_ids(server: Faulty) -> None:
    server.ask(method="POST", body=APPROVAL.replace(EVENT_ID.encode(), EVENT_ID.lower().encode()))
    server.ask(method="POST", body=b"{}")
    server.ask(method="POST", body=APPROVAL, headers=())
    assert [(asked.status, asked.event_ids) for asked in server.requests.approvals] == [
        (200, (EVENT_ID,)),
        (400, ()),
        (400, (EVENT_ID,)),
    ]


def test_refused_requests_are_logged(server: Faulty) -> None:
    server.ask(headers=())
    server.ask("/elsewhere")
    server.ask("/metadata/scheduledEvents/?API-version=latest")
    for sent in (
        b"nonsense\r\n\r\n",
        request(method="POST", headers=("Expect: 100-continue", "Content-Length: 9")),
    ):
        with server.connect() as client:
            client.send(sent)
            assert client.reply().status == 400
    assert [(asked.method, asked.status, asked.vm) for asked in server.requests] == [
        ("GET", 400, "web-0"),
        ("GET", 404, "web-0"),
        ("GET", 400, "web-0"),
        ("", 400, "web-0"),
        ("POST", 400, "web-0"),
    ]
    assert server.requests[2].api_version == "latest"
    assert [asked.status for asked in server.requests.polls] == [400, 400]


def test_the_rate_stays_real() -> None:
    with faulty(Options(rate=1, burst=2)) as server:
        assert [server.ask().status for _ in range(3)] == [200, 200, 429]
        assert [asked.status for asked in server.requests] == [200, 200, 429]


def test_a_request_that_was_cut_off_has_no_status(server: Faulty, delayed: Client) -> None:
    delayed.send(request() + request(method="POST", body=APPROVAL))
    assert delayed.is_silent(0.03)
    delayed.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    delayed.socket.close()
    assert server.requests.wait_for(lambda requests: len(requests) == 2, DEADLINE)
    assert [(asked.status, asked.fault) for asked in server.requests] == [(None, "latency"), (None, None)]
    assert server.call(lambda: len(server.faults.interceptors)) == 0
    assert not server.guests.approvals


@pytest.mark.parametrize(("method", "body", "held"), [("GET", b"", False), ("POST", APPROVAL, True)])
def test_only_an_approval_is_held_when_the_client_has_gone(
    server: Faulty, delayed: Client, method: str, body: bytes, held: bool
) -> None:
    delayed.send(request(method=method, body=body))
    assert delayed.is_silent(0.03)
    delayed.socket.close()
    assert server.requests.wait_for(bool, 0.1 if held else DEADLINE) is not held
    assert (server.faults.delayed, len(server.requests)) == (held, not held)


def test_pipelined_requests_keep_their_order_under_latency(server: Faulty) -> None:
    server.switch_on("latency", amount=SHORT, on="polls")
    with server.connect() as client:
        client.send(request() + request("/metadata/versions") + request())
        replies = [client.reply() for _ in range(3)]
    assert b"apiVersions" in replies[1].body
    assert replies[0].body == replies[2].body
    assert [asked.target for asked in server.requests] == [PATH, "/metadata/versions", PATH]


def test_delayed_requests_are_answered_when_the_server_stops(server: Faulty, delayed: Client) -> None:
    delayed.send(request())
    assert delayed.is_silent(0.03)
    stopping = server.stop_soon()
    reply = delayed.reply()
    assert (reply.status, reply["Connection"], delayed.is_closed()) == (200, "close", True)
    stopping.result(DEADLINE)
    assert [asked.status for asked in server.requests] == [200]


# The log


def requested(target: str = "/metadata/scheduledevents", *, body: bytes = b"") -> LoggedRequest:
    return LoggedRequest(
        at=datetime(2026, 1, 1, tzinfo=UTC),
        monotonic=monotonic(),
        answered=monotonic(),
        vm="web-0",
        method="GET",
        target=target,
        api_version="2020-07-01",
        headers={},
        body=body,
        status=200,
        fault=None,
    )


def test_the_log_is_bounded() -> None:
    requests = RequestLog(most=3, most_bytes=1000)
    assert requests.latest(2) == []
    for number in range(5):
        requests.record(requested(str(number)))
    assert [asked.target for asked in requests] == ["2", "3", "4"]
    assert [(place, asked.target) for place, asked in requests.latest(2)] == [(2, "4"), (1, "3")]
    assert [place for place, _ in requests.latest(9)] == [2, 1, 0]
    requests.record(requested("big", body=b"x" * 996))
    assert [asked.target for asked in requests] == ["4", "big"]
    # It is iterated as it is at first.
    for _ in requests:
        requests.record(requested())
    under_way = requested()
    requests.clear()
    # A request that was under way when all was forgotten is forgotten too.
    requests.record(replace(under_way, answered=monotonic()))
    assert len(requests) == 0
    requests.record(requested("5"))
    assert (requests[0].target, requests[-1:]) == ("5", (requests[0],))


def test_requests_are_waited_for_outside_an_event_loop() -> None:
    requests = RequestLog()
    assert not requests.wait_for(lambda asked: bool(asked.polls), 0.01)
    timer = threading.Timer(0.02, lambda: requests.record(requested()))
    timer.start()
    assert requests.wait_for(lambda asked: len(asked.polls) == 1, DEADLINE)
    timer.join()
    assert repr(requests) == "<1 requests: 1 polls, 0 approvals>"

    async def wait() -> None:
        assert await asyncio.to_thread(requests.wait_for, bool, 0)
        requests.wait_for(bool, DEADLINE)

    with pytest.raises(errors.RefusedError, match=r"use `await asyncio.to_thread\(requests.wait_for, ...\)`"):
        asyncio.run(wait())
