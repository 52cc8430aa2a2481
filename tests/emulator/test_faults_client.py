"""Our own clients get over every fault: they notice, go on asking, and know the truth in the end."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.client.both import QUICK, Make, make_async, make_sync
from tests.emulator.faulty import SHORT, Faulty, faulty
from tests.metadata.running import EVENT, EVENT_ID, NOON

from forenotice.client import News
from forenotice.client.errors import EndpointError
from forenotice.core.operations import Status
from forenotice.emulator import faults

STARTED = replace(EVENT, status=Status.STARTED)
HASTY = replace(QUICK, timeout=0.03, wait=0)
ERRORS = ("error-500", "error-503", "error-410", "error-429", "reset", "half-document")


@pytest.fixture(params=[make_sync, make_async], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.fixture
def server() -> Iterator[Faulty]:
    with faulty() as server:
        yield server


def first(news: Iterator[News], *, incarnation: int | None = None, failed: bool = False) -> News:
    """The first of this kind among the next hundred."""
    for _, one in zip(range(100), news, strict=False):
        if failed and one.error is not None:
            return one
        if not failed and one.error is None and one.document and one.document.incarnation == incarnation:
            return one
    raise AssertionError("none of a hundred news was this one")


def statuses(news: News) -> list[str]:
    assert news.document is not None
    return [event.status for event in news.document.events]


@pytest.mark.parametrize("fault", faults.ALL, ids=lambda fault: fault.name)
def test_a_change_is_noticed_in_the_end(server: Faulty, make: Make, fault: faults.Fault) -> None:
    with make(server.url) as client:
        news = client.follow()
        assert statuses(first(news, incarnation=2)) == ["Scheduled"]
        server.switch_on(fault.name, amount=SHORT if fault.amount else None, times=2)
        server.show(3, STARTED)
        server.settle()
        assert statuses(first(news, incarnation=3)) == ["Started"]
        met = [asked for asked in server.requests if asked.fault == fault.name]
        assert len(met) in (1, 2)


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_told_and_nothing_is_gone(server: Faulty, make: Make, name: str) -> None:
    with make(server.url) as client:
        news = client.follow()
        first(news, incarnation=2)
        server.switch_on(name)
        failed = first(news, failed=True)
        assert statuses(failed) == ["Scheduled"]
        server.faults.switch_off()
        assert not first(news, incarnation=2).changed


@pytest.mark.parametrize("name", ["error-500", "error-503", "error-410", "error-429", "reset"])
def test_an_approval_that_failed_is_known_to_have_failed(server: Faulty, make: Make, name: str) -> None:
    with make(server.url) as client:
        client.events()
        server.switch_on(name, on="approvals", times=1)
        with pytest.raises(EndpointError):
            client.approve(EVENT_ID)
        assert not server.guests.approvals
        client.approve(EVENT_ID)
        assert len(server.guests.approvals) == 1
        assert [asked.fault for asked in server.requests.approvals] == [name, None]


def test_an_empty_body_is_no_news(server: Faulty, make: Make) -> None:
    with make(server.url) as client:
        news = client.follow()
        first(news, incarnation=2)
        server.switch_on("empty-body")
        before = len(server.requests)
        while len(server.requests) < before + 5:
            one = next(news)
            assert one.error is None
            assert statuses(one) == ["Scheduled"]


@pytest.mark.parametrize("name", ["iso-dates", "rfc1123-dates", "other-key-order"])
def test_the_forms_of_other_mocks_mean_the_same(server: Faulty, make: Make, name: str) -> None:
    with make(server.url) as client:
        (true,) = client.events(mine=True)
        server.switch_on(name)
        (other,) = client.events(mine=True)
        assert other.deadline == true.deadline == NOON + timedelta(minutes=15)
        assert (other.id, other.resources) == (true.id, true.resources)
        assert server.requests[-1].fault == name


@pytest.mark.parametrize("amount", [timedelta(minutes=5), -timedelta(minutes=5)])
def test_a_skewed_clock_does_not_change_the_seconds_left(server: Faulty, make: Make, amount: timedelta) -> None:
    server.show(3, replace(EVENT, not_before=server.moving.now() + timedelta(minutes=10)))
    server.settle()
    server.switch_on("clock-skew", amount=amount)
    with make(server.url) as client:
        (event,) = client.events()
        assert client.ahead == pytest.approx(amount.total_seconds(), abs=2)
        assert event.seconds_left == pytest.approx(600, abs=3)


def test_a_restarted_incarnation_is_a_new_start(server: Faulty, make: Make) -> None:
    with make(server.url) as client:
        news = client.follow()
        first(news, incarnation=2)
        server.switch_on("incarnation-restart")
        assert statuses(first(news, incarnation=1)) == ["Scheduled"]
        server.show(3, STARTED)
        assert statuses(first(news, incarnation=2)) == ["Started"]


def test_a_stale_document_is_believed_until_it_is_over(server: Faulty, make: Make) -> None:
    with make(server.url) as client:
        news = client.follow()
        first(news, incarnation=2)
        server.switch_on("stale-document")
        server.show(3, STARTED)
        server.settle()
        assert [statuses(next(news)) for _ in range(3)] == [["Scheduled"]] * 3
        server.advance(timedelta(seconds=50))
        assert statuses(first(news, incarnation=3)) == ["Started"]


@pytest.mark.parametrize("name", ["latency", "frozen"])
def test_whoever_gives_up_too_early_asks_again(server: Faulty, make: Make, name: str) -> None:
    with make(server.url, pace=HASTY) as client:
        news = client.follow()
        first(news, incarnation=2)
        server.switch_on(name, amount=timedelta(seconds=10))
        server.show(3, STARTED)
        assert first(news, failed=True).error is not None
        server.faults.switch_off()
        assert statuses(first(news, incarnation=3)) == ["Started"]


def test_a_slow_first_answer_is_waited_for(server: Faulty, make: Make) -> None:
    server.switch_on("slow-first-answer", amount=2 * SHORT)
    with make(server.url, pace=HASTY) as client:
        assert client.document().incarnation == 2
    assert [asked.fault for asked in server.requests] == ["slow-first-answer"]
