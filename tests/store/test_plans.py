"""What is requested often is found by an index, however long the history."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.store.samples import NOW, executor_of

from forenotice.core import errors
from forenotice.core.selectors import of_names, of_scopes
from forenotice.store.database import Store
from forenotice.store.events import EventFilter
from forenotice.store.fleet import GroupFilter, VmFilter
from forenotice.store.journal import JournalFilter
from forenotice.store.operations import OperationFilter
from forenotice.store.transaction import Transaction

Request = Callable[[Transaction], Any]

SEEN, NAMED = of_scopes("web*"), of_scopes("web,db")
LIVE_OPERATIONS, LIVE_EVENTS = OperationFilter(live=True), EventFilter(live=True)
OF_OPERATION = "journal_operation (operation=?"


def entries(newest_first: bool = False, **wanted: Any) -> Request:
    before = wanted.pop("before", None)
    return lambda tx: tx.journal.page(JournalFilter(**wanted), newest_first=newest_first, before=before)


OFTEN: dict[str, tuple[Request, tuple[str, ...]]] = {
    "due": (lambda tx: tx.operations.due(NOW, 9), ("operations_due",)),
    "next due": (lambda tx: tx.operations.next_due(NOW), ("operations_due", "operations_claimed")),
    "renewed claims": (lambda tx: tx.operations.renew_claims("me", ["o"], NOW), ("operations",)),
    "operations": (lambda tx: tx.operations.page("o", 9, descending=True), ("operations_created",)),
    "live operations": (lambda tx: tx.operations.page(None, 9, LIVE_OPERATIONS), ("operations_live_created",)),
    "live operations, the last first": (
        lambda tx: tx.operations.page("o", 9, LIVE_OPERATIONS, descending=True),
        ("operations_live",),
    ),
    "events": (lambda tx: tx.events.page("E", 9), ("events_created",)),
    "live events": (lambda tx: tx.events.page("E", 9, LIVE_EVENTS), ("events_live_created",)),
    "VMs by name": (lambda tx: tx.vms.page("a", 9, VmFilter(name=of_names("a*"))), ("(name>? AND name<?)",)),
    "groups, the last first": (
        lambda tx: tx.scopes.groups(None, 9, GroupFilter(), descending=True),
        ("(key>? AND key<?)",),
    ),
    "a world": (
        lambda tx: tx.worlds.load(hosts=["a"], vms=["v"], scopes=["s"], operations=["o"], addresses=["10.0.0.1"]),
        ("vms_host", "operations_host", "events_scope", "sqlite_autoindex_vm_addresses_1"),
    ),
    "what is in the way": (lambda tx: tx.worlds.to_explain(operations=["o"], events=["E"]), ("operations",)),
    "entries of an event": (entries(event="E"), (f"{OF_OPERATION} AND event=?",)),
    "entries of a scope": (entries(True, scope="s"), ("journal_scope",)),
    "entries of a host": (entries(True, host="h", before=7), ("journal_host",)),
    "entries of a rollout": (entries(rollout="r"), ("journal_rollout",)),
    "entries of a rollout's operations": (entries(True, rollout="r", before=7), (f"COVERING INDEX {OF_OPERATION}",)),
    "entries of a VM": (
        entries(True, vm="v", before=7),
        ("journal_vm", f"COVERING INDEX {OF_OPERATION} AND event=? AND position>? AND position<?)"),
    ),
    "entries by an operator": (entries(True, by="admin:ada"), ("journal_author",)),
    "entries of an operation": (entries(True, operation="o"), ("journal_operation",)),
    "entries of named scopes": (entries(seen=NAMED), ("journal_scope",)),
    "entries since a moment": (entries(since=NOW), ("INTEGER PRIMARY KEY",)),
    "live events at a glance": (lambda tx: tx.events.live(9), ("INDEX events_live",)),
    "live events of a scope": (lambda tx: tx.events.live(9, scope="s"), ("INDEX events_scope",)),
    "what ended last": (lambda tx: tx.events.ended(NOW, 9), ("events_ended (ended_at>",)),
    "what ended last of what is seen": (lambda tx: tx.events.ended(NOW, 9, seen=SEEN), ("events_ended (ended_at>",)),
    "what ended last in a scope": (
        lambda tx: tx.events.ended(NOW, 9, scope="s"),
        ("INDEX events_scope (scope=? AND ended_at>",),
    ),
    "what ended last in scopes": (
        lambda tx: tx.events.ended(NOW, 9, seen=NAMED),
        ("INDEX events_scope (scope=? AND ended_at>",),
    ),
    "how many are live": (lambda tx: tx.events.counts(), ("INDEX events_live",)),
    "how many are live by type": (lambda tx: tx.events.counts_by_type(), ("events_live",)),
    "live events that name VMs of scopes": (lambda tx: tx.events.resources(["s"]), ("INDEX events_scope",)),
    "live events on a host": (lambda tx: tx.events.on_host("h", 9), ("INDEX events_operation",)),
    "standalone VMs": (lambda tx: tx.vms.standalone("a", 9), ("vms_scope (scope>? AND scope<?)",)),
    "standalone VMs that are seen": (
        lambda tx: tx.vms.standalone("a", 9, seen=SEEN),
        ("vms_scope (scope>? AND scope<?)",),
    ),
    "hosts of rollouts, counted": (lambda tx: tx.rollouts.counts(["r"]), ("COVERING INDEX stops_wave (rollout=?)",)),
}
SORTED = (
    "journal_operation",
    "events_live",
    "events_scope",
    "events_operation",
    "operations_due",
    "journal_vm",
    "journal_rollout",
)
"""Where what is found is little, and put in order afterwards."""


class Recorder:
    """A connection that explains each statement before it runs it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.steps: list[str] = []

    def execute(self, statement: str, parameters: Any) -> Any:
        self.steps += [row[3] for row in self._connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        return self._connection.execute(statement, parameters)


@pytest.mark.parametrize(("request_", "indexes"), OFTEN.values(), ids=OFTEN.keys())
def test_found_by_an_index(sqlite_store: Store, request_: Request, indexes: tuple[str, ...]) -> None:
    with sqlite_store.write() as transaction:
        executor = executor_of(transaction)
        executor._connection = recorder = Recorder(executor._connection)  # type: ignore[assignment]
        with suppress(errors.RefusedError):
            request_(transaction)
    plan = recorder.steps
    assert [index for index in indexes if not any(index in step for step in plan)] == [], plan
    scans = [step for step in plan if step.startswith(("SCAN journal", "SCAN events", "SCAN operations"))]
    assert [step for step in scans if "INDEX" not in step] == [], plan
    assert not any("TEMP B-TREE" in step for step in plan if not any(name in indexes[0] for name in SORTED)), plan
