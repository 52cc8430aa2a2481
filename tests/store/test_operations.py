"""Operations and events: as kept, when due, whose claim, and what drivers sent by callback."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from tests.store.samples import MINUTE, NOW, changes, event, operation, scope

from forenotice.core.driver_calls import Finished
from forenotice.core.operations import Event, EventType, Kind, Operation, Source, Status
from forenotice.store.database import Store
from forenotice.store.operations import DriverResult
from forenotice.store.transaction import Transaction

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
    waiting={"web-1": "host b does not answer"},
    duration=2,
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


def test_everything_comes_back_and_is_replaced(tx: Transaction) -> None:
    tx.apply(changes(FULL_OPERATION, FULL_EVENT))
    world = tx.worlds.load(operations=["full"])
    assert world.operations == {"full": FULL_OPERATION}
    assert world.events == {FULL_EVENT.id: FULL_EVENT}
    assert (type(world.operations["full"].held), type(world.events[FULL_EVENT.id].implied)) == (bool, bool)
    bare = operation("full", "b", status=Status.FAILED, not_before=NOW + 3 * MINUTE, ended_at=NOW + 2 * MINUTE)
    ended = replace(bare, **{name: getattr(FULL_OPERATION, name) for name in ("kind", "by", "reason", "duration")})
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
    tx.apply(changes(ended, canceled))
    world = tx.worlds.load(operations=["full"])
    assert (world.operations, world.events) == ({"full": ended}, {canceled.id: canceled})


def test_times_come_back_in_utc(tx: Transaction) -> None:
    tx.apply(changes(operation("one", created_at=NOW.astimezone(timezone(timedelta(hours=5, minutes=30))))))
    created = tx.worlds.load(operations=["one"]).operations["one"].created_at
    assert (created, created.utcoffset()) == (NOW, timedelta(0))


def test_due_by_not_before_then_age(tx: Transaction) -> None:
    moment = timedelta(microseconds=1)
    tx.apply(
        changes(
            operation("young", due_at=NOW, not_before=NOW, created_at=NOW),
            operation("old", due_at=NOW, not_before=NOW, created_at=NOW - MINUTE),
            operation("pressing", due_at=NOW, not_before=NOW - MINUTE),
            operation("future", due_at=NOW + MINUTE),
            operation("over", status=Status.COMPLETED, due_at=NOW),
            operation("never", due_at=None),
            operation("claimed", due_at=NOW, claimed_by="p", claimed_until=NOW + moment),
            operation("expired", due_at=NOW, claimed_by="p", claimed_until=NOW, not_before=NOW + MINUTE),
        )
    )
    assert tx.operations.due(NOW, 10) == ["pressing", "old", "young", "expired"]
    assert tx.operations.due(NOW, 2) == ["pressing", "old"]
    assert tx.operations.due(NOW - moment, 10) == []


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
def test_next_due(tx: Transaction, operations: list[Operation], expected: datetime | None) -> None:
    tx.apply(changes(*operations))
    assert tx.operations.next_due(NOW) == expected


def test_waking_what_waits_in_a_scope(tx: Transaction) -> None:
    tx.apply(
        changes(
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
    )
    operations = tx.operations
    assert [operations.wake(scopes, NOW) for scopes in (["group:web", "group:ghost"], ["group:web"], [])] == [1, 0, 0]
    assert set(operations.due(NOW, 10)) == {"held", "overdue"}
    assert tx.worlds.load(operations=["overdue"]).operations["overdue"].due_at == NOW - MINUTE
    assert operations.wake_held(NOW) == 3
    assert set(operations.due(NOW, 10)) == {"held", "overdue", "started", "elsewhere", "left"}


def test_claims_are_renewed_and_released_by_their_owner_only(tx: Transaction) -> None:
    claimed: dict[str, Any] = {"due_at": NOW, "claimed_until": NOW + MINUTE}
    owners = {"mine": "me", "mine-too": "me", "theirs": "them"}
    tx.apply(changes(*(operation(name, claimed_by=owner, **claimed) for name, owner in owners.items())))
    tx.apply(changes(operation("free", due_at=NOW)))
    operations, until = tx.operations, NOW + 5 * MINUTE

    def claims() -> dict[str, datetime | None]:
        found = tx.worlds.load(operations=[*owners, "free"]).operations
        assert all((each.claimed_by is None) == (each.claimed_until is None) for each in found.values())
        return {name: each.claimed_until for name, each in found.items() if each.claimed_until}

    assert operations.renew_claims("me", ["mine", "theirs", "free", "ghost"], until) == ["mine"]
    assert operations.renew_claims("me", [], until) == []
    assert claims() == {"mine": until, "mine-too": NOW + MINUTE, "theirs": NOW + MINUTE}
    operations.release_claims("another")
    assert operations.due(NOW, 10) == ["free"]
    operations.release_claims("me")
    assert claims() == {"theirs": NOW + MINUTE}
    assert set(operations.due(NOW, 10)) == {"free", "mine", "mine-too"}
    operations.release_claims(None)
    assert claims() == {}


def test_where_vms_move_to_and_where_none_may(tx: Transaction) -> None:
    tx.apply(
        changes(
            operation("coming", targets={"x": "b-1", "y": "c"}),
            operation("similar", targets={"x": "b-10", "b-1": "c"}, kind=Kind.LIVE_MIGRATION, host="e"),
            operation("came", status=Status.COMPLETED, targets={"x": "b-1"}, host="d"),
            operation("reboot", kind=Kind.HOST_REBOOT),
            operation("planned", host="c", status=Status.PLANNED),
        )
    )
    found = {host: tx.operations.moving_to(host) for host in ("b-1", "c", "b")}
    assert found == {"b-1": ["coming"], "c": ["coming", "similar"], "b": []}
    assert tx.operations.announced_hosts() == ["a"]


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


def test_driver_results(tx: Transaction) -> None:
    first = DriverResult(operation="o1", attempt=1, outcome=Finished(done=("a",), failures={"b": "no"}), at=NOW)
    second = replace(first, attempt=2, outcome=Finished(done=("b",), failures={}), at=NOW + MINUTE)
    live = replace(first, operation="live")
    tx.apply(changes(operation("live")))
    results = tx.driver_results
    for result in (first, second, replace(first, operation="o2"), live):
        results.put(result)
    assert sorted(results.of(["o1", "o3"]), key=lambda result: result.attempt) == [first, second]
    assert results.of([]) == []
    results.delete_before(NOW + MINUTE)
    assert sorted(results.of(["o1", "o2", "live"]), key=lambda result: result.attempt) == [live, second]
