"""One event as whoever looks at it needs it: what its guests are told, what became of it, and what may be done."""

from operator import itemgetter
from typing import Any

import msgspec

from forenotice.core import documents
from forenotice.core.draft import Draft
from forenotice.core.journal import Entry
from forenotice.core.operations import Event, Status
from forenotice.core.roles import Access, Need
from forenotice.core.selectors import Selector
from forenotice.service import views, visibility
from forenotice.service.calls import View
from forenotice.service.context import Service, new_id
from forenotice.store.transaction import Reader
from forenotice.wire import document, versions

MOST = 100
"""Entries from the beginning of an operation's life, and so many from its end."""


def life(service: Service, event_id: str, access: Access) -> View:
    """`entries` are this event's, its operation's, and what others have approved; the first and last of many."""
    with service.store.read() as reader:
        draft = _draft(service, reader, event_id)
        shown = Draft(visibility.limited(draft.world, access.scopes), now=draft.now, timing=draft.timing, new_id=new_id)
        event = shown.event(event_id)
        entries = _entries(reader, event, access.scopes)
    operation = draft.operation(event.operation)
    events = draft.events_of(operation.id)
    scheduled = event.status is Status.SCHEDULED
    return {
        "event": views.event_of(shown.operation(operation.id), event),
        "operation": views.operation(shown.operation(operation.id), shown.events_of(operation.id)),
        "told": _told(draft, event) if event.status.live else None,
        "entries": [views.entry(seq, visibility.entry(entry, access.scopes)) for seq, entry in entries],
        "may_approve": scheduled and (not event.approved or event.implied) and access.may(Need.OPERATE),
        "may_cancel": scheduled and access.may_cancel(operation, events),
    }


def _draft(service: Service, reader: Reader, event_id: str) -> Draft:
    return Draft(reader.load(events=[event_id]), now=service.clock.now(), timing=service.timing, new_id=new_id)


def _entries(reader: Reader, event: Event, seen: Selector | None) -> list[tuple[int, Entry]]:
    found: dict[int, Entry] = {}
    asked: list[dict[str, Any]] = [
        {"event": event.id},
        {"operation": event.operation},
        {"operation": event.operation, "newest_first": True},
    ]
    for filters in asked:
        found |= reader.journal(limit=MOST, seen=seen, **filters)
    return [
        (seq, entry)
        for seq, entry in sorted(found.items(), key=itemgetter(0))
        if entry.event in (None, event.id) or entry.action == "event.approved"
    ]


def _told(draft: Draft, event: Event) -> View:
    """The event as its guests read it in the newest api-version."""
    scope = draft.scope(event.scope)
    [told] = msgspec.json.decode(document.render(documents.document(scope, [event]), versions.NEWEST))["Events"]
    return dict(told)
