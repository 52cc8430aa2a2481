"""What is going on now: how much it is, its picture, and what is most urgent with why it waits."""

from collections.abc import Mapping
from datetime import datetime

from forenotice.core import lifecycle, rollout_plan
from forenotice.core.draft import Draft
from forenotice.core.operations import Status
from forenotice.core.roles import Access, Need
from forenotice.service import queries, views, visibility
from forenotice.service.calls import View
from forenotice.service.context import Service, new_id
from forenotice.service.targeting import with_targets
from forenotice.store.overview import Life
from forenotice.store.transaction import Reader

PAGE = 25


def now(
    service: Service, access: Access, *, since: datetime, most: int, scope: str | None = None, page: int = 1
) -> View:
    """All of one moment, for somebody who has this access; `scope`: of that one alone.

    `counts` are of live events by status. `bars` are live events, the most urgent first, then those that ended since,
    the last first; their moments are not text. Those that ended have what live ones leave of `most`, and never less
    than a quarter of it; `more` says whether there are others.
    `listed` is a page of the live ones, the most urgent first, each with why it waits and what the caller may do; a
    page beyond the last is the last.
    """
    seen = access.scopes
    with service.store.read() as reader:
        overview = reader.overview
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
    return {
        "now": moment,
        "counts": {str(status): counts.get(status, 0) for status in (Status.STARTED, Status.SCHEDULED)},
        "live": total,
        "bars": [_bar(service, life, moment) for life in (*live, *ended[:left])],
        "more": {"live": total > len(live), "ended": len(ended) > left},
        "listed": listed,
        "page": page,
        "pages": pages,
    }


def _bar(service: Service, life: Life, now: datetime) -> View:
    # An event that was cancelled alone never started, whatever became of its operation.
    started_at = None if life.status is Status.CANCELED else life.started_at
    expected_end = None
    if life.ended_at is None:
        expected_end = rollout_plan.expected_end(
            life.kind, not_before=life.not_before, started_at=started_at, now=now, timing=service.timing
        )
    return {
        "id": life.id,
        "scope": life.scope,
        "resources": life.resources,
        "type": life.type,
        "status": life.status,
        "created_at": life.created_at,
        "not_before": life.not_before,
        "started_at": started_at,
        "ended_at": life.ended_at,
        "expected_end": expected_end,
    }


def with_reasons(service: Service, reader: Reader, events: Mapping[str, str], access: Access) -> list[View]:
    """Live events by id, each with its operation's; all from one load, by the same rules as for one alone."""
    world = reader.load_to_explain(events=list(events))
    draft = with_targets(service, reader, set(events.values()), world)
    shown = Draft(visibility.limited(world, access.scopes), now=draft.now, timing=service.timing, new_id=new_id)
    return [_item(service, draft, shown, event_id, access) for event_id in events]


def _item(service: Service, draft: Draft, shown: Draft, event_id: str, access: Access) -> View:
    event, seen = draft.event(event_id), shown.event(event_id)
    operation = draft.operation(event.operation)
    told = shown.operation(event.operation)
    return {
        **views.event_of(told, seen),
        "started_at": views.moment(told.started_at),
        "why": queries.explained(service, draft, event, access.scopes),
        "may_approve": lifecycle.awaits_approval(event) and access.may(Need.OPERATE),
        "may_cancel": lifecycle.may_be_canceled(operation)
        and access.may_cancel(operation, draft.events_of(operation.id)),
    }
