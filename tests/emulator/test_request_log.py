"""What guests have asked is kept until it is forgotten."""

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic

import pytest

from forenotice.core import errors
from forenotice.emulator.request_log import LoggedRequest, RequestLog

DEADLINE = 60.0


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


def test_the_record_is_bounded() -> None:
    requests = RequestLog(most=3, most_bytes=1000)
    for number in range(5):
        requests.record(requested(str(number)))
    assert [asked.target for asked in requests] == ["2", "3", "4"]
    requests.record(requested("big", body=b"x" * 996))
    assert [asked.target for asked in requests] == ["4", "big"]
    requests.clear()
    assert len(requests) == 0
    requests.record(requested("5"))
    assert requests[0].target == "5"
    assert requests[-1:] == (requests[0],)


def test_it_can_be_waited_for() -> None:
    requests = RequestLog()
    assert not requests.wait_for(lambda asked: bool(asked.polls), 0.01)
    timer = threading.Timer(0.02, lambda: requests.record(requested()))
    timer.start()
    assert requests.wait_for(lambda asked: len(asked.polls) == 1, DEADLINE)
    timer.join()
    assert repr(requests) == "<1 requests: 1 polls, 0 approvals>"


def test_it_is_iterated_as_it_is() -> None:
    requests = RequestLog()
    requests.record(requested("1"))
    for _ in requests:
        requests.record(requested("2"))
    assert len(requests) == 2


def test_what_was_under_way_when_all_was_forgotten_is_forgotten_too() -> None:
    requests = RequestLog()
    requests.record(requested())
    under_way = requested()
    requests.clear()
    requests.record(replace(under_way, answered=monotonic()))
    assert len(requests) == 0
    requests.record(requested())
    assert len(requests.polls) == 1


def test_the_latest_with_their_places() -> None:
    requests = RequestLog()
    assert requests.latest(2) == []
    for number in range(4):
        requests.record(requested(str(number)))
    assert [(place, asked.target) for place, asked in requests.latest(2)] == [(3, "3"), (2, "2")]
    assert [place for place, _ in requests.latest(9)] == [3, 2, 1, 0]


def test_waiting_for_requests_does_not_block_an_event_loop() -> None:
    requests = RequestLog()

    async def wait() -> None:
        assert not await asyncio.to_thread(requests.wait_for, bool, 0)
        requests.wait_for(bool, DEADLINE)

    with pytest.raises(errors.RefusedError, match=r"use `await asyncio.to_thread\(requests.wait_for, ...\)`"):
        asyncio.run(wait())
