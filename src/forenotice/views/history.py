"""Entries of the journal as history, and its retention."""

from datetime import datetime
from typing import Any

from forenotice.views.base import NOW, Moment, Request, Response, example


class Entry(Response):
    seq: int
    at: datetime
    action: str
    by: str
    origin: str
    """The address from which the command came."""
    reason: str
    scope: str | None
    event: str | None
    operation: str | None
    host: str | None
    vm: str | None
    rollout: str | None
    data: dict[str, Any]


class Prune(Request):
    before: Moment
    """At least a day ago."""
    dry_run: bool = False
    """Only count."""


class Pruned(Response):
    before: datetime
    entries: int
    operations: int
    events: int
    rollouts: int
    kept: int
    """Entries that are older but stay: of what is live, or not yet delivered to a subscription."""
    complete: bool
    """Whether nothing is left that could be removed."""
    dry_run: bool
    """Nothing was removed: this is what would be."""


class AcceptedClock(Response):
    """The clock's time, which is now the journal's, and what that had been."""

    now: datetime
    journal: datetime
    operations: int
    """Live ones, whose notice was kept."""


example(Entry, seq=1234, action="event.approved", origin="10.0.0.99", host=None, data={})
LAST_YEAR = NOW.replace(month=1, day=1, hour=0)
example(Prune, before=LAST_YEAR, dry_run=True)
example(
    Pruned, before=LAST_YEAR, entries=5000, operations=300, events=320, rollouts=1, kept=12, complete=True, dry_run=True
)
