"""What is asked often is found by an index, however long the history."""

import pytest
from tests.store.samples import executor_of

from forenotice.store import events, fleet, journal, operations, rollouts, worlds
from forenotice.store.database import Store
from forenotice.store.queries import Flavour, Query

LIVE = frozenset({"live"})

OFTEN = {
    "due": (operations._DUE, "operations_due"),
    "next due": (operations._NEXT_UNCLAIMED, "operations_due"),
    "next claimed": (operations._NEXT_CLAIMED, "operations_claimed"),
    "live operations on hosts": (operations.LIVE_ON, "operations_host"),
    "renewed claims": (operations._RENEW, "operations"),
    "a page of operations": (operations._LIST.query(frozenset(), True, True), "operations_created"),
    "a page of live operations": (operations._LIST.query(LIVE, False, False), "operations_live_created"),
    "a page of live operations, the last first": (operations._LIST.query(LIVE, True, True), "operations_live"),
    "events of operations": (events.OF, "events_operation"),
    "live events in scopes": (events.LIVE_IN, "events_scope"),
    "who else must approve": (worlds.TOLD_OF, "events_operation"),
    "ended events in scopes": (events.ENDED_IN, "events_scope"),
    "counts": (events._COUNTS_BY_TYPE, "events_live"),
    "a page of events": (events._LIST.query(frozenset(), True, False), "events_created"),
    "a page of live events": (events._LIST.query(LIVE, True, False), "events_live_created"),
    "a page of VMs by name": (fleet._VM_LIST.query(frozenset({"name"}), True, False), "(name>? AND name<?)"),
    "a page of groups, the last first": (fleet._GROUP_LIST.query(frozenset(), False, True), "(key>? AND key<?)"),
    "VMs on hosts": (fleet.VMS_ON, "vms_host"),
    "VMs in scopes": (fleet.VMS_IN, "vms_scope"),
    "addresses": (fleet.ADDRESSES_NAMED, "sqlite_autoindex_vm_addresses_1"),
    "entries of an event": (journal._page(frozenset({"event"}), False), "journal_operation (operation=? AND event=?"),
    "entries of a scope": (journal._page(frozenset({"scope"}), True), "journal_scope"),
    "entries of a host": (journal._page(frozenset({"host", "before"}), True), "journal_host"),
    "entries of a rollout": (journal._page(frozenset({"rollout", "after"}), False), "journal_rollout"),
    "entries of a rollout's operations": (
        journal._page(frozenset({"rollout", "before"}), True),
        "COVERING INDEX journal_operation (operation=?",
    ),
    "entries that name a VM": (journal._page(frozenset({"vm"}), True), "journal_vm"),
    "entries of what named a VM": (
        journal._page(frozenset({"vm", "before"}), True),
        "COVERING INDEX journal_operation (operation=? AND event=? AND position<?)",
    ),
    "entries by somebody": (journal._page(frozenset({"author"}), True), "journal_author"),
    "entries of an operation": (journal._page(frozenset({"operation"}), True), "journal_operation"),
    "live events at a glance": (events.selected("live", frozenset()), "INDEX events_live"),
    "live events of a scope": (events.selected("live", frozenset({"scope"})), "INDEX events_scope"),
    "what ended last": (events.selected("ended", frozenset()), "events_ended (ended_at>"),
    "what ended last of what is seen": (events.selected("ended", frozenset({"seen"})), "events_ended (ended_at>"),
    "what ended last in a scope": (
        events.selected("ended", frozenset({"scope"})),
        "INDEX events_scope (scope=? AND ended_at>",
    ),
    "what ended last in scopes": (
        events.selected("ended", frozenset({"named", "seen"})),
        "INDEX events_scope (scope=? AND ended_at>",
    ),
    "how many are live": (events.selected("counts", frozenset()), "INDEX events_live"),
    "what is in the way in scopes": (events.IN_THE_WAY_IN, "INDEX events_scope"),
    "what has started on hosts": (operations.STARTED_ON, "operations_host"),
    "events of operations, in order": (events.OF_IN_ORDER, "INDEX events_operation"),
    "live events that name VMs of scopes": (events._RESOURCES, "INDEX events_scope"),
    "live events on a host": (events._ON_HOST, "INDEX events_operation"),
    "standalone VMs": (fleet._standalone(False), "vms_scope (scope>? AND scope<?)"),
    "standalone VMs that are seen": (fleet._standalone(True), "vms_scope (scope>? AND scope<?)"),
    "hosts of rollouts, counted": (rollouts._COUNTS, "COVERING INDEX stops_wave (rollout=?)"),
    "a moment in the journal": (journal._FIRST_SINCE, "INTEGER PRIMARY KEY"),
}

LISTS = ("named", "seen_wanted", "seen_unwanted", "names", "scopes", "name_wanted", "name_unwanted")
SORTED = (
    "INDEX events_live",
    "INDEX events_scope",
    "INDEX events_operation",
    "operations_due",
    "journal_vm",
    "journal_operation",
    "journal_rollout",
)
"""Where what is found is little, and put in order afterwards."""


@pytest.mark.parametrize(("query", "index"), OFTEN.values(), ids=OFTEN.keys())
def test_found_by_an_index(sqlite_store: Store, query: Query, index: str) -> None:
    text, order, constant = query.on(Flavour.SQLITE)
    with sqlite_store.read() as reader:
        connection = executor_of(reader)._connection
        values = [constant.get(name, "[]" if name in LISTS else 1) for name in order]
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", values)]
    assert any(index in step for step in plan), plan
    assert not any(step.startswith("SCAN journal") for step in plan), plan
    assert not any("TEMP B-TREE" in step for step in plan if not any(name in index for name in SORTED)), plan
