"""Our own clients get over every fault: they notice, go on asking, and know the truth in the end."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.client.both import Make, make_async, make_sync
from tests.emulator.faulty import SHORT, Faulty, faulty
from tests.metadata.running import EVENT

from forenotice.client import News
from forenotice.core.operations import Status
from forenotice.emulator import faults

STARTED = replace(EVENT, status=Status.STARTED)
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
