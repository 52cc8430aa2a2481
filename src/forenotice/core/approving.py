"""Approvals: a guest's StartRequests, or an operator's word."""

from dataclasses import dataclass, replace

from forenotice.core import ending, errors
from forenotice.core.draft import Draft
from forenotice.core.operations import Event, Kind, Status
from forenotice.core.timing import ENDED_APPROVABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """The StartRequests of one guest."""

    vm: str
    scope: str
    event_ids: tuple[str, ...]


def approve_as_guest(draft: Draft, approval: Approval) -> None:
    """All of them or none. Another scope's event and one that does not exist are refused alike."""
    vm = draft.world.vms.get(approval.vm)
    if vm is None or vm.scope != approval.scope:
        raise errors.RefusedError("this VM has just left its group or the fleet: nothing was approved")
    events: dict[str, Event] = {}
    for event_id in approval.event_ids:
        event = draft.world.events.get(event_id.upper())
        if event is None or event.scope != approval.scope or not _is_approvable(draft, event):
            raise errors.RefusedError("an EventId names no live event of this VM: nothing was approved")
        events[event.id] = event
    for event in events.values():
        approve(draft, event, approval.vm)


def approve_as_operator(draft: Draft, event: Event, by: str) -> None:
    """Again is the same as once, also when it is over."""
    if not event.status.live and not event.approved:
        raise errors.ConflictError(f"event {event.id} is over: {event.status}", event=event.id, status=event.status)
    approve(draft, event, by)


def approve(draft: Draft, event: Event, by: str) -> None:
    """Once is enough: an approved, started or just ended event stays as it is."""
    if not is_open(event):
        return
    draft.put_event(replace(event, approved_at=draft.now, approved_by=by, implied=False))
    draft.note(
        "event.approved",
        scope=event.scope,
        event=event.id,
        operation=event.operation,
        approved_by=by,
        late=draft.now >= event.not_before,
    )
    operation = draft.operation(event.operation)
    if operation.kind is Kind.DELETION:
        # Later deletions of the group may have waited for this one.
        draft.wake(event.scope)
    ending.look_again_if_approved(draft, operation)


def is_open(event: Event) -> bool:
    """Whether somebody's word would make a difference."""
    return event.status is Status.SCHEDULED and (event.implied or not event.approved)


def _is_approvable(draft: Draft, event: Event) -> bool:
    return event.ended_at is None or draft.now - event.ended_at <= ENDED_APPROVABLE
