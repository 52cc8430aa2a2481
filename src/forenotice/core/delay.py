"""Moves NotBefore and start times after the fact: a commit came late, or the clock was wrong."""

from dataclasses import replace
from datetime import datetime, timedelta

from forenotice.core import calendar
from forenotice.core.draft import Draft
from forenotice.core.operations import Operation, Status
from forenotice.core.timing import whole_second_up


def make_up(draft: Draft, operation: Operation, promised_at: datetime) -> None:
    """Of an operation that was announced or started at that moment, since guests can only see it now."""
    events = draft.live_events_of(operation.id)
    announced_at = events[0].created_at if events else operation.created_at
    if operation.status is Status.SCHEDULED and announced_at == promised_at:
        waits = operation.due_at == operation.not_before
        postponed = _postpone(draft, operation, operation.not_before + (draft.now - promised_at))
        draft.put_operation(replace(postponed, due_at=postponed.not_before if waits else operation.due_at))
    elif operation.status is Status.STARTED and operation.started_at == promised_at:
        draft.put_operation(replace(operation, started_at=draft.now))


def set_right(draft: Draft, operation: Operation, wrongly: datetime) -> None:
    """After a wrong clock was corrected: the operation keeps the notice it had left at `wrongly`."""
    if operation.status is Status.SCHEDULED:
        left = operation.expires_at - wrongly
        if left > timedelta(0) or operation.not_before > draft.now:
            operation = _postpone(draft, operation, draft.now + max(left, timedelta(0)))
        draft.put_operation(replace(operation, due_at=draft.now))
    elif operation.status is Status.STARTED:
        since = min(operation.started_at or draft.now, draft.now)
        draft.put_operation(replace(operation, started_at=since, due_at=draft.now))
    elif operation.status is Status.PLANNED:
        draft.put_operation(replace(operation, due_at=draft.now))


def _postpone(draft: Draft, operation: Operation, to: datetime) -> Operation:
    """Changes and notes its events; the caller puts the returned operation."""
    not_before = whole_second_up(to)
    if operation.kind.traits.planned:
        not_before = calendar.first_start(draft, operation.vms, operation.rollout, not_before)
    for event in draft.live_events_of(operation.id):
        draft.put_event(replace(event, not_before=not_before))
        draft.note("event.postponed", scope=event.scope, event=event.id, operation=operation.id, to=not_before)
    return replace(operation, not_before=not_before, clock_jumped=timedelta(0))
