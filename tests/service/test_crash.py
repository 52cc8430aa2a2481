"""A process that dies leaves nothing undone; two on one database do nothing twice."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

import pytest
from tests.service.rig import OPERATOR, START, ManualClock, Rig

from forenotice import runtime
from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.service import calls, fleet, housekeeping, maintenance, queries, tick
from forenotice.service.loops import Follower
from forenotice.store.database import Store
from forenotice.store.opener import open_store
from forenotice.store.transaction import Transaction
from forenotice.views.fleet import NewHost

pytestmark = pytest.mark.both_databases


def test_what_had_started_goes_on_under_the_same_id(store: Store) -> None:
    rig = Rig(store).settle_demo()
    (operation,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    (task,) = tick.tick(rig.service).tasks
    again = Rig(store, clock=rig.clock)
    assert not tick.tick(again.service).tasks
    housekeeping.resume(again.service, alone=True)
    (repeated,) = tick.tick(again.service).tasks
    assert (repeated.operation, repeated.attempt) == (task.operation, task.attempt) == (operation.id, 1)


def test_a_claim_of_a_dead_process_lapses(store: Store) -> None:
    rig = Rig(store).settle_demo()
    rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    tick.tick(rig.service)
    other = Rig(store, clock=rig.clock)
    rig.clock.advance(seconds=10)
    tick.renew_claims(rig.service, [queries.operations(rig.service).items[0].id])
    rig.clock.advance(seconds=10)
    assert not tick.tick(other.service).tasks
    rig.clock.advance(seconds=10)
    assert len(tick.tick(other.service).tasks) == 1


def test_an_answer_that_comes_too_late_changes_nothing(store: Store) -> None:
    rig = Rig(store).settle_demo()
    rig.schedule(Kind.RESTART, "web-0")
    maintenance.approve(rig.service, OPERATOR, queries.events(rig.service).items[0].id)
    (task,) = tick.tick(rig.service).tasks
    rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    rig.clock.advance(seconds=20)
    outcome = rig.driver.carry_out(task, rig.clock.now())
    tick.tick(rig.service, [tick.Report(operation=task.operation, attempt=1, outcome=outcome)])
    assert queries.operation(rig.service, task.operation).status == "Failed"
    tick.tick(rig.service, [tick.Report(operation="unheard-of", attempt=1, outcome=outcome)])


def test_for_a_while_after_start_up_nothing_starts_by_expiry_alone(store: Store) -> None:
    rig = Rig(store).settle_demo()
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    rig.clock.advance(minutes=20)
    again = Rig(store, clock=rig.clock)
    again.run(25)
    assert queries.operation(again.service, operation.id).status == "Scheduled"
    event = operation.events[0].id
    assert "since the service started" in queries.explain_event(again.service, event).sentence
    again.run(10)
    assert queries.operation(again.service, operation.id).status == "Started"


def test_a_key_makes_a_command_happen_once(rig: Rig) -> None:
    call = calls.Call(actor="ada", token_id="t1", key="k", digest="a")
    first = rig.schedule(Kind.RESTART, "web-0", call=call)
    assert rig.schedule(Kind.RESTART, "web-0", call=call) == first
    other = calls.Call(actor="ada", token_id="t1", key="k", digest="b")
    with pytest.raises(errors.ConflictError, match="Idempotency-Key"):
        rig.schedule(Kind.RESTART, "web-1", call=other)
    someone = calls.Call(actor="bob", token_id="t2", key="k", digest="b")
    rig.schedule(Kind.RESTART, "web-1", call=someone)
    rig.clock.advance(hours=25)
    with pytest.raises(errors.ConflictError, match="already"):
        rig.schedule(Kind.RESTART, "web-0", call=call)


def test_a_key_from_before_an_upgrade_is_refused_when_the_response_has_another_shape_now(rig: Rig) -> None:
    call = calls.Call(actor="ada", token_id="t1", key="k", digest="a")
    rig.schedule(Kind.RESTART, "web-0", call=call)
    with rig.service.store.write() as transaction:
        stored = transaction.responses.find("t1", "k", START)
        assert stored is not None
        transaction.responses.put(replace(stored, result=b'{"operation": {}}'))
    before = rig.actions()
    with pytest.raises(errors.ConflictError, match="before the service was upgraded") as refused:
        rig.schedule(Kind.RESTART, "web-0", call=call)
    assert refused.value.facts == {"key": "k"}
    assert rig.actions() == before


def test_a_clock_far_behind_the_journal_is_refused(store: Store) -> None:
    rig = Rig(store).settle_demo()
    housekeeping.require_sane_clock(rig.service)
    behind = Rig(store, clock=ManualClock(START - timedelta(minutes=6)))
    with pytest.raises(errors.UnsoundError, match="correct the clock"):
        housekeeping.require_sane_clock(behind.service)
    a_little = Rig(store, clock=ManualClock(START - timedelta(minutes=4)))
    housekeeping.require_sane_clock(a_little.service)
    assert a_little.clock.now() == START


def test_an_empty_journal_knows_no_time(store: Store) -> None:
    housekeeping.require_sane_clock(Rig(store).service)


class SlowClock(ManualClock):
    """Each look takes a while, as on a machine that swaps."""

    def now(self) -> datetime:
        self.advance(seconds=self.step)
        return super().now()

    step = 0.0


def test_notice_counts_from_the_commit_also_when_that_is_slow(store: Store) -> None:
    clock = SlowClock()
    rig = Rig(store, clock=clock).settle_demo()
    clock.step = 3
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    clock.step = 0
    shown = clock.now()
    assert rig.service.timing.shortened(timedelta(minutes=15)) <= operation.not_before - shown
    clock.step = 60
    with pytest.raises(errors.UnavailableError, match="too slow"):
        rig.schedule(Kind.RESTART, "web-1")


def test_what_gives_no_notice_may_be_slow(store: Store) -> None:
    clock = SlowClock()
    rig = Rig(store, clock=clock).settle_demo()
    clock.step = 60
    fleet.add_host(rig.service, OPERATOR, NewHost(name="host-e"))
    assert rig.actions().count("host.added") == 5


def test_ids_are_random_uuids() -> None:
    made = {runtime.new_id() for _ in range(1000)}
    assert len(made) == 1000
    assert {(str(parsed), parsed.version, parsed.variant) for parsed in map(uuid.UUID, made)} == {
        (text, 4, uuid.RFC_4122) for text in made
    }


class SlowCommits:
    """A store whose disk takes its time when it is asked to keep something."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self._store, self._clock = store, clock
        self.seconds = 0.0

    @contextmanager
    def write(self, check: Callable[[], None]) -> Iterator[Transaction]:
        with self._store.write(check) as transaction:
            yield transaction
        self._clock.advance(seconds=self.seconds)
        self.seconds = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_a_commit_that_takes_too_long_takes_no_notice_away(store: Store) -> None:
    rig = Rig(store).settle_demo()
    slow = SlowCommits(store, rig.clock)
    rig.service.store = cast(Store, slow)
    slow.seconds = 5
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    (shown,) = rig.published.latest["group:web"].events
    assert shown.not_before - rig.clock.now() >= timedelta(minutes=15)
    assert queries.operation(rig.service, operation.id).not_before == shown.not_before
    assert rig.published.incarnations["group:web"] == [2, 3]


