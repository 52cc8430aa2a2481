"""What is going on now, in the whole fleet or at one VM, host, group or event: each event with why it waits."""

from collections.abc import Mapping
from datetime import datetime
from operator import itemgetter

import msgspec

from forenotice.core import documents, explanations, lifecycle, rollout_plan
from forenotice.core.draft import Draft
from forenotice.core.fleet import group_key
from forenotice.core.journal import Entry
from forenotice.core.operations import Event, Status
from forenotice.core.roles import Access, Need
from forenotice.core.selectors import Selector
from forenotice.service import queries, views, visibility
from forenotice.service.queries import with_targets
from forenotice.service.service import Service
from forenotice.store.events import EventFilter, EventSummary
from forenotice.store.journal import JournalFilter
from forenotice.store.operations import OperationFilter
from forenotice.store.transaction import Reader
from forenotice.views import maintenance
from forenotice.views.base import Matches
from forenotice.wire import document, versions

PAGE = 25
MOST = 20
MOST_ENTRIES = 100
"""Entries from the beginning of an operation's life, and so many from its end."""


def now(
    service: Service, access: Access, *, since: datetime, most: int, scope: str | None = None, page: int = 1
) -> maintenance.Overview:
    """A snapshot of one moment, limited to this access; `scope` limits it to that one.

    `counts` are of live events by status. `bars` are live events, the most urgent first, then those that ended since,
    the last first. Those that ended have what live ones leave of `most`, and never less
    than a quarter of it; `more` says whether there are others.
    `listed` is a page of the live ones, the most urgent first, each with why it waits and what the caller may do; a
    page beyond the last is the last.
    """
    seen = access.scopes
    with service.store.read() as reader:
        overview = reader.events
        counts = overview.counts(scope=scope, seen=seen)
        total = sum(counts.values())
        pages = max(1, -(-total // PAGE))
        page = min(max(1, page), pages)
        live = overview.live(most, scope=scope, seen=seen)
        left = max(most - len(live), most // 4)
        ended = overview.ended(since, left + 1, scope=scope, seen=seen)
        urgent = overview.live(PAGE, offset=(page - 1) * PAGE, scope=scope, seen=seen)
        listed = with_reasons(service, reader, {life.id: life.operation for life in urgent}, access)
    moment = service.clock.now()
    return maintenance.Overview(
        now=moment,
        counts={status: counts.get(status, 0) for status in (Status.STARTED, Status.SCHEDULED)},
        live=total,
        bars=[_bar(service, life, moment) for life in (*live, *ended[:left])],
        more=maintenance.More(live=total > len(live), ended=len(ended) > left),
        listed=listed,
        page=page,
        pages=pages,
    )


def _bar(service: Service, life: EventSummary, now: datetime) -> maintenance.Bar:
    # An event that was cancelled alone never started, whatever became of its operation.
    started_at = None if life.status is Status.CANCELED else life.started_at
    expected_end = None
    if life.ended_at is None:
        expected_end = rollout_plan.expected_end(
            life.kind,
            life.duration,
            not_before=life.not_before,
            started_at=started_at,
            now=now,
            timing=service.timing,
        )
    return views.of(maintenance.Bar, life, started_at=started_at, expected_end=expected_end)


def with_reasons(
    service: Service, reader: Reader, events: Mapping[str, str], access: Access
) -> list[maintenance.LiveEvent]:
    """Live events by id, each with its operation's; all from one load, by the same rules as for one alone."""
    world = reader.worlds.to_explain(events=list(events))
    draft = with_targets(service, reader, set(events.values()), world)
    shown = visibility.visible(draft, access.scopes)
    return [_item(service, draft, shown, event_id, access) for event_id in events]


def _item(service: Service, draft: Draft, shown: Draft, event_id: str, access: Access) -> maintenance.LiveEvent:
    event, seen = draft.event(event_id), shown.event(event_id)
    operation = draft.operation(event.operation)
    told = shown.operation(event.operation)
    return maintenance.LiveEvent(
        **msgspec.structs.asdict(views.event_of(told, seen)),
        started_at=told.started_at,
        why=queries.explained(service, draft, event, access.scopes),
        may_approve=lifecycle.awaits_approval(event) and access.may(Need.OPERATE),
        may_cancel=lifecycle.may_be_canceled(operation) and access.may_cancel(operation, draft.events_of(operation.id)),
    )


def of_vm(service: Service, name: str, access: Access) -> Matches[maintenance.LiveEvent]:
    with service.store.read() as reader:
        # Of each kind one can wait for a VM, and one be under way: that is never more.
        found = reader.events.page(None, MOST + 1, EventFilter(live=True, vm=name, seen=access.scopes))
        ordered = sorted(
            documents.in_order(found), key=lambda event: (event.status is not Status.STARTED, event.not_before)
        )
        return _explained(service, reader, {event.id: event.operation for event in ordered}, access)


def of_group(service: Service, name: str, access: Access) -> Matches[maintenance.LiveEvent]:
    with service.store.read() as reader:
        found = reader.events.live(MOST + 1, scope=group_key(name), seen=access.scopes)
        return _explained(service, reader, {life.id: life.operation for life in found}, access)


def of_host(service: Service, name: str, access: Access) -> Matches[maintenance.LiveEvent]:
    """For callers that may see hosts."""
    with service.store.read() as reader:
        return _explained(service, reader, reader.events.on_host(name, MOST + 1), access)


def planned(service: Service, access: Access, *, host: str | None = None) -> Matches[maintenance.PlannedOperation]:
    """Planned operations with the time when guests are told; none for those with limited scopes."""
    with service.store.read() as reader:
        known = reader.operations.page(
            None, MOST + 1, OperationFilter(live=True, status=Status.PLANNED, host=host, seen=access.scopes)
        )
        draft = service.draft(reader.worlds.to_explain(operations=[each.id for each in known[:MOST]]))
    items = [
        maintenance.PlannedOperation(
            **msgspec.structs.asdict(views.operation(each, [])),
            why=views.explanation(explanations.explain_operation(draft, each, service.expiry_from)),
        )
        for each in known[:MOST]
    ]
    return Matches(items=items, more=len(known) > MOST)


def _explained(
    service: Service, reader: Reader, events: dict[str, str], access: Access
) -> Matches[maintenance.LiveEvent]:
    shown = dict(list(events.items())[:MOST])
    return Matches(items=with_reasons(service, reader, shown, access), more=len(events) > MOST)


def of_event(service: Service, event_id: str, access: Access) -> maintenance.EventDetail:
    """`entries` are this event's, its operation's, and what others have approved; the first and last of many."""
    with service.store.read() as reader:
        draft = service.draft(reader.worlds.load(events=[event_id]))
        shown = visibility.visible(draft, access.scopes)
        event = shown.event(event_id)
        entries = _entries(reader, event, access.scopes)
    operation = draft.operation(event.operation)
    events = draft.events_of(operation.id)
    scheduled = event.status is Status.SCHEDULED
    return maintenance.EventDetail(
        event=views.event_of(shown.operation(operation.id), event),
        operation=views.operation(shown.operation(operation.id), shown.events_of(operation.id)),
        told=dict(_as_guests_read(draft, event)) if event.status.live else None,
        entries=[views.entry(seq, visibility.entry(entry, access.scopes)) for seq, entry in entries],
        may_approve=scheduled and (not event.approved or event.implied) and access.may(Need.OPERATE),
        may_cancel=scheduled and access.may_cancel(operation, events),
    )


def _entries(reader: Reader, event: Event, seen: Selector | None) -> list[tuple[int, Entry]]:
    found: dict[int, Entry] = {}
    of_operation = JournalFilter(operation=event.operation, seen=seen)
    found |= reader.journal.page(JournalFilter(event=event.id, seen=seen), limit=MOST_ENTRIES)
    found |= reader.journal.page(of_operation, limit=MOST_ENTRIES)
    found |= reader.journal.page(of_operation, limit=MOST_ENTRIES, newest_first=True)
    return [
        (seq, entry)
        for seq, entry in sorted(found.items(), key=itemgetter(0))
        if entry.event in (None, event.id) or entry.action == "event.approved"
    ]


def _as_guests_read(draft: Draft, event: Event) -> Mapping[str, object]:
    """The event as its guests read it in the newest api-version."""
    scope = draft.scope(event.scope)
    [told] = msgspec.json.decode(document.render(documents.document(scope, [event]), versions.NEWEST))["Events"]
    return dict(told)
