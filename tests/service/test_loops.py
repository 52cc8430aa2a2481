"""The threads of the service, with real time: they tick, move rollouts on, and follow what other processes write."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
import structlog
from tests.postgres import PostgresServer
from tests.service.rig import OPERATOR, Rig, wait_for
from tests.service.rolling import Rolling, request

from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import Kind
from forenotice.core.rollouts import GateResult
from forenotice.drivers.call_queue import CallTerms
from forenotice.failures import WITHIN_SECONDS, Liveness
from forenotice.runtime import Runtime
from forenotice.service import housekeeping, queries, results, rollouts, tick
from forenotice.service.gates import Gates
from forenotice.service.loops import Follower, Loop, watching_for_deaths
from forenotice.service.rollouts import RolloutLoop
from forenotice.service.tick import TickLoop
from forenotice.ssrf import OutgoingClient
from forenotice.store.database import Store
from forenotice.store.opener import open_store


@contextmanager
def running(thread: Any) -> Iterator[None]:
    thread.start()
    try:
        yield
    finally:
        thread.stop()


class Flaky:
    """A store that cannot be reached for a moment, then not understood for another."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.troubles: list[Exception] = [errors.UnavailableError(), ValueError("odd")]

    def __getattr__(self, name: str) -> object:
        if name in ("read", "write") and self.troubles:
            raise self.troubles.pop(0)
        return getattr(self._store, name)


# Every loop


def test_an_error_that_goes_on_is_logged_on_change_and_on_doubling() -> None:
    reasons, wake, over = ["7 s", "7 s", "7 s", "8 s", "away"], threading.Event(), threading.Event()

    def look() -> timedelta:
        wake.set()
        if reasons:
            raise errors.UnavailableError(reasons.pop(0))
        over.set()
        return timedelta(0)

    with structlog.testing.capture_logs() as logs, running(Loop("look", look, wake, Liveness(), Runtime())):
        assert over.wait(60)
    assert [(entry["action"], entry.get("error"), entry["times"]) for entry in logs] == [
        ("look.unavailable", "7 s", 1),
        ("look.unavailable", "7 s", 2),
        ("look.unavailable", "8 s", 4),
        ("look.unavailable", "away", 1),
        ("look.recovered", None, 1),
    ]


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt])
def test_a_thread_that_dies_all_the_same_ends_the_service(death: type[BaseException]) -> None:
    ended = threading.Event()

    def look() -> timedelta:
        raise death

    with watching_for_deaths(ended.set) as dead:
        with running(Loop("doomed", look, threading.Event(), Liveness(), Runtime())):
            assert ended.wait(60)
        assert dead == ["doomed"]


# Ticks


class FailsOnce:
    """A driver that raises at first, then works."""

    calls = 0

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("no such machine")
        return Finished(done=task.vms, failures={})

    def stop(self) -> None: ...


