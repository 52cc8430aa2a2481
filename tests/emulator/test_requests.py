"""What guests have asked is kept until it is forgotten."""

from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic

from notbefore.emulator.requests import Requested, Requests


def requested() -> Requested:
    return Requested(
        at=datetime(2026, 1, 1, tzinfo=UTC),
        monotonic=monotonic(),
        answered=monotonic(),
        vm="web-0",
        method="GET",
        target="/metadata/scheduledevents",
        api_version="2020-07-01",
        headers={},
        body=b"",
        status=200,
        fault=None,
    )


def test_what_was_under_way_when_all_was_forgotten_is_forgotten_too() -> None:
    requests = Requests()
    requests.record(requested())
    under_way = requested()
    requests.clear()
    requests.record(replace(under_way, answered=monotonic()))
    assert len(requests) == 0
    requests.record(requested())
    assert len(requests.polls) == 1
