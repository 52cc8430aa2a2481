"""The thread that ticks, with real time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import cast

import pytest
import structlog
from tests.service.rig import OPERATOR, Rig

from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import Kind
from forenotice.drivers.call_queue import CallTerms
from forenotice.liveness import Liveness
from forenotice.runtime import Runtime
from forenotice.service import history, maintenance, queries, results, tick
from forenotice.service.loops import Loop, watching_for_deaths
from forenotice.service.tick import TickLoop
from forenotice.store.database import Store

PATIENCE = 60


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        pause.wait(0.02)


def is_over(rig: Rig) -> bool:
    return not queries.operations(rig.service, live=True).items


def test_it_starts_drives_and_ends(store: Store) -> None:
    rig = Rig(store, speed=1000, clock=SystemClock()).settle_demo()
    ticker = TickLoop(rig.service)
    ticker.start()
    try:
        rig.schedule(Kind.RESTART, "web-0")
        wait_for(lambda: is_over(rig))
        assert rig.actions(action="operation.completed") == ["operation.completed"]
    finally:
        ticker.stop()


class Broken:
    """Raises at first, then works."""

    def __init__(self) -> None:
        self.calls = 0

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("no such machine")
        return Finished(done=task.vms, failures={})

    def stop(self) -> None: ...


def test_a_driver_that_raises_is_a_try_that_failed(store: Store) -> None:
    rig = Rig(store, clock=SystemClock(), driver=Broken()).settle_demo()
    ticker = TickLoop(rig.service)
    with structlog.testing.capture_logs() as logs:
        ticker.start()
        try:
            rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
            wait_for(lambda: is_over(rig))
        finally:
            ticker.stop()
    assert "driver.failed" in [entry["action"] for entry in logs]
    (failed,) = history.page(rig.service, action="driver.failed").items
    assert failed.data["failures"]["web-0"] == "RuntimeError: no such machine"


class Flaky:
    """A store that cannot be reached for a moment, then not understood for another."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.troubles: list[Exception] = [errors.UnavailableError(), ValueError("odd")]

    def __getattr__(self, name: str) -> object:
        if name in ("read", "write") and self.troubles:
            raise self.troubles.pop(0)
        return getattr(self._store, name)


@pytest.mark.parametrize("kind", [Kind.HARDWARE_FAILURE])
def test_it_outlives_every_error(store: Store, kind: Kind) -> None:
    rig = Rig(store, speed=1000, clock=SystemClock()).settle_demo()
    rig.schedule(kind, "host-a")
    rig.service.store = cast(Store, Flaky(store))
    ticker = TickLoop(rig.service)
    with structlog.testing.capture_logs() as logs:
        ticker.start()
        try:
            wait_for(lambda: not cast(Flaky, rig.service.store).troubles and is_over(rig))
        finally:
            ticker.stop()
    assert {"tick.unavailable", "tick.failed", "tick.recovered"} <= {entry["action"] for entry in logs}


def test_an_error_that_goes_on_is_logged_on_change_and_on_doubling() -> None:
    reasons, wake, over = ["7 s", "7 s", "7 s", "8 s", "away"], threading.Event(), threading.Event()

    def look() -> timedelta:
        wake.set()
        if reasons:
            raise errors.UnavailableError(reasons.pop(0))
        over.set()
        return timedelta(0)

    loop = Loop("look", look, wake, Liveness(), Runtime())
    with structlog.testing.capture_logs() as logs:
        loop.start()
        assert over.wait(60)
        loop.stop()
    assert [(entry["action"], entry.get("error"), entry["times"]) for entry in logs] == [
        ("look.unavailable", "7 s", 1),
        ("look.unavailable", "7 s", 2),
        ("look.unavailable", "8 s", 4),
        ("look.unavailable", "away", 1),
        ("look.recovered", None, 1),
    ]


class Accepting:
    """Accepts whatever it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Task] = []

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        self.asked.append(task)
        return NotYet(again_at=now + timedelta(hours=1))

    def stop(self) -> None: ...


@contextmanager
def accepting(store: Store) -> Iterator[tuple[Rig, Accepting]]:
    """One call at a time."""
    driver = Accepting()
    terms = CallTerms(at_once=1, awaits_results=True)
    rig = Rig(store, clock=SystemClock(), driver=driver, terms=terms).settle_demo()
    ticker = TickLoop(rig.service, renew_every=timedelta(seconds=0.1))
    ticker.start()
    try:
        yield rig, driver
    finally:
        ticker.stop()


def test_an_accepted_call_keeps_its_place_until_its_result_comes_by_callback(sqlite_store: Store) -> None:
    with accepting(sqlite_store) as (rig, driver):
        (operation,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
        wait_for(lambda: len(driver.asked) == 1)
        (other,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-b")
        waits = "1 call to the driver must wait: 1 of at most 1 are under way."
        wait_for(lambda: waits in queries.explain_operation(rig.service, other.id).sentence)
        assert waits in queries.explain_event(rig.service, other.events[0].id).sentence
        (task,) = driver.asked
        results.record(rig.service, OPERATOR, task.operation, attempt=1, done=task.vms)
        wait_for(lambda: rig.actions(action="driver.finished") == ["driver.finished"])
        assert queries.operation(rig.service, operation.id).failures == {}
        wait_for(lambda: [each.operation for each in driver.asked] == [operation.id, other.id])


def test_nobody_waits_for_what_is_over(sqlite_store: Store) -> None:
    with accepting(sqlite_store) as (rig, driver):
        (restart,) = rig.schedule(Kind.RESTART, "web-0")
        maintenance.approve(rig.service, OPERATOR, restart.events[0].id)
        wait_for(lambda: [task.operation for task in driver.asked] == [restart.id])
        (failure,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
        # Only when the first has given up its place is there one for the second.
        wait_for(lambda: [task.operation for task in driver.asked] == [restart.id, failure.id])
        assert queries.operation(rig.service, restart.id).status == "Failed"


def test_what_was_under_way_when_it_stopped_is_asked_for_again(sqlite_store: Store) -> None:
    with accepting(sqlite_store) as (rig, driver):
        rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
        wait_for(lambda: len(driver.asked) == 1)
    again = Rig(sqlite_store, clock=rig.clock)
    (task,) = tick.tick(again.service).tasks
    assert task == driver.asked[0]
    assert rig.actions(action="driver.") == []


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt])
def test_a_thread_that_dies_all_the_same_ends_the_service(death: type[BaseException]) -> None:
    ended = threading.Event()

    def look() -> timedelta:
        raise death

    with watching_for_deaths(ended.set) as dead:
        loop = Loop("doomed", look, threading.Event(), Liveness(), Runtime())
        loop.start()
        assert ended.wait(60)
    assert dead == ["doomed"]
    loop.stop()
