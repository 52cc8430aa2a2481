"""What is asked often is found by an index, however long the history."""

import pytest
from tests.store.samples import session_of

from notbefore.store import events, fleet, journal, loading, operations
from notbefore.store.contract import Store
from notbefore.store.session import Flavour, Query

OFTEN = {
    "due": (operations._DUE, "operations_due"),
    "next due": (operations._NEXT_UNCLAIMED, "operations_due"),
    "next claimed": (operations._NEXT_CLAIMED, "operations_claimed"),
    "live operations on hosts": (operations.LIVE_ON, "operations_host"),
    "renewed claims": (operations._RENEW, "operations"),
    "a page of operations": (operations._page(True, None, False, False, False), "operations_created"),
    "events of operations": (events.OF, "events_operation"),
    "live events in scopes": (events.LIVE_IN, "events_scope"),
    "who else must approve": (loading.TOLD_OF, "events_operation"),
    "ended events in scopes": (events.ENDED_IN, "events_scope"),
    "counts": (events._COUNTS, "events_live"),
    "a page of events": (events._page(True, None, False, False, False), "events_created"),
    "VMs on hosts": (fleet.VMS_ON, "vms_host"),
    "VMs in scopes": (fleet.VMS_IN, "vms_scope"),
    "addresses": (fleet.ADDRESSES_NAMED, "sqlite_autoindex_vm_addresses_1"),
    "entries of an event": (journal._page(frozenset({"event"}), False), "journal_event"),
    "entries of a scope": (journal._page(frozenset({"scope"}), True), "journal_scope"),
    "entries of a host": (journal._page(frozenset({"host", "before"}), True), "journal_host"),
    "entries of a rollout": (journal._page(frozenset({"rollout", "after"}), False), "journal_rollout"),
    "entries that name a VM": (journal._page(frozenset({"vm"}), True), "journal_vm"),
    "entries of events that named a VM": (journal._page(frozenset({"vm", "before"}), True), "journal_event"),
    "entries of operations that named a VM": (journal._page(frozenset({"vm", "after"}), False), "journal_operation"),
    "entries of an operation": (journal._page(frozenset({"operation"}), True), "journal_operation"),
    "entries of an operation's events": (journal._page(frozenset({"operation"}), True), "journal_event"),
    "a moment in the journal": (journal._FROM, "INTEGER PRIMARY KEY"),
}

SORTED = ("operations_due", "journal_vm", "journal_event", "journal_operation")
"""Where what is found is little, and put in order afterwards."""


@pytest.mark.parametrize(("query", "index"), OFTEN.values(), ids=OFTEN.keys())
def test_found_by_an_index(sqlite_store: Store, query: Query, index: str) -> None:
    text, order, constant = query.on(Flavour.SQLITE)
    with sqlite_store.read() as reader:
        connection = session_of(reader)._connection
        values = [constant.get(name, "[]" if name in ("names", "scopes") else 1) for name in order]
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", values)]
    assert any(index in step for step in plan), plan
    assert not any(step.startswith("SCAN journal") for step in plan), plan
    assert not any("TEMP B-TREE" in step for step in plan if index not in SORTED), plan
