"""Both clients and our own server: long polls, the whole life of an event, and a server that goes away."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

import pytest
from tests.client.both import Make
from tests.metadata.running import EVENT, Running, running, until

from forenotice.client import Appeared, Gone, Pace, Started
from forenotice.client.negotiation import NEWEST
from forenotice.core.errors import RefusedError
from forenotice.core.operations import Event, Status
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
        counters = server.server.counters
        assert counters.waits == 2
        assert counters.polls_2xx < 8
        assert client.api_version == NEWEST
        assert (counters.polls_4xx, counters.approvals_2xx, counters.approvals_4xx) == (0, 1, 0)
        assert appeared.event.duration_seconds == EVENT.duration
        with pytest.raises(RefusedError):
            client.approve("no id")


def test_the_real_pace_hears_of_a_change_within_a_second(make: Make, server: Running) -> None:
    with make(server.url, pace=Pace()) as client:
        changes = client.watch()
        next(changes)
        server.show(3, RUNNING)
        shown = monotonic()
        assert isinstance(next(changes), Started)
        assert monotonic() - shown < Pace().wait / 2
