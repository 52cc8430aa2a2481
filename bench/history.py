"""Pages of history from a journal of a million entries, on both databases."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from bench import report, servers
from bench.effort import Effort
from forenotice.core.draft import Draft, World
from forenotice.core.operations import Event, EventType, Kind, Operation, Source, Status
from forenotice.core.selectors import of_scopes
from forenotice.core.timing import Timing
from forenotice.runtime import new_id
from forenotice.store.database import Store
from forenotice.store.journal import JournalFilter
from forenotice.store.opener import open_store
from forenotice.store.transaction import Reader

LIMIT_MS = 20.0
PAGE = 100
PAGING = {"before", "newest_first"}
HOSTS, PER_HOST, GROUPS = 200, 20, 800
ENTRIES_OF_ONE = 4 + 4 * PER_HOST
BUSY = 20
"""Of so many updates one is of the first host, whose VMs have ten times the history of others."""
AT_ONCE = 50
"""Updates in one transaction."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BETWEEN = timedelta(seconds=10)
TURNS = 15
"""Of each page; the median and the worst count."""


def measure(effort: Effort) -> list[report.Row]:
    rows: list[report.Row] = []
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        rows += _measure_on("SQLite", f"sqlite:///{Path(directory) / 'forenotice.db'}", effort.entries)
    with servers.postgresql() as url:
        rows += _measure_on("PostgreSQL", url, effort.entries)
    return rows


def _measure_on(name: str, url: str, entries: int) -> list[report.Row]:
    store = open_store(url, migrate=True)
    try:
        begin = time.perf_counter()
        event = _fill(store, entries)
        seconds = time.perf_counter() - begin
        if name == "PostgreSQL":
            with psycopg.connect(url, autocommit=True) as connection:
                # As its own housekeeping would have done by now.
                connection.execute("VACUUM ANALYZE")
        what = f"history from {entries:,} entries on {name}"
        rows = [report.Row(what=f"{what}: written", measured=f"{entries / seconds:,.0f}/s")]
        for page, filters in _pages(entries, event).items():
            middle, worst = _timed(store, filters)
            shown = report.within(f"{what}, a page {page}", middle, LIMIT_MS, "{:.1f} ms", f"worst {worst:.1f} ms")
            rows.append(shown)
        return rows
    finally:
        store.close()


def _pages(entries: int, event: str) -> dict[str, dict[str, Any]]:
    deep = {"before": entries // 10, "newest_first": True}
    newest = {"newest_first": True}
    middle = BEGIN + entries // ENTRIES_OF_ONE * BETWEEN / 2
    vm, busy, group, host = "vm-1030", "vm-10", "group:group-230", "host-51"
    return {
        "by VM": {"vm": vm, **newest},
        "by VM, deep": {"vm": vm, **deep},
        "by VM, oldest first": {"vm": vm},
        "by the busiest VM": {"vm": busy, **newest},
        "by the busiest VM, deep": {"vm": busy, **deep},
        "by the busiest VM, oldest first": {"vm": busy},
        "by group": {"scope": group, **newest},
        "by group, deep": {"scope": group, **deep},
        "by host": {"host": host, **newest},
        "by host, deep": {"host": host, **deep},
        "by event": {"event": event},
        "by actor": {"by": "operator:ada", **newest},
        "by actor, deep": {"by": "operator:ada", **deep},
        "of a day": {"since": middle, "until": middle + timedelta(days=1)},
        "of a VM's day": {"vm": busy, "since": middle, "until": middle + timedelta(days=1)},
        "as a tenant sees it": {"seen": of_scopes("group-23?"), **newest},
    }


def _timed(store: Store, filters: dict[str, Any]) -> tuple[float, float]:
    """In milliseconds, the first reading apart: what was never asked for may be on the disk still."""
    taken = []
    for _ in range(TURNS):
        with store.read() as reader:
            begin = time.perf_counter()
            found = _page(reader, filters)
            taken.append((time.perf_counter() - begin) * 1000)
        if not found:
            raise SystemExit(f"bench: nothing was found by {filters}")
    return median(taken), max(taken)


def _page(reader: Reader, filters: dict[str, Any]) -> int:
    return len(
        reader.journal.page(
            JournalFilter(**{name: value for name, value in filters.items() if name not in PAGING}),
            limit=PAGE,
            **{name: value for name, value in filters.items() if name in PAGING},
        )
    )


def _fill(store: Store, entries: int) -> str:
    """Gives an event from the middle."""
    updates = -(-entries // ENTRIES_OF_ONE)
    chosen = ""
    for first in range(0, updates, AT_ONCE):
        draft = Draft(World(), now=BEGIN, timing=Timing(), new_id=new_id)
        for number in range(first, min(first + AT_ONCE, updates)):
            _update(draft, number)
        with store.write() as transaction:
            transaction.apply(draft.changes(shown=False))
        if first <= updates // 2:
            chosen = next(iter(draft.world.events))
    return chosen


def _update(draft: Draft, number: int) -> None:
    """An update of one host, from its announcement to its end; each VM of the host is of another group."""
    host = 0 if number % BUSY == 0 else number % HOSTS
    draft.now = BEGIN + number * BETWEEN
    vms = [host * PER_HOST + place for place in range(PER_HOST)]
    over: dict[str, Any] = {
        "status": Status.COMPLETED,
        "created_at": draft.now,
        "not_before": draft.now,
        "ended_at": draft.now,
    }
    operation = Operation(
        id=new_id(),
        kind=Kind.HOST_UPDATE,
        host=f"host-{host}",
        vms=tuple(f"vm-{vm}" for vm in vms),
        due_at=None,
        **over,
    )
    draft.put_operation(operation)
    events = [
        Event(
            id=new_id().upper(),
            operation=operation.id,
            scope=f"group:group-{vm % GROUPS}",
            resources=(f"vm-{vm}",),
            update_domain=0,
            type=EventType.FREEZE,
            source=Source.PLATFORM,
            description="",
            duration=9,
            **over,
        )
        for vm in vms
    ]
    for event in events:
        draft.put_event(event)
    draft.by = "operator:ada" if number % 2 else "operator:bob"
    _tell(draft, "scheduled", operation, events)
    draft.by = ""
    for event in events:
        draft.note("event.approved", scope=event.scope, event=event.id, operation=operation.id, late=False)
    _tell(draft, "started", operation, events)
    draft.note("driver.finished", operation=operation.id, host=operation.host, done=list(operation.vms))
    _tell(draft, "completed", operation, events)


def _tell(draft: Draft, what: str, operation: Operation, events: list[Event]) -> None:
    about: dict[str, Any] = {"operation": operation.id, "host": operation.host}
    draft.note(f"operation.{what}", vms=list(operation.vms), **about)
    for event in events:
        draft.note(f"event.{what}", scope=event.scope, event=event.id, results={event.resources[0]: "done"}, **about)
