"""What happened, from the journal: page by page, and all of it for an export."""

from collections.abc import Iterator
from typing import Any

from forenotice.core import errors
from forenotice.core.selectors import Selector
from forenotice.service import views, visibility
from forenotice.service.calls import View
from forenotice.service.context import Service

MANY = 1000
"""Entries that an export holds at once."""


def page(
    service: Service,
    *,
    after: int | None = None,
    limit: int = 100,
    newest_first: bool = False,
    seen: Selector | None = None,
    **filters: Any,
) -> View:
    """Filters as in the store's journal. Newest first, what follows an entry in the list came before it in time."""
    _require_zones(filters)
    if not visibility.may_ask_for(filters, seen):
        return {"items": [], "next": None}
    place: dict[str, Any] = {} if after is None else {"before" if newest_first else "after": after}
    with service.store.read() as reader:
        found = reader.journal(limit=limit, newest_first=newest_first, seen=seen, **place, **filters)
    items = [views.entry(seq, visibility.entry(entry, seen)) for seq, entry in found]
    return {"items": items, "next": items[-1]["seq"] if len(items) == limit else None}


def everything(service: Service, *, seen: Selector | None = None, **filters: Any) -> Iterator[list[View]]:
    """All that fits and is there now, oldest first, in lists; each is read on its own, as slowly as one likes."""
    _require_zones(filters)
    if not visibility.may_ask_for(filters, seen):
        return
    with service.store.read() as reader:
        last = reader.last_entry()
    after, end = 0, last[0] + 1 if last else 1
    while True:
        with service.store.read() as reader:
            found = reader.journal(after=after, before=end, limit=MANY, seen=seen, **filters)
        if found:
            yield [views.entry(seq, visibility.entry(entry, seen)) for seq, entry in found]
        if len(found) < MANY:
            return
        after = found[-1][0]


def _require_zones(filters: dict[str, Any]) -> None:
    for bound in (filters.get("since"), filters.get("until")):
        if bound is not None and bound.tzinfo is None:
            raise errors.RefusedError("a time needs its zone: write 2026-01-31T12:00:00Z")
