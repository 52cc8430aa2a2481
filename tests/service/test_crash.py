"""A process that dies leaves nothing undone; a slow one takes no notice away; two on one database do nothing twice."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from tests.service.rig import OPERATOR, START, ManualClock, Rig, wait_for

from forenotice import runtime
from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.service import housekeeping, queries, tick
from forenotice.service.loops import Follower
from forenotice.store.database import Store
from forenotice.store.opener import open_store
from forenotice.store.transaction import Transaction

pytestmark = pytest.mark.both_databases

NOTICE = timedelta(minutes=15)
KEYED = replace(OPERATOR, key="k", digest="a")


def test_what_had_started_goes_on_under_the_same_id(rig: Rig) -> None:
    (operation,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    (task,) = tick.tick(rig.service).tasks
    again = Rig(rig.service.store, clock=rig.clock)
    assert not tick.tick(again.service).tasks
    housekeeping.resume(again.service, alone=True)
    (repeated,) = tick.tick(again.service).tasks
    assert (repeated.operation, repeated.attempt) == (task.operation, task.attempt) == (operation.id, 1)


def test_a_claim_lapses_unless_it_is_renewed_or_given_up(rig: Rig) -> None:
    rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    (task,) = tick.tick(rig.service).tasks
    other = Rig(rig.service.store, clock=rig.clock)
    rig.clock.advance(seconds=10)
    tick.renew_claims(rig.service, [task.operation])
    rig.clock.advance(seconds=10)
    assert not tick.tick(other.service).tasks
    # A clock that jumps takes no claim away from a process that works on it.
    rig.clock.advance(seconds=20)
    assert not tick.tick(rig.service, under_way=[task.operation]).tasks
    assert not tick.tick(other.service).tasks
    tick.give_up_claims(rig.service)
    assert len(tick.tick(other.service).tasks) == 1
    rig.clock.advance(seconds=16)
    assert len(tick.tick(rig.service).tasks) == 1


def test_a_result_that_comes_too_late_changes_nothing(rig: Rig) -> None:
    rig.approve_all(*rig.schedule(Kind.RESTART, "web-0"))
    (task,) = tick.tick(rig.service).tasks
    rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    rig.clock.advance(seconds=20)
    outcome = rig.driver.carry_out(task, rig.clock.now())
    tick.tick(rig.service, [(task, outcome)])
    assert queries.operation(rig.service, task.operation).status == "Failed"
    tick.tick(rig.service, [(replace(task, operation="unheard-of"), outcome)])


def test_for_a_while_after_start_up_nothing_starts_by_expiry_alone(rig: Rig) -> None:
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    rig.clock.advance(minutes=20)
    again = Rig(rig.service.store, clock=rig.clock)
    again.run(25)
    assert again.operation(operation).status == "Scheduled"
    assert "since the service started" in again.explain(operation.events[0].id).sentence
    again.run(10)
    assert again.operation(operation).status == "Started"


def test_a_key_makes_a_command_happen_once(rig: Rig) -> None:
    first = rig.schedule(Kind.RESTART, "web-0", call=KEYED)
    assert rig.schedule(Kind.RESTART, "web-0", call=KEYED) == first
    with pytest.raises(errors.ConflictError, match="Idempotency-Key"):
        rig.schedule(Kind.RESTART, "web-1", call=replace(KEYED, digest="b"))
    rig.schedule(Kind.RESTART, "web-1", call=replace(KEYED, actor="bob", token_id="t2", digest="b"))
    # A response of another shape is from before an upgrade.
    with rig.service.store.write() as transaction:
        stored = transaction.responses.find("t1", "k", START)
        assert stored is not None
        transaction.responses.put(replace(stored, result=b'{"operation": {}}'))
    before = rig.actions()
    with pytest.raises(errors.ConflictError, match="before the service was upgraded") as refused:
        rig.schedule(Kind.RESTART, "web-0", call=KEYED)
    assert refused.value.facts == {"key": "k"}
    assert rig.actions() == before
    rig.clock.advance(hours=25)
    with pytest.raises(errors.ConflictError, match="already"):
        rig.schedule(Kind.RESTART, "web-0", call=KEYED)


def test_ids_are_random_uuids() -> None:
    made = {runtime.new_id() for _ in range(1000)}
    assert len(made) == 1000
    assert {(str(parsed), parsed.version, parsed.variant) for parsed in map(uuid.UUID, made)} == {
        (text, 4, uuid.RFC_4122) for text in made
    }


class SlowClock(ManualClock):
    """Each look takes a while, as on a machine that swaps."""

    step = 0.0

    def now(self) -> datetime:
        self.advance(seconds=self.step)
        return super().now()


def test_notice_counts_from_the_commit_also_when_that_is_slow(store: Store) -> None:
    clock = SlowClock()
    rig = Rig(store, clock=clock).settle_demo()
    clock.step = 3
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    clock.step = 0
    assert operation.not_before - clock.now() >= NOTICE
    clock.step = 60
    with pytest.raises(errors.UnavailableError, match="too slow"):
        rig.schedule(Kind.RESTART, "web-1")
    # What gives no notice may be slow.
    rig.add_host("host-e")


class SlowCommits:
    """A store whose disk takes its time when it is asked to keep something; so many transactions after that fail."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self._store, self._clock = store, clock
        self.seconds = 0.0
        self.failures = 0

    @contextmanager
    def write(self, check: Callable[[], None]) -> Iterator[Transaction]:
        if not self.seconds and self.failures:
            self.failures -= 1
            raise errors.UnavailableError
        with self._store.write(check) as transaction:
            yield transaction
        self._clock.advance(seconds=self.seconds)
        self.seconds = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def slowly(rig: Rig) -> SlowCommits:
    slow = SlowCommits(rig.service.store, rig.clock)
    rig.service.store = cast(Store, slow)
    return slow


