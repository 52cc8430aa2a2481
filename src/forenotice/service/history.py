"""What happened, from the journal: page by page, all of it for an export, and the removal of old entries."""

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from forenotice.core import errors
from forenotice.core.draft import World
from forenotice.service import views, visibility
from forenotice.service.calls import Call, command, recalled
from forenotice.service.service import Service, UnitOfWork
from forenotice.store.journal import JournalFilter
from forenotice.store.retention import STAGES, Cursor, Stage, Step
from forenotice.views import base, history
from forenotice.views.base import Page

MANY = 1000
"""Entries that an export holds at once."""
YOUNGEST = timedelta(days=1)
"""What is younger stays: guests may still approve what has just ended, and keys of commands are remembered so long."""
EVERYTHING = JournalFilter()
REMOVED = ("entries", "operations", "events", "rollouts")
PATIENCE_SECONDS = 20.0
"""After this an answer is due, whatever is left; asking again goes on."""


def page(
    service: Service,
    wanted: JournalFilter = EVERYTHING,
    *,
    after: int | None = None,
    limit: int = 100,
    newest_first: bool = False,
) -> Page[history.Entry]:
    """Newest first, what follows an entry in the list came before it in time."""
    _require_zones(wanted.since, wanted.until)
    if not visibility.may_ask_for(wanted.seen, by=wanted.by, rollout=wanted.rollout):
        return Page(items=[], next=None)
    place: dict[str, Any] = {} if after is None else {"before" if newest_first else "after": after}
    with service.store.read() as reader:
        found = reader.journal.page(wanted, limit=limit, newest_first=newest_first, **place)
    items = [views.entry(seq, visibility.entry(entry, wanted.seen)) for seq, entry in found]
    return base.page(items, limit, "seq")


def everything(service: Service, wanted: JournalFilter = EVERYTHING) -> Iterator[list[history.Entry]]:
    """All that fits and is there now, oldest first, in lists; each is read on its own, as slowly as one likes."""
    _require_zones(wanted.since, wanted.until)
    if not visibility.may_ask_for(wanted.seen, by=wanted.by, rollout=wanted.rollout):
        return
    with service.store.read() as reader:
        last = reader.journal.last()
    after, end = 0, last[0] + 1 if last else 1
    while True:
        with service.store.read() as reader:
            found = reader.journal.page(wanted, after=after, before=end, limit=MANY)
        if found:
            yield [views.entry(seq, visibility.entry(entry, wanted.seen)) for seq, entry in found]
        if len(found) < MANY:
            return
        after = found[-1][0]


def _require_zones(*bounds: datetime | None) -> None:
    for bound in bounds:
        if bound is not None and bound.tzinfo is None:
            raise errors.RefusedError("a time needs its zone: write 2026-01-31T12:00:00Z")


def prune(service: Service, call: Call, *, before: datetime, dry_run: bool = False) -> history.Pruned:
    """Remove entries before a moment, except for live events and what is still to be delivered."""
    now = service.clock.now()
    _require_zones(before)
    if before > now - YOUNGEST:
        raise errors.RefusedError("the history of the last 24 hours stays: give a moment before that")
    if dry_run:
        with service.store.read() as reader:
            removed, older = reader.retention.count(before), reader.retention.older(before)
        return _pruned(before, removed, older - removed["entries"], complete=not removed.total(), dry_run=True)
    with service.store.read() as reader:
        known = recalled(reader, call, history.Pruned, now)
    if known is not None:
        return known

    def begin(unit: UnitOfWork) -> None:
        draft = unit.draft(World(), call)
        draft.note("history.prune_started", before=before)
        unit.keep(draft)

    # So that it is known who did it, also when it never comes to its end.
    service.transact(begin)
    removed, complete = _remove(service, before)

    def end(unit: UnitOfWork) -> history.Pruned:
        kept = unit.transaction.retention.older(before)
        draft = unit.draft(World(), call)
        draft.note("history.pruned", before=before, **{name: removed[name] for name in REMOVED})
        unit.keep(draft)
        return _pruned(before, removed, kept, complete=complete, dry_run=False)

    return command(service, call, history.Pruned, end)


def _remove(service: Service, before: datetime) -> tuple[Counter[str], bool]:
    """How much went, and whether that was all."""
    monotonic = service.runtime.monotonic
    begin = monotonic()
    removed: Counter[str] = Counter()
    for stage in STAGES:
        cursor: Cursor | None = None
        while True:
            step_begin = monotonic()
            found, cursor = service.transact(partial(_remove_some, stage, before, cursor))
            removed += found
            if cursor is None:
                break
            now = monotonic()
            if now - begin > PATIENCE_SECONDS:
                return removed, False
            # Those who wait to write have as long as this took.
            threading.Event().wait(now - step_begin)
    return removed, True


def _remove_some(stage: Stage, before: datetime, cursor: Cursor | None, unit: UnitOfWork) -> Step:
    return stage(unit.transaction.retention, before, cursor)


def _pruned(before: datetime, removed: Counter[str], kept: int, *, complete: bool, dry_run: bool) -> history.Pruned:
    counts = {name: removed[name] for name in REMOVED}
    return history.Pruned(before=before, **counts, kept=kept, complete=complete, dry_run=dry_run)
