"""The one writer: guests before operators, a time for each, and nothing for whoever has gone away."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from time import monotonic

import pytest
from tests.service.rig import OPERATOR, Rig, wait_for

from forenotice.core import errors, roles
from forenotice.core.operations import Kind
from forenotice.service.service import UnitOfWork
from forenotice.store import database
from forenotice.store.database import GUESTS, OWN, WriteRequest, WriterQueue

PATIENCE = 60
TENANT = replace(OPERATOR, actor="tenant:ada", access=roles.access("tenant", "web"))


class Queue:
    """Threads that wait for a turn while another has it."""

    def __init__(self) -> None:
        self.line = WriterQueue()
        self.order: list[str] = []
        self.pool = ThreadPoolExecutor(8)
        self._begun = 0

    def join(self, name: str, terms: WriteRequest) -> "Future[None]":
        def take() -> None:
            with self.line.turn(terms):
                self.order.append(name)

        joined = self.pool.submit(take)
        self._begun += 1
        wait_for(lambda: len(self.line._waiting) == self._begun or joined.done())
        return joined


def test_guests_go_first_and_others_in_the_order_of_coming() -> None:
    queue = Queue()
    with queue.line.turn(OWN):
        joined = [queue.join(name, terms) for name, terms in (("a", OWN), ("b", OWN), ("vm", GUESTS), ("c", OWN))]
    for each in joined:
        each.result(PATIENCE)
    assert queue.order == ["vm", "a", "b", "c"]


def test_whoever_goes_away_while_it_waits_leaves_its_place() -> None:
    queue, gone = Queue(), threading.Event()
    with queue.line.turn(OWN):
        leaving = queue.join("leaving", WriteRequest(is_connected=lambda: not gone.is_set()))
        staying = queue.join("staying", OWN)
        gone.set()
        with pytest.raises(errors.GoneError):
            leaving.result(PATIENCE)
    staying.result(PATIENCE)
    assert queue.order == ["staying"]


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.05)
    queue = Queue()
    with queue.line.turn(OWN), pytest.raises(errors.UnavailableError, match="writing for too long"):
        queue.join("late", OWN).result(PATIENCE)
    with queue.line.turn(OWN):
        assert queue.order == []


def test_what_takes_longer_than_it_may_is_rolled_back(rig: Rig) -> None:
    before = rig.actions()

    def work(unit: UnitOfWork) -> None:
        unit.transaction.meta.put("key", "value")
        end = monotonic() + PATIENCE
        while monotonic() < end:
            unit.transaction.meta.get("key")

    with pytest.raises(errors.OverdueError, match=r"for more than 0.05 seconds and was rolled back: ask for less"):
        rig.service.transact(work, WriteRequest(seconds=0.05))
    with rig.service.store.read() as reader:
        assert reader.meta.get("key") is None
    assert rig.actions() == before
    # The store is as good as before.
    assert rig.service.writable
    rig.schedule(Kind.RESTART, "db")


def test_a_tenant_has_less_time_than_an_operator(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "TENANTS_WRITE_SECONDS", 0.0)
    with pytest.raises(errors.OverdueError):
        rig.schedule(Kind.RESTART, "web-0", call=TENANT)
    rig.schedule(Kind.RESTART, "web-0")


@pytest.mark.parametrize("key", [None, "k1"])
def test_nothing_is_done_for_whoever_has_gone_away(rig: Rig, key: str | None) -> None:
    before, looks = rig.actions(), iter([True] * 5)
    for wanted in (lambda: False, lambda: next(looks, False)):
        with pytest.raises(errors.GoneError):
            rig.schedule(Kind.RESTART, "db", call=replace(OPERATOR, key=key, is_connected=wanted))
        assert rig.actions() == before
    rig.schedule(Kind.RESTART, "db", call=replace(OPERATOR, key=key))


def test_an_approval_overtakes_the_commands_that_wait(rig: Rig) -> None:
    [operation] = rig.schedule(Kind.RESTART, "web-0")
    event = operation.events[0].id
    line = rig.service.store.writer
    with ThreadPoolExecutor(2) as pool:
        with line.turn(OWN):
            command = pool.submit(rig.schedule, Kind.RESTART, "db")
            wait_for(lambda: len(line._waiting) == 1)
            approval = pool.submit(rig.approve, "web-0", "group:web", event)
            wait_for(lambda: len(line._waiting) == 2)
        assert approval.result(PATIENCE) is None
        command.result(PATIENCE)
    actions = rig.actions()
    assert actions.index("event.approved") < len(actions) - 1 - actions[::-1].index("operation.scheduled")
