"""Forgetting: only what is old, over, and told to everybody."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.store.samples import MINUTE, NOW, entry, event, executor_of, keep, operation

from forenotice.core.operations import Status
from forenotice.store import retention, schema
from forenotice.store.database import Store
from forenotice.store.journal import JournalFilter

DAY = timedelta(days=1)
BEFORE = NOW + DAY


def prune(store: Store, before: datetime = BEFORE) -> Counter[str]:
    """All of it; gives what it has removed, which is what was foretold."""
    with store.read() as reader:
        foretold = +reader.retention.count(before)
    removed: Counter[str] = Counter()
    for stage in retention.STAGES:
        cursor: retention.Cursor | None = None
        while True:
            with store.write() as transaction:
                found, cursor = stage(transaction.retention, before, cursor)
            removed += found
            if cursor is None:
                break
    assert removed == foretold
    return removed


def actions(store: Store) -> list[str]:
    with store.read() as reader:
        return [each.action for _, each in reader.journal.page(limit=1000)]


def rows(store: Store, table: str) -> int:
    with store.read() as reader:
        return int(executor_of(reader).value(f"SELECT count(*) FROM {table}"))


def put(store: Store, table: str, **values: Any) -> None:
    columns = schema.metadata.tables[table].columns
    filled = {
        column.name: 0 if column.type.python_type is int else ""
        for column in columns
        if not column.nullable and column.server_default is None
    }
    with store.write() as transaction:
        given = filled | values
        into = f"{table} ({', '.join(given)}) VALUES ({', '.join(f':{name}' for name in given)})"
        executor_of(transaction).run(f"INSERT INTO {into}", **given)


def told(of: str, at: datetime = NOW, **fields: Any) -> tuple[Any, ...]:
    return (
        entry(f"{of}.operation", operation=of, at=at, **fields),
        entry(f"{of}.event", operation=of, event=f"E-{of}", scope="group:web", at=at, **fields),
    )


def made(of: str, status: Status, **fields: Any) -> tuple[Any, ...]:
    rollout = fields.pop("rollout", None)
    return (
        operation(of, status=status, vms=("web-0", "web-1"), rollout=rollout, **fields),
        event(f"E-{of}", of, "group:web", status=status, **fields),
    )


def test_what_is_over_goes_with_all_that_belongs_to_it(store: Store) -> None:
    keep(store, *made("old", Status.COMPLETED), *told("old"), entry("host.added", host="a"))
    later = {"created_at": BEFORE, "ended_at": BEFORE + MINUTE}
    keep(store, *made("new", Status.FAILED, **later), *told("new", BEFORE))
    assert prune(store) == {"entries": 3, "operations": 1, "events": 1}
    assert actions(store) == ["new.operation", "new.event"]
    with store.read() as reader:
        assert [each.id for each in reader.operations.page(None, 10)] == ["new"]
        assert [each.id for each in reader.events.page(None, 10)] == ["E-new"]
        assert [each.action for _, each in reader.journal.page(JournalFilter(vm="web-0"))] == [
            "new.operation",
            "new.event",
        ]
    assert rows(store, "vm_operations") == 2
    assert prune(store) == {}


def test_what_is_live_stays_whole(store: Store) -> None:
    keep(store, *made("live", Status.STARTED), *told("live"), *made("over", Status.CANCELED), *told("over"))
    keep(store, entry("new", at=BEFORE))
    assert prune(store) == {"entries": 2, "operations": 1, "events": 1}
    assert actions(store) == ["live.operation", "live.event", "new"]
    with store.read() as reader:
        assert reader.retention.older(BEFORE) == 2


def test_what_began_long_ago_and_ended_lately_stays_without_its_oldest_entries(store: Store) -> None:
    keep(store, *made("long", Status.COMPLETED, ended_at=BEFORE + MINUTE), *told("long"), entry("new", at=BEFORE))
    assert prune(store) == {"entries": 2}
    assert rows(store, "events") == 1


def test_a_live_rollout_keeps_its_operations(store: Store) -> None:
    for name, ended in (("live", None), ("over", 1)):
        put(store, "rollouts", id=name, ended_at=ended, created_at=1)
        put(store, "stops", rollout=name, host="a")
        keep(store, *made(f"o-{name}", Status.COMPLETED, rollout=name), *told(f"o-{name}"), entry(name, rollout=name))
    keep(store, entry("new", at=BEFORE))
    assert prune(store) == {"entries": 3, "operations": 1, "events": 1, "rollouts": 1}
    assert actions(store) == ["o-live.operation", "o-live.event", "live", "new"]
    assert rows(store, "stops") == 1


def test_a_rollout_stays_while_one_of_its_operations_does(store: Store) -> None:
    put(store, "rollouts", id="over", ended_at=1, created_at=1)
    keep(store, *made("o", Status.STARTED, rollout="over"), entry("new", at=BEFORE))
    assert prune(store) == {}
    assert rows(store, "rollouts") == 1


@pytest.mark.parametrize("status", ["active", "parked"])
def test_what_a_subscription_is_still_to_be_told_stays(store: Store, status: str) -> None:
    keep(store, *made("one", Status.COMPLETED), *told("one"), *made("two", Status.COMPLETED), *told("two"))
    keep(store, entry("new", at=BEFORE))
    put(store, "subscriptions", id="s", name="s", status=status, position=3)
    put(store, "deliveries", subscription="s", position=2)
    assert prune(store) == {"entries": 2}
    assert actions(store) == ["one.event", "two.event", "new"]
    assert rows(store, "operations") == 2


def test_the_newest_entry_stays_and_no_position_is_given_twice(store: Store) -> None:
    keep(store, entry("one"), entry("two"), entry("three"))
    assert prune(store) == {"entries": 2}
    assert actions(store) == ["three"]
    assert keep(store, entry("four")) == 4
    with store.read() as reader:
        assert [seq for seq, _ in reader.journal.page(after=1)] == [3, 4]


def test_in_steps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ENTRIES", 3)
    monkeypatch.setattr(retention, "OPERATIONS", 2)
    for name in "abcde":
        keep(store, *made(name, Status.STARTED if name == "b" else Status.COMPLETED), *told(name))
    keep(store, entry("new", at=BEFORE))
    assert prune(store) == {"entries": 8, "operations": 4, "events": 4}


def test_an_empty_journal(store: Store) -> None:
    assert prune(store) == {}