def test_it_starts_drives_and_ends_and_outlives_every_error(store: Store) -> None:
    rig = Rig(store, speed=1000, clock=SystemClock(), driver=FailsOnce()).settle_demo()
    (operation,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    flaky = Flaky(store)
    rig.service.store = cast(Store, flaky)
    with structlog.testing.capture_logs() as logs, running(TickLoop(rig.service)):
        wait_for(lambda: not flaky.troubles and rig.operation(operation).status == "Completed")
    actions = {entry["action"] for entry in logs}
    assert {"tick.unavailable", "tick.failed", "tick.recovered", "driver.failed"} <= actions
    (failed,) = rig.entries(action="driver.failed")
    assert failed.data["failures"]["web-0"] == "RuntimeError: no such machine"


class Accepting:
    """A driver that accepts every call, and reports nothing."""

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
    with running(TickLoop(rig.service, renew_every=timedelta(seconds=0.1))):
        yield rig, driver


def test_an_accepted_call_keeps_its_place_until_its_result_comes_by_callback(sqlite_store: Store) -> None:
    with accepting(sqlite_store) as (rig, driver):
        (operation,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
        wait_for(lambda: len(driver.asked) == 1)
        (other,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-b")
        waits = "1 call to the driver must wait: 1 of at most 1 are under way."
        wait_for(lambda: waits in queries.explain_operation(rig.service, other.id).sentence)
        assert waits in rig.explain(other.events[0].id).sentence
        (task,) = driver.asked
        results.record(rig.service, OPERATOR, task.operation, attempt=1, done=task.vms)
        wait_for(lambda: rig.actions(action="driver.finished") == ["driver.finished"])
        assert rig.operation(operation).failures == {}
        wait_for(lambda: [each.operation for each in driver.asked] == [operation.id, other.id])


def test_a_call_that_is_over_gives_up_its_place_and_one_under_way_is_repeated_after_a_stop(sqlite_store: Store) -> None:
    with accepting(sqlite_store) as (rig, driver):
        (restart,) = rig.schedule(Kind.RESTART, "web-0")
        rig.approve_all(restart)
        wait_for(lambda: [task.operation for task in driver.asked] == [restart.id])
        (failure,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
        # Only when the first has given up its place is there one for the second.
        wait_for(lambda: [task.operation for task in driver.asked] == [restart.id, failure.id])
        assert rig.operation(restart).status == "Failed"
    (task,) = tick.tick(Rig(sqlite_store, clock=rig.clock).service).tasks
    assert task == driver.asked[-1]
    assert rig.actions(action="driver.") == []


# Rollouts


@contextmanager
def rolling(store: Store, gates_at_once: int = 4, **gates: tuple[str, ...]) -> Iterator[Rolling]:
    rig = Rolling(store, speed=1000, clock=SystemClock())
    rig.settle_demo()
    rig.service.gates = Gates(gates, rig.service.outgoing)
    with running(RolloutLoop(rig.service, gates_at_once=gates_at_once)):
        yield rig


def start(rig: Rolling, gate: str | None = None, hosts: str = "*") -> str:
    return str(rollouts.start(rig.service, OPERATOR, request(hosts=hosts, gate=gate)).id)


def test_a_rollout_goes_on_when_something_has_ended_and_through_every_error(sqlite_store: Store) -> None:
    with structlog.testing.capture_logs() as logs, rolling(sqlite_store) as rig:
        found = start(rig)
        flaky = Flaky(sqlite_store)
        rig.service.store = cast(Store, flaky)
        rig.service.tell_growth()
        wait_for(lambda: not flaky.troubles and rig.hosts(found)["host-a"] == "Under way")
        (operation,) = queries.operations(rig.service, live=True).items
        # By the clock it would be looked at in a minute.
        rig.cancel(operation)
        wait_for(lambda: rig.hosts(found)["host-b"] == "Under way")
        assert rig.hosts(found)["host-a"] == "Skipped"
    assert {"roll.unavailable", "roll.failed"} <= {entry["action"] for entry in logs}


def test_gates_are_asked_until_they_are_green(sqlite_store: Store, tmp_path: Path) -> None:
    healthy = tmp_path / "healthy"
    with rolling(sqlite_store, health=("ls", str(healthy))) as rig:
        found = start(rig, "health")
        wait_for(lambda: rig.actions(action="rollout.gate_red") != [])
        assert "Under way" not in rig.hosts(found).values()
        healthy.touch()
        wait_for(lambda: "Under way" in rig.hosts(found).values())


class BrokenGates(Gates):
    def check(self, gate: str, facts: Mapping[str, str], now: datetime) -> GateResult:
        raise RuntimeError("no such thing")


def test_a_gate_that_raises_is_red(sqlite_store: Store) -> None:
    with structlog.testing.capture_logs() as logs, rolling(sqlite_store) as rig:
        rig.service.gates = BrokenGates({"health": ("true",)}, rig.service.outgoing)
        found = start(rig, "health")
        wait_for(lambda: rig.show(found).gate_result is not None)
        assert rig.show(found).gate_result.status == "RuntimeError: no such thing"
    assert "gate.failed" in [entry["action"] for entry in logs]


def test_a_gate_without_a_result_does_not_delay_the_stop(sqlite_store: Store) -> None:
    with rolling(sqlite_store, slow=("sleep", "60")) as rig:
        start(rig, "slow")
        wait_for(lambda: any(thread.name.startswith("gate") for thread in threading.enumerate()))


class SlowGates(Gates):
    def __init__(self, outgoing: OutgoingClient) -> None:
        super().__init__({"health": ("true",)}, outgoing)
        self.asked: list[str] = []
        self.answering = threading.Event()

    def check(self, gate: str, facts: Mapping[str, str], now: datetime) -> GateResult:
        self.asked.append(facts["rollout"])
        self.answering.wait(60)
        return GateResult(green=True, status="well", at=now)


def test_a_gate_is_queued_once_and_only_while_it_is_wanted(sqlite_store: Store) -> None:
    with rolling(sqlite_store, gates_at_once=1) as rig:

        def is_at_rest() -> bool:
            due = rollouts.next_due(rig.service)
            return due is None or due > rig.clock.now()

        slow = rig.service.gates = SlowGates(rig.service.outgoing)
        first = start(rig, "health", "host-a")
        wait_for(lambda: slow.asked == [first])
        second, third = start(rig, "health", "host-b"), start(rig, "health", "host-c")
        wait_for(is_at_rest)
        rollouts.pause(rig.service, OPERATOR, second)
        rollouts.resume(rig.service, OPERATOR, second)
        rollouts.pause(rig.service, OPERATOR, third)
        wait_for(is_at_rest)
        slow.answering.set()
        wait_for(lambda: rig.show(second).gate_result is not None)
        assert slow.asked == [first, second]
        rollouts.resume(rig.service, OPERATOR, third)
        wait_for(lambda: slow.asked == [first, second, third])


# Following other processes


@contextmanager
def following(url: str, **liveness: Any) -> Iterator[tuple[Rig, Rig]]:
    """A server on PostgreSQL, and one that follows it."""
    stores = [open_store(url, migrate=False) for _ in range(2)]
    one, two = (Rig(store, clock=SystemClock()) for store in stores)
    if liveness:
        two.service.liveness = Liveness(**liveness)
    one.add_group("before")
    try:
        with running(Follower(two.service, two.service.refresh())):
            yield one, two
    finally:
        for store in stores:
            store.close()


def test_a_failover_is_survived(postgres_server: PostgresServer, migrated_postgres_url: str) -> None:
    def is_added(name: str) -> bool:
        try:
            return bool(one.add_group(name))
        except errors.UnavailableError:
            return False

    seconds = [0.0]
    with following(migrated_postgres_url, clock=lambda: seconds[0]) as (one, two):
        one.add_group("then")
        wait_for(lambda: "group:then" in two.published.by_key)
        seconds[0] += WITHIN_SECONDS + 1
        wait_for(lambda: not two.service.liveness.silent())
        postgres_server.fall_behind()
        with pytest.raises(errors.UnavailableError):
            one.add_group("meanwhile")
        postgres_server.promote()
        wait_for(lambda: is_added("after"))
        wait_for(lambda: "group:after" in two.published.by_key)
        assert "group:meanwhile" not in two.published.by_key


class Notifying(Flaky):
    """As PostgreSQL: the newest position first, then 0 now and then, until nobody listens."""

    listens = False

    def changes(self, stop: threading.Event) -> Iterator[int]:
        with self._store.read() as reader:
            last = reader.journal.last()
        self.listens = True
        try:
            yield last[0] if last else 0
            while not stop.is_set():
                stop.wait(0.01)
                yield 0
        finally:
            self.listens = False


def test_a_follower_listens_anew_after_an_error_and_not_when_it_has_stopped(sqlite_store: Store) -> None:
    rig, notifying = Rig(sqlite_store), Notifying(sqlite_store)
    follower = Follower(rig.service, rig.service.refresh())
    Rig(sqlite_store).add_group("new")
    rig.service.store = cast(Store, notifying)
    with running(follower):
        wait_for(lambda: "group:new" in rig.published.by_key)
        assert notifying.listens
    assert not notifying.listens


def test_an_epoch_that_began_before_it_listened_is_followed(sqlite_store: Store) -> None:
    """As when two servers start after a restore: nobody was there to be told to read everything anew."""
    rig = Rig(sqlite_store)
    rig.add_group("one")
    follower, before = Follower(rig.service, rig.service.refresh()), _tag(rig, "one")
    housekeeping.begin_epoch(Rig(sqlite_store).service)
    rig.service.store = cast(Store, Notifying(sqlite_store))
    with running(follower):
        wait_for(lambda: _tag(rig, "one") != before)


def _tag(rig: Rig, group: str) -> str:
    document = rig.published.by_key[f"group:{group}"].document
    return "" if document is None else document.tag


NEWEST = "position = (SELECT max(position) FROM journal)"


@pytest.mark.parametrize(
    "lose",
    [
        f"DELETE FROM journal WHERE {NEWEST}",
        # Something else has happened there since, before we looked.
        f"UPDATE journal SET at = at + 1, action = 'group.removed' WHERE {NEWEST}",
    ],
)
def test_a_database_that_lost_entries_begins_an_epoch(migrated_postgres_url: str, lose: str) -> None:
    """As after a failover to a standby that was behind: what guests have seen must not come again as another thing."""
    with following(migrated_postgres_url) as (one, two):
        one.add_group("lost")
        wait_for(lambda: "group:lost" in two.published.by_key)
        with psycopg.connect(migrated_postgres_url) as connection:
            connection.execute(lose)
            connection.execute("DELETE FROM scopes WHERE key = 'group:lost'")
        with psycopg.connect(migrated_postgres_url) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        wait_for(lambda: "group:lost" not in two.published.by_key)
        wait_for(lambda: "." in _tag(two, "before"))
        assert two.actions()[-1] == "database.restored"