@pytest.mark.parametrize("failures", [0, 2])
def test_a_commit_that_takes_too_long_takes_no_notice_away(rig: Rig, failures: int) -> None:
    """Guests see what it announced in any case; NotBefore is moved at once, or by the next transaction."""
    slow = slowly(rig)
    slow.seconds, slow.failures = 5, failures
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    if failures:
        assert rig.published.incarnations["group:web"] == [2]
        with pytest.raises(errors.UnavailableError):
            rig.add_host("host-e")
    for name in ("host-e", "host-f"):
        rig.add_host(name)
    (shown,) = rig.published.latest["group:web"].events
    assert shown.not_before - rig.clock.now() >= NOTICE
    assert rig.operation(operation).not_before == shown.not_before
    assert rig.published.incarnations["group:web"] == [2, 3]


def test_started_is_seen_for_two_seconds_also_after_a_slow_commit(store: Store) -> None:
    rig = Rig(store, speed=1000).settle_demo()
    slow = slowly(rig)
    rig.approve_all(*rig.schedule(Kind.RESTART, "web-0"))
    slow.seconds = 3
    rig.tick()
    seen = rig.clock.now()
    while rig.published.latest["group:web"].events:
        rig.clock.advance(seconds=0.25)
        rig.tick()
    assert rig.clock.now() - seen >= timedelta(seconds=2)


def test_two_processes_share_the_work_and_see_each_others_changes(migrated_postgres_url: str) -> None:
    stores = [open_store(migrated_postgres_url, migrate=False) for _ in range(2)]
    clock = ManualClock()
    one, two = (Rig(store, clock=clock) for store in stores)
    one.settle_demo()
    follower = Follower(two.service, two.service.refresh())
    follower.start()

    def has_caught_up() -> bool:
        last: Any = one.published.latest.get("group:web") or two.published.latest["group:web"]
        scope = two.published.by_key["group:web"].document
        return scope is not None and scope.incarnation >= last.incarnation

    try:
        one.approve_all(*one.schedule(Kind.HOST_REBOOT, "host-a", "host-b", "host-c"))
        for _ in range(80):
            threads = [threading.Thread(target=rig.tick) for rig in (one, two)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            clock.advance(seconds=1)
        assert queries.operations(one.service, live=True).items == []
        actions = one.actions()
        for action in ("operation.started", "driver.finished", "operation.completed"):
            assert actions.count(action) == 3
        wait_for(has_caught_up)
    finally:
        follower.stop()
        for store in stores:
            store.close()
