"""Both clients and our own server: long polls, the whole life of an event, and a server that goes away."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from time import monotonic

import pytest
from tests.client.both import Make
from tests.metadata.running import EVENT, Running, running, until

from forenotice.client import Appeared, Gone, Pace, Started
from forenotice.core.operations import Event, Status
from forenotice.metadata.options import Options
from forenotice.settings import Address, Listener

RUNNING = replace(EVENT, status=Status.STARTED)
PACE = Pace(interval=0.02, first_pause=0.02, longest_pause=0.02)
WEB_0 = Listener(at=Address(host="127.0.0.1", port=0), vm="web-0")
DB = Listener(at=Address(host="127.0.0.1", port=0), vm="db")


def show_while_held(server: Running, incarnation: int, *events: Event) -> threading.Thread:
    def run() -> None:
        until(lambda: server.server.counters.waiting == 1)
        server.show(incarnation, *events)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.fixture
def server() -> Iterator[Running]:
    with running(listeners=[WEB_0]) as found:
        yield found


def test_the_whole_life_of_an_event_is_told_at_once(make: Make, server: Running) -> None:
    with make(server.url, pace=PACE) as client:
        changes = client.watch(mine=True)
        appeared = next(changes)
        assert isinstance(appeared, Appeared)
        client.approve(appeared.event)
        assert [approval.event_ids for approval in server.guests.approvals] == [(EVENT.id,)]
        for incarnation, events, kind in ((3, [RUNNING], Started), (4, [], Gone)):
            shown = show_while_held(server, incarnation, *events)
            change = next(changes)
            assert isinstance(change, kind)
            assert change.event.id == EVENT.id
            shown.join()
        assert server.server.counters.waits == 2
        assert server.server.counters.polls_2xx < 8


def test_a_wait_that_brings_nothing_is_begun_again(make: Make) -> None:
    options = Options(rate=None, burst=None, wait_cap=0.3)
    with running(listeners=[WEB_0], options=options) as server:
        with make(server.url, pace=replace(PACE, at_once=0.2)) as client:
            first, *more = islice(client.follow(), 4)
        assert first.changed
        assert [(news.changed, news.error) for news in more] == [(False, None)] * 3
        assert all(news.answered_at - news.asked_at > 0.2 for news in more)
        assert server.server.counters.waits == 3


def test_a_server_that_does_not_wait_is_polled(make: Make) -> None:
    with running(listeners=[WEB_0], options=Options(rate=None, burst=None, wait_cap=0)) as server:
        with make(server.url, pace=PACE) as client:
            begun = monotonic()
            list(islice(client.follow(), 20))
            assert monotonic() - begun < 20
        assert server.server.counters.polls_3xx == 19
        assert server.server.counters.waits <= 1


def test_a_server_that_goes_and_comes_back_is_heard_again(make: Make, server: Running) -> None:
    port = server.port
    with make(server.url, pace=PACE) as client:
        changes = client.watch()
        assert isinstance(next(changes), Appeared)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        news = client.follow()
        while next(news).error is None:
            pass
        stopping.join()
        with running(listeners=[Listener(at=Address(host="127.0.0.1", port=port), vm="web-0")]) as again:
            again.show(9, RUNNING)
            assert isinstance(next(changes), Started)


def test_too_many_polls_are_slowed_down_but_not_lost(make: Make) -> None:
    with running(listeners=[WEB_0], options=Options(rate=50, burst=1)) as server:
        with make(server.url, pace=replace(PACE, interval=0, wait=0, longest_retry_after=0.02)) as client:
            news = list(islice(client.follow(), 20))
        errors = [each.error for each in news if each.error]
        assert {error.status for error in errors} == {429}
        assert all(error.retry_after >= 1 for error in errors)
        assert sum(each.error is None for each in news) > 3


def test_a_vm_that_is_not_known_is_told_so(make: Make) -> None:
    with running() as server, make(server.url, pace=PACE) as client:
        (news,) = islice(client.follow(), 1)
    assert news.error is not None
    assert (news.error.status, news.document) == (404, None)
    assert "No VM is known" in news.error.message


def test_the_real_pace_hears_of_a_change_within_a_second(make: Make, server: Running) -> None:
    with make(server.url, pace=Pace()) as client:
        changes = client.watch()
        next(changes)
        server.show(3, RUNNING)
        shown = monotonic()
        assert isinstance(next(changes), Started)
        assert monotonic() - shown < 1.5


def test_nothing_is_heard_of_others(make: Make) -> None:
    with running(listeners=[DB]) as server, make(server.url, pace=PACE) as client:
        assert client.document().events == ()
        assert client.me == "db"


def test_a_server_that_has_not_heard_the_latest_takes_nothing_back(make: Make) -> None:
    """A balancer turns to another one when the first fails; until it has caught up, what was seen holds."""
    with running(listeners=[WEB_0]) as first, make(first.url, pace=PACE) as client:
        first.show(7, RUNNING)
        until(lambda: client.document().incarnation == 7)
        place = Address(host="127.0.0.1", port=first.port)
        first.stop()
        with running(listeners=[Listener(at=place, vm="web-0")]) as second:
            assert [event.started for event in client.events()] == [True]
            second.show(8)
            until(lambda: client.document().incarnation == 8)