class FailsAfterSlowCommits(SlowCommits):
    """As often as told, the transaction after a slow commit fails."""

    failures = 0

    @contextmanager
    def write(self, check: Callable[[], None]) -> Iterator[Transaction]:
        if not self.seconds and self.failures:
            self.failures -= 1
            raise errors.UnavailableError
        with super().write(check) as transaction:
            yield transaction


def test_what_a_slow_commit_announced_is_shown_also_when_it_cannot_be_put_off_at_once(store: Store) -> None:
    rig = Rig(store).settle_demo()
    slow = FailsAfterSlowCommits(store, rig.clock)
    rig.service.store = cast(Store, slow)
    slow.seconds, slow.failures = 5, 2
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    assert rig.published.incarnations["group:web"] == [2]
    with pytest.raises(errors.UnavailableError):
        fleet.add_host(rig.service, OPERATOR, NewHost(name="host-e"))
    for name in ("host-e", "host-f"):
        fleet.add_host(rig.service, OPERATOR, NewHost(name=name))
    (shown,) = rig.published.latest["group:web"].events
    assert shown.not_before - rig.clock.now() >= timedelta(minutes=15)
    assert queries.operation(rig.service, operation.id).not_before == shown.not_before
    assert rig.published.incarnations["group:web"] == [2, 3]


def test_started_is_seen_for_two_seconds_also_after_a_slow_commit(store: Store) -> None:
    rig = Rig(store, speed=1000).settle_demo()
    slow = SlowCommits(store, rig.clock)
    rig.service.store = cast(Store, slow)
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    rig.approve("web-0", "group:web", operation.events[0].id)
    slow.seconds = 3
    rig.tick()
    seen = rig.clock.now()
    while rig.published.latest["group:web"].events:
        rig.clock.advance(seconds=0.25)
        rig.tick()
    assert rig.clock.now() - seen >= timedelta(seconds=2)


def test_a_clock_that_jumps_takes_no_claim_away(store: Store) -> None:
    rig = Rig(store).settle_demo()
    rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    (task,) = tick.tick(rig.service).tasks
    rig.clock.advance(seconds=20)
    assert not tick.tick(rig.service, under_way=[task.operation]).tasks
    tick.give_up_claims(rig.service)
    assert len(tick.tick(Rig(store, clock=rig.clock).service).tasks) == 1


def test_two_processes_share_the_work_and_see_each_others_changes(migrated_postgres_url: str) -> None:
    stores = [open_store(migrated_postgres_url, migrate=False) for _ in range(2)]
    clock = ManualClock()
    one, two = (Rig(store, clock=clock) for store in stores)
    one.settle_demo()
    follower = Follower(two.service, two.service.refresh())
    follower.start()
    try:
        hosts = one.schedule(Kind.HOST_REBOOT, "host-a", "host-b", "host-c")
        for event in (event for operation in hosts for event in operation.events):
            maintenance.approve(one.service, OPERATOR, event.id)
        for _ in range(80):
            threads = [threading.Thread(target=rig.tick) for rig in (one, two)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            clock.advance(seconds=1)
        assert queries.operations(one.service, live=True).items == []
        actions = one.actions()
        for action, times in (("operation.started", 3), ("driver.finished", 3), ("operation.completed", 3)):
            assert actions.count(action) == times
        last = one.published.latest.get("group:web") or two.published.latest["group:web"]
        follows = threading.Event()
        for _ in range(100):
            scope = two.published.by_key["group:web"].document
            if scope is not None and scope.incarnation >= last.incarnation:
                break
            follows.wait(0.05)
        else:
            pytest.fail("the second process never saw what the first one did")
    finally:
        follower.stop()
        for store in stores:
            store.close()
