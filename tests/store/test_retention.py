"""Retention deletes only what is old, over, and delivered."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.store.samples import MINUTE, NOW, Thing, changes, entry, event, executor_of, operation

from forenotice.core.operations import Status
from forenotice.store import retention, schema
from forenotice.store.journal import JournalFilter
from forenotice.store.transaction import Transaction

DAY = timedelta(days=1)
BEFORE = NOW + DAY


def prune(tx: Transaction, before: datetime = BEFORE) -> Counter[str]:
    """All of it; gives what it has removed, which is what was foretold."""
    foretold = +tx.retention.count(before)
    removed: Counter[str] = Counter()
    for stage in retention.STAGES:
        cursor: retention.Cursor | None = None
        while True:
            found, cursor = stage(tx.retention, before, cursor)
            removed += found
            if cursor is None:
                break
    assert removed == foretold
    return removed


def actions(tx: Transaction, **wanted: Any) -> list[str]:
    return [each.action for _, each in tx.journal.page(JournalFilter(**wanted), limit=1000)]


def rows(tx: Transaction, table: str) -> int:
    return int(executor_of(tx).value(f"SELECT count(*) FROM {table}"))


def put(tx: Transaction, table: str, **values: Any) -> None:
    columns = schema.metadata.tables[table].columns
    required = [column for column in columns if not column.nullable and column.server_default is None]
    given = {column.name: 0 if column.type.python_type is int else "" for column in required} | values
    into = f"{table} ({', '.join(given)}) VALUES ({', '.join(f':{name}' for name in given)})"
    executor_of(tx).run(f"INSERT INTO {into}", **given)


def made(of: str, status: Status = Status.COMPLETED, at: datetime = NOW, **fields: Any) -> tuple[Thing, ...]:
    """An operation with its event, and an entry of each."""
    rollout = fields.pop("rollout", None)
    return (
        operation(of, status=status, vms=("web-0", "web-1"), rollout=rollout, **fields),
        event(f"E-{of}", of, "group:web", status=status, **fields),
        entry(f"{of}.operation", operation=of, at=at),
        entry(f"{of}.event", operation=of, event=f"E-{of}", scope="group:web", at=at),
    )


NEW = entry("new", at=BEFORE)


def test_what_is_over_goes_with_all_that_belongs_to_it(tx: Transaction) -> None:
    tx.apply(changes(*made("old"), entry("host.added", host="a")))
    tx.apply(changes(*made("new", Status.FAILED, BEFORE, created_at=BEFORE, ended_at=BEFORE + MINUTE)))
    assert prune(tx) == {"entries": 3, "operations": 1, "events": 1}
    assert actions(tx) == actions(tx, vm="web-0") == ["new.operation", "new.event"]
    assert [each.id for each in tx.operations.page(None, 10)] == ["new"]
    assert [each.id for each in tx.events.page(None, 10)] == ["E-new"]
    assert rows(tx, "vm_operations") == 2
    assert prune(tx) == {}


def test_what_is_live_stays_whole(tx: Transaction) -> None:
    tx.apply(changes(*made("live", Status.STARTED), *made("over", Status.CANCELED), NEW))
    assert prune(tx) == {"entries": 2, "operations": 1, "events": 1}
    assert actions(tx) == ["live.operation", "live.event", "new"]
    assert tx.retention.older(BEFORE) == 2


def test_what_began_long_ago_and_ended_lately_stays_without_its_oldest_entries(tx: Transaction) -> None:
    tx.apply(changes(*made("long", ended_at=BEFORE + MINUTE), NEW))
    assert (prune(tx), rows(tx, "events")) == ({"entries": 2}, 1)


def test_a_live_rollout_keeps_its_operations_and_a_live_operation_its_rollout(tx: Transaction) -> None:
    for name, ended in (("live", None), ("over", 1), ("lasting", 1)):
        put(tx, "rollouts", id=name, ended_at=ended, created_at=1)
        put(tx, "stops", rollout=name, host="a")
        status = Status.STARTED if name == "lasting" else Status.COMPLETED
        tx.apply(changes(*made(f"o-{name}", status, rollout=name), entry(name, rollout=name)))
    tx.apply(changes(NEW))
    assert prune(tx) == {"entries": 4, "operations": 1, "events": 1, "rollouts": 1}
    left = ["o-live.operation", "o-live.event", "live", "o-lasting.operation", "o-lasting.event", "new"]
    assert (actions(tx), rows(tx, "stops"), rows(tx, "rollouts")) == (left, 2, 2)


@pytest.mark.parametrize("status", ["active", "parked"])
def test_what_has_still_to_be_delivered_stays(tx: Transaction, status: str) -> None:
    tx.apply(changes(*made("one"), *made("two"), NEW))
    put(tx, "subscriptions", id="s", name="s", status=status, position=3)
    put(tx, "deliveries", subscription="s", position=2)
    assert prune(tx) == {"entries": 2}
    assert (actions(tx), rows(tx, "operations")) == (["one.event", "two.event", "new"], 2)


def test_the_newest_entry_stays_and_no_position_is_given_twice(tx: Transaction) -> None:
    assert prune(tx) == {}
    tx.apply(changes(entry("one"), entry("two"), entry("three")))
    assert (prune(tx), actions(tx)) == ({"entries": 2}, ["three"])
    assert tx.apply(changes(entry("four"))) == 4
    assert [position for position, _ in tx.journal.page(after=1)] == [3, 4]


def test_in_steps(tx: Transaction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ENTRIES", 3)
    monkeypatch.setattr(retention, "OPERATIONS", 2)
    tx.apply(
        changes(*(each for name in "abcde" for each in made(name, Status.STARTED if name == "b" else Status.COMPLETED)))
    )
    tx.apply(changes(NEW))
    assert prune(tx) == {"entries": 8, "operations": 4, "events": 4}
