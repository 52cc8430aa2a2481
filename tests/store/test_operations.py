"""Operations and events: as kept, when due, whose claim, and what drivers told by callback."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from tests.store.samples import MINUTE, NOW, changes, event, keep, operation, scope

from forenotice.core.driver_calls import Finished
from forenotice.core.operations import Event, EventType, Kind, Operation, Source, Status
from forenotice.store.database import Store
from forenotice.store.events import EventFilter
from forenotice.store.operations import DriverResult

FULL_OPERATION = operation(
    "full",
    status=Status.STARTED,
    kind=Kind.LIVE_MIGRATION,
    vms=("web-0", "web-1"),
    started_at=NOW + MINUTE,
    due_at=NOW + 2 * MINUTE,
    held=True,
    targets={"web-0": "b", "web-1": "c"},
    done=("web-0",),
    failures={"web-1": 'the "host" said: no'},
    attempt=4,
    claimed_by="process-1",
    claimed_until=NOW + 3 * MINUTE,
    by="token:alice",
    reason="firmware",
)
FULL_EVENT = event(
    "E0000000-0000-0000-0000-000000000001",
    "full",
    "group:web",
    status=Status.COMPLETED,
    resources=("web-0", "web-1"),
    update_domain=3,
    type=EventType.TERMINATE,
    source=Source.USER,
    description="Größe",
    duration=-1,
    approved_at=NOW,
    approved_by="vm:web-0",
    implied=True,
    ended_at=NOW + MINUTE,
)


def test_everything_comes_back(store: Store) -> None:
    keep(store, FULL_OPERATION, FULL_EVENT)
    with store.read() as reader:
        world = reader.worlds.load(operations=["full"])
    assert world.operations == {"full": FULL_OPERATION}
    assert world.events == {FULL_EVENT.id: FULL_EVENT}
    assert isinstance(world.operations["full"].held, bool)
    assert isinstance(world.events[FULL_EVENT.id].implied, bool)


def test_keeping_again_replaces(store: Store) -> None:
    keep(store, FULL_OPERATION, FULL_EVENT)
    bare = operation("full", "b", status=Status.FAILED, not_before=NOW + 3 * MINUTE, ended_at=NOW + 2 * MINUTE)
    made_with = {name: getattr(FULL_OPERATION, name) for name in ("kind", "by", "reason")}
    ended = replace(bare, **made_with)
    canceled = replace(
        FULL_EVENT,
        resources=("web-0",),
        status=Status.CANCELED,
        not_before=NOW + 3 * MINUTE,
        approved_at=None,
        approved_by=None,
        implied=False,
        ended_at=NOW + 2 * MINUTE,
    )
    keep(store, ended, canceled)
    with store.read() as reader:
        world = reader.worlds.load(operations=["full"])
    assert world.operations == {"full": ended}
    assert world.events == {canceled.id: canceled}


def test_times_come_back_in_utc(store: Store) -> None:
    local = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    keep(store, operation("one", created_at=local))
    with store.read() as reader:
        created = reader.worlds.load(operations=["one"]).operations["one"].created_at
    assert (created, created.utcoffset()) == (NOW, timedelta(0))


def test_due_by_not_before_then_age(store: Store) -> None:
    later = NOW + MINUTE
    keep(
        store,
        operation("young", due_at=NOW, not_before=NOW, created_at=NOW),
        operation("old", due_at=NOW, not_before=NOW, created_at=NOW - MINUTE),
        operation("pressing", due_at=NOW, not_before=NOW - MINUTE),
        operation("future", due_at=later),
        operation("over", status=Status.COMPLETED, due_at=NOW),
        operation("never", due_at=None),
        operation("claimed", due_at=NOW, claimed_by="p", claimed_until=NOW + timedelta(microseconds=1)),
        operation("expired", due_at=NOW, claimed_by="p", claimed_until=NOW, not_before=NOW + MINUTE),
    )
    with store.read() as reader:
        assert reader.operations.due(NOW, 10) == ["pressing", "old", "young", "expired"]
        assert reader.operations.due(NOW, 2) == ["pressing", "old"]
        assert reader.operations.due(NOW - timedelta(microseconds=1), 10) == []


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([], None),
        ([operation("over", status=Status.CANCELED)], None),
        ([operation("never", due_at=None)], None),
        ([operation("a", due_at=NOW - MINUTE)], NOW),
        ([operation("a", due_at=NOW + 3 * MINUTE), operation("b", due_at=NOW + 2 * MINUTE)], NOW + 2 * MINUTE),
        ([operation("a", due_at=NOW, claimed_by="p", claimed_until=NOW + MINUTE)], NOW + MINUTE),
        ([operation("a", due_at=NOW + 2 * MINUTE, claimed_by="p", claimed_until=NOW + MINUTE)], NOW + 2 * MINUTE),
        ([operation("a", due_at=NOW - MINUTE, claimed_by="p", claimed_until=NOW - MINUTE)], NOW),
        (
            [
                operation("a", due_at=NOW, claimed_by="p", claimed_until=NOW + 2 * MINUTE),
                operation("b", due_at=NOW + MINUTE),
            ],
            NOW + MINUTE,
        ),
    ],
)
def test_next_due(store: Store, operations: list[Operation], expected: datetime | None) -> None:
    keep(store, *operations)
    with store.read() as reader:
        assert reader.operations.next_due(NOW) == expected


def test_waking_what_waits_in_a_scope(store: Store) -> None:
    keep(
        store,
        operation("held", held=True),
        operation("free", held=False),
        operation("started", status=Status.STARTED, held=True),
        operation("elsewhere", held=True),
        operation("left", held=True),
        operation("overdue", held=True, due_at=NOW - MINUTE),
        event("E1", "held", "group:web"),
        event("E2", "free", "group:web"),
        event("E3", "started", "group:web", status=Status.STARTED),
        event("E4", "elsewhere", "group:pool"),
        event("E5", "left", "group:web", status=Status.CANCELED),
        event("E6", "overdue", "group:web"),
    )
    with store.write() as transaction:
        assert transaction.operations.wake(["group:web", "group:ghost"], NOW) == 1
        assert transaction.operations.wake(["group:web"], NOW) == 0
        assert transaction.operations.wake([], NOW) == 0
        assert set(transaction.operations.due(NOW, 10)) == {"held", "overdue"}
        assert transaction.worlds.load(operations=["overdue"]).operations["overdue"].due_at == NOW - MINUTE
        assert transaction.operations.wake_held(NOW) == 3
        assert set(transaction.operations.due(NOW, 10)) == {"held", "overdue", "started", "elsewhere", "left"}


def test_claims_are_renewed_and_released_by_their_owner_only(store: Store) -> None:
    claimed: dict[str, Any] = {"due_at": NOW, "claimed_until": NOW + MINUTE}
    keep(
        store,
        operation("mine", claimed_by="me", **claimed),
        operation("mine-too", claimed_by="me", **claimed),
        operation("theirs", claimed_by="them", **claimed),
        operation("free", due_at=NOW),
    )
    until = NOW + 5 * MINUTE
    with store.write() as transaction:

        def claims() -> dict[str, datetime | None]:
            found = transaction.worlds.load(operations=["mine", "mine-too", "theirs", "free"]).operations
            assert all((each.claimed_by is None) == (each.claimed_until is None) for each in found.values())
            return {name: each.claimed_until for name, each in found.items() if each.claimed_until}

        operations = transaction.operations
        assert operations.renew_claims("me", ["mine", "theirs", "free", "ghost"], until) == ["mine"]
        assert operations.renew_claims("me", [], until) == []
        assert claims() == {"mine": until, "mine-too": NOW + MINUTE, "theirs": NOW + MINUTE}
        operations.release_claims("nobody")
        assert operations.due(NOW, 10) == ["free"]
        operations.release_claims("me")
        assert claims() == {"theirs": NOW + MINUTE}
        assert set(operations.due(NOW, 10)) == {"free", "mine", "mine-too"}
        operations.release_claims(None)
        assert claims() == {}


def test_moving_to(store: Store) -> None:
    keep(
        store,
        operation("coming", targets={"x": "b-1", "y": "c"}),
        operation("similar", targets={"x": "b-10", "b-1": "c"}),
        operation("came", status=Status.COMPLETED, targets={"x": "b-1"}),
        operation("stays"),
    )
    with store.read() as reader:
        assert reader.operations.moving_to("b-1") == ["coming"]
        assert reader.operations.moving_to("c") == ["coming", "similar"]
        assert reader.operations.moving_to("b") == []


def test_announced_hosts(store: Store) -> None:
    keep(
        store,
        operation("one", host="b", kind=Kind.HOST_UPDATE),
        operation("two", host="b", kind=Kind.HOST_REBOOT),
        operation("planned", host="c", kind=Kind.HOST_UPDATE, status=Status.PLANNED),
        operation("over", host="d", kind=Kind.HOST_UPDATE, status=Status.COMPLETED),
        operation("moves", host="e", kind=Kind.LIVE_MIGRATION),
    )
    with store.read() as reader:
        assert reader.operations.announced_hosts() == ["b"]


def test_pages_of_events(store: Store) -> None:
    first = event("Z", "o", "group:web", created_at=NOW - MINUTE, resources=("web-1", "web-10"))
    second = event("A", "p", "group:pool", resources=("web-10",))
    third = event("B", "q", "group:web", status=Status.COMPLETED, resources=("web-0", "web-1"))
    keep(store, third, second, first)
    with store.read() as reader:
        assert reader.events.page(None, 2) == [first, second]
        assert reader.events.page("a", 2) == [third]
        assert reader.events.page(None, 9, EventFilter(live=True)) == [first, second]
        assert reader.events.page(None, 9, EventFilter(live=False)) == [third]
        assert reader.events.page(None, 9, EventFilter(scope="group:web")) == [first, third]
        assert reader.events.page(None, 9, EventFilter(vm="web-1")) == [first, third]
        assert reader.events.page(None, 9, EventFilter(live=True, vm="web-10")) == [first, second]
        assert reader.events.page(None, 9, EventFilter(vm="eb-1")) == []
        assert reader.events.counts_by_type() == {("Freeze", "Scheduled"): 2}


@pytest.mark.parametrize(
    "wrong",
    [
        operation("one", ended_at=NOW),
        operation("one", status=Status.FAILED, ended_at=None),
        event("E1", "o", "s", ended_at=NOW),
        event("E1", "o", "s", status=Status.CANCELED, ended_at=None),
    ],
)
def test_what_is_over_has_an_end_and_nothing_else_has(store: Store, wrong: Operation | Event) -> None:
    with pytest.raises(Exception, match="ended_when_over"), store.write() as transaction:
        transaction.apply(changes(scope("vm:x"), wrong))
    with store.read() as reader:
        assert reader.scopes.named(["vm:x"]) == {}


def test_driver_results(store: Store) -> None:
    first = DriverResult(operation="o1", attempt=1, outcome=Finished(done=("a",), failures={"b": "no"}), at=NOW)
    second = replace(first, attempt=2, outcome=Finished(done=("b",), failures={}), at=NOW + MINUTE)
    other = replace(first, operation="o2")
    live = replace(first, operation="live")
    keep(store, operation("live"))
    with store.write() as transaction:
        results = transaction.driver_results
        for result in (first, second, other, live):
            results.put(result)
        assert sorted(results.of(["o1", "o3"]), key=lambda result: result.attempt) == [first, second]
        assert results.of([]) == []
        results.delete_before(NOW + MINUTE)
        assert sorted(results.of(["o1", "o2", "live"]), key=lambda result: result.attempt) == [live, second]
