"""Forgetting old history: in small transactions, with room for everybody else between them."""

import threading
import time
from collections import Counter
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from forenotice.core import errors
from forenotice.core.draft import World
from forenotice.service import views
from forenotice.service.calls import Call, View, command, recalled
from forenotice.service.context import Service, UnitOfWork
from forenotice.store.retention import STAGES, Place, Stage, Step

YOUNGEST = timedelta(days=1)
"""What is younger stays: guests may still approve what has just ended, and keys of commands are remembered so long."""
REMOVED = ("entries", "operations", "events", "rollouts")
PATIENCE_SECONDS = 20.0
"""After this an answer is due, whatever is left; asking again goes on."""


def prune(service: Service, call: Call, *, before: datetime, dry_run: bool = False) -> View:
    """What happened before a moment, unless it is live or somebody is still to be told of it."""
    now = service.clock.now()
    if before.tzinfo is None:
        raise errors.RefusedError("a time needs its zone: write 2026-01-31T12:00:00Z")
    if before > now - YOUNGEST:
        raise errors.RefusedError("the history of the last 24 hours stays: give a moment before that")
    if dry_run:
        with service.store.read() as reader:
            removed, older = reader.retention.count(before), reader.retention.older(before)
        return _view(before, removed, older - removed["entries"], complete=not removed.total(), dry_run=True)
    with service.store.read() as reader:
        known = recalled(reader, call, now)
    if known is not None:
        return known

    def begin(unit: UnitOfWork) -> None:
        draft = unit.draft(World(), call)
        draft.note("history.prune_started", before=before)
        unit.keep(draft)

    # So that it is known who did it, also when it never comes to its end.
    service.transact(begin)
    removed, complete = _remove(service, before)

    def end(unit: UnitOfWork) -> View:
        kept = unit.transaction.retention.older(before)
        draft = unit.draft(World(), call)
        counts: dict[str, Any] = {name: removed[name] for name in REMOVED}
        draft.note("history.pruned", before=before, **counts)
        unit.keep(draft)
        return _view(before, removed, kept, complete=complete, dry_run=False)

    return command(service, call, end)


def _remove(service: Service, before: datetime) -> tuple[Counter[str], bool]:
    """How much went, and whether that was all."""
    begin = time.monotonic()
    removed: Counter[str] = Counter()
    for stage in STAGES:
        place: Place | None = None
        while True:
            step_begin = time.monotonic()
            found, place = service.transact(partial(_step, stage, before, place))
            removed += found
            if place is None:
                break
            now = time.monotonic()
            if now - begin > PATIENCE_SECONDS:
                return removed, False
            # Those who wait to write have as long as this took.
            threading.Event().wait(now - step_begin)
    return removed, True


def _step(stage: Stage, before: datetime, place: Place | None, unit: UnitOfWork) -> Step:
    return stage(unit.transaction.retention, before, place)


def _view(before: datetime, removed: Counter[str], kept: int, *, complete: bool, dry_run: bool) -> View:
    counts = {name: removed[name] for name in REMOVED}
    return {"before": views.moment(before), **counts, "kept": kept, "complete": complete, "dry_run": dry_run}
