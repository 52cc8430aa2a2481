"""When a commit comes late: what was promised from a moment on is promised from a later one."""

from dataclasses import replace
from datetime import datetime

from forenotice.core import calendar
from forenotice.core.draft import Draft
from forenotice.core.operations import Operation, Status
from forenotice.core.timing import whole_second_up


def make_up(draft: Draft, operation: Operation, promised_at: datetime) -> None:
    """Of an operation that was announced or started at that moment, since guests can only see it now."""
    if operation.status is Status.SCHEDULED and operation.created_at == promised_at:
        not_before = whole_second_up(operation.not_before + (draft.now - promised_at))
        if operation.kind.traits.planned:
            not_before = calendar.first_start(draft, operation.vms, operation.rollout, not_before)
        waits = operation.due_at == operation.not_before
        draft.put_operation(replace(operation, not_before=not_before, due_at=not_before if waits else operation.due_at))
        for event in draft.live_events_of(operation.id):
            draft.put_event(replace(event, not_before=not_before))
            draft.note("event.postponed", scope=event.scope, event=event.id, operation=operation.id, to=not_before)
    elif operation.status is Status.STARTED and operation.started_at == promised_at:
        draft.put_operation(replace(operation, started_at=draft.now))
