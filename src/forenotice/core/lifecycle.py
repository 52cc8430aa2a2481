"""The life of an operation: who listens, approvals, its start, its end, and NotBefore moved after the fact."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forenotice.core import errors, fleet, placement, windows
from forenotice.core.blockers import Blocker, BlockerKind, start_blockers
from forenotice.core.draft import Draft
from forenotice.core.fleet import Listening, Scope
from forenotice.core.operations import Event, Kind, Operation, Status
from forenotice.core.timing import ENDED_APPROVABLE, Timing, whole_second_up

RECHECK = timedelta(seconds=60)
"""What is held is looked at when something ends or changes; and this often, in case that was missed."""
TRACKED = frozenset(
    {BlockerKind.APPROVAL, BlockerKind.NOTICE, BlockerKind.CLOCK, BlockerKind.START_UP, BlockerKind.WINDOW}
)
"""Blockers that go by themselves at a known time, or by an approval that makes the operation due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequests:
    """What one guest approves with one POST: the EventIds of its StartRequests."""

    vm: str
    scope: str
    event_ids: tuple[str, ...]
    at: datetime | None = None
    """When its edge took it; None: now."""


# Listening: a scope of which no guest polls cannot be waited for.


def is_listening(scope: Scope, now: datetime, timing: Timing) -> bool:
    if scope.policy.listening is Listening.AUTO:
        # An edge that is lost is not a scope that is silent.
        return _was_heard(scope, min(now, scope.unheard_since or now), timing)
    return scope.policy.listening is Listening.ALWAYS


def would_wake(scope: Scope, now: datetime, timing: Timing) -> bool:
    """Whether a poll makes it listen; also if it does only because an edge is lost."""
    return scope.policy.listening is Listening.AUTO and not _was_heard(scope, now, timing)


def _was_heard(scope: Scope, at: datetime, timing: Timing) -> bool:
    return scope.last_heard is not None and at - scope.last_heard < timing.silence


def record_poll(draft: Draft, key: str, at: datetime) -> None:
    """A guest of the scope has polled: it listens from now on."""
    scope = draft.scope(key)
    if scope.last_heard is not None and scope.last_heard >= at:
        return
    wakes = would_wake(scope, draft.now, draft.timing)
    draft.put_scope(replace(scope, last_heard=at))
    if wakes and is_listening(draft.scope(key), draft.now, draft.timing):
        draft.note("scope.listening", scope)
        withdraw_silence(draft, key)


def withdraw_silence(draft: Draft, key: str) -> None:
    """What silence had approved needs a real approval now, while it is still Scheduled."""
    for event in draft.live_events_in(key):
        if event.implied and event.status is Status.SCHEDULED:
            draft.put_event(replace(event, approved_at=None, approved_by=None, implied=False))
            draft.note("event.silence_withdrawn", event)
            operation = draft.operation(event.operation)
            draft.put_operation(replace(operation, due_at=operation.not_before, held=False))


# Approvals

LEFT = "this VM has just left its host, its group or the fleet: nothing was approved"


def approve_as_guest(draft: Draft, start_requests: StartRequests) -> None:
    """All of them or none. Another scope's event and one that does not exist are refused alike."""
    vm = draft.world.vms.get(start_requests.vm)
    if vm is None or vm.scope != start_requests.scope:
        raise errors.RefusedError(LEFT)
    events: dict[str, Event] = {}
    for event_id in start_requests.event_ids:
        event = draft.world.events.get(event_id.upper())
        at = start_requests.at or draft.now
        over = event is not None and event.ended_at is not None and at - event.ended_at > ENDED_APPROVABLE
        if event is None or event.scope != start_requests.scope or over:
            raise errors.RefusedError("an EventId names no live event of this VM: nothing was approved")
        events[event.id] = event
    for event in events.values():
        approve(draft, event, start_requests.vm)


def approve_as_operator(draft: Draft, event: Event, by: str) -> None:
    """Again is the same as once, also when it is over."""
    if not event.status.live and not event.approved:
        raise errors.ConflictError(f"event {event.id} is over: {event.status}", event=event.id, status=event.status)
    approve(draft, event, by)


def approve(draft: Draft, event: Event, by: str) -> None:
    """Once is enough: an approved, started or just ended event stays as it is."""
    if not awaits_approval(event):
        return
    draft.put_event(replace(event, approved_at=draft.now, approved_by=by, implied=False))
    draft.note("event.approved", event, approved_by=by, late=draft.now >= event.not_before)
    operation = draft.operation(event.operation)
    if operation.kind is Kind.DELETION:
        # Later deletions of the group may have waited for this one.
        draft.wake(event.scope)
    _make_due_if_approved(draft, operation)


def awaits_approval(event: Event) -> bool:
    """Whether an approval would make a difference."""
    return event.status is Status.SCHEDULED and (event.implied or not event.approved)


def _make_due_if_approved(draft: Draft, operation: Operation) -> None:
    if operation.id not in draft.world.awaited_elsewhere and all(
        event.approved for event in draft.live_events_of(operation.id)
    ):
        draft.put_operation(replace(operation, due_at=draft.now, held=False))


# Start


def start_or_hold(draft: Draft, operation: Operation, expiry_from: datetime) -> list[Blocker]:
    """Start a Scheduled operation if nothing is in the way; otherwise say what is, and when to look again."""
    found = start_blockers(draft, operation, expiry_from)
    if not found:
        start(draft, operation)
        return found
    known = [blocker.until for blocker in found if blocker.until is not None]
    held = any(blocker.kind not in TRACKED or blocker.until is None for blocker in found)
    if operation.held != held:
        because = [blocker.kind for blocker in found]
        draft.note("operation.held" if held else "operation.waiting", operation, because=because)
    again = min([*known, draft.now + RECHECK]) if held else max(known)
    draft.put_operation(replace(operation, due_at=again, held=held))
    return found


def start(draft: Draft, operation: Operation) -> None:
    """All of it at once."""
    targets = placement.choose(draft, operation, operation.vms) if operation.kind.traits.moves else {}
    now = draft.now
    draft.put_operation(
        replace(operation, status=Status.STARTED, started_at=now, due_at=now, held=False, targets=targets)
    )
    draft.note("operation.started", operation, targets=dict(targets))
    for event in draft.live_events_of(operation.id):
        draft.put_event(replace(event, status=Status.STARTED))
        draft.note("event.started", event, host=operation.host, type=event.type, resources=list(event.resources))


# End


def end(draft: Draft, operation: Operation, status: Status) -> None:
    """An operation and what is left of its events are over; guests no longer see them."""
    results = dict.fromkeys(operation.done, "done") | dict(operation.failures)
    for event in draft.live_events_of(operation.id):
        mine = {name: results[name] for name in event.resources if name in results}
        draft.put_event(replace(event, status=status, ended_at=draft.now))
        facts: dict[str, object] = {"type": event.type, "resources": list(event.resources), "results": mine}
        draft.note(f"event.{status.lower()}", event, host=operation.host, **facts)
        draft.wake(event.scope)
    ended = replace(operation, status=status, ended_at=draft.now, due_at=None, held=False, waiting={})
    draft.put_operation(replace(ended, claimed_by=None, claimed_until=None))
    targets = {"targets": dict(operation.targets)} if operation.targets else {}
    draft.note(f"operation.{status.lower()}", operation, results=results, **targets)
    if operation.rollout is not None and draft.rollout(operation.rollout).status.live:
        draft.put_rollout(replace(draft.rollout(operation.rollout), due_at=draft.now))
    for name in operation.vms:
        if name in draft.world.vms:
            draft.wake(draft.vm(name).scope)
            for other in draft.live_operations_naming(name):
                if other.held:
                    draft.put_operation(replace(other, due_at=draft.now))
    if operation.kind.traits.keeps_others_away:
        # Its host may take VMs again.
        draft.make_room()
    if operation.kind.traits.removes:
        for name in operation.done:
            remove_vm(draft, name)


def may_be_canceled(operation: Operation) -> bool:
    return operation.status in (Status.PLANNED, Status.SCHEDULED)


def cancel(draft: Draft, operation: Operation) -> None:
    if not may_be_canceled(operation):
        why = f"operation {operation.id} is {operation.status}: only what is Planned or Scheduled can be cancelled"
        raise errors.ConflictError(why, operation=operation.id, status=operation.status)
    end(draft, operation, Status.CANCELED)


def end_operations_of_failed_host(draft: Draft, host: str) -> None:
    """The hardware of a host has failed: nothing else that was to happen to it goes on.

    Planned and Scheduled operations are Canceled. Started ones are Failed, or Completed where all their VMs were done.
    VMs that were moving to the host need another target.
    """
    for operation, turned_away in placement.arriving_at(draft, host):
        draft.put_operation(
            replace(
                operation,
                targets={name: to for name, to in operation.targets.items() if name not in turned_away},
                # It counts as a try: what the driver is about to answer says nothing about the next target.
                attempt=min(operation.attempt + 1, draft.timing.retries.tries),
                failures={**operation.failures, **dict.fromkeys(turned_away, f"host {host} has failed")},
                waiting={name: why for name, why in operation.waiting.items() if name not in turned_away},
                due_at=draft.now,
                claimed_by=None,
                claimed_until=None,
            )
        )
    # What has not started first: the end of a removal would cancel some of them as well.
    for operation in sorted(draft.live_operations_on(host), key=lambda each: each.status is Status.STARTED):
        if may_be_canceled(operation):
            failed = dict.fromkeys(operation.vms, f"host {host} has failed")
            end(draft, replace(operation, failures=failed), Status.CANCELED)
        else:
            done = set(operation.vms) == set(operation.done)
            end(draft, operation, Status.COMPLETED if done else Status.FAILED)


# VMs that leave their host


def remove_vm(draft: Draft, name: str) -> None:
    """A VM is no longer: neither on its host nor in the fleet."""
    vm = draft.vm(name)
    leave_host(draft, name)
    draft.remove_vm(name)
    recheck_planned(draft, vm.host)
    # Also one that a VM of a group left behind when it was standalone: who has the name next starts afresh.
    draft.remove_scope(fleet.standalone_key(name))
    draft.note("vm.removed", vm)
    draft.make_room()


def move_vm(draft: Draft, name: str, target: str, operation: str | None = None) -> None:
    """A VM is on another host now, because of an operation or not; a deletion that was not announced follows it."""
    vm = draft.vm(name)
    for other in draft.live_operations_on(vm.host):
        if other.vms == (name,) and not other.kind.traits.of_host and not draft.events_of(other.id):
            draft.put_operation(replace(other, host=target))
    leave_host(draft, name)
    moved = replace(vm, host=target)
    draft.put_vm(moved)
    recheck_planned(draft, vm.host)
    recheck_planned(draft, target)
    draft.note("vm.moved", moved, operation=operation, source=vm.host)
    draft.make_room()


def recheck_planned(draft: Draft, host: str) -> None:
    """The host's VMs have changed, and so may the windows that apply."""
    for operation in draft.live_operations_on(host):
        if operation.status is Status.PLANNED:
            vms = fleet.names_of(draft.vms_on(host))
            draft.put_operation(replace(operation, vms=vms, due_at=draft.now))


def leave_host(draft: Draft, name: str) -> None:
    """Drop a VM from what is Scheduled on its host; what names no VM any more is cancelled."""
    for operation in draft.live_operations_on(draft.vm(name).host):
        if operation.status is not Status.SCHEDULED or name not in operation.vms:
            continue
        for event in draft.live_events_of(operation.id):
            if event.resources == (name,):
                draft.put_event(replace(event, status=Status.CANCELED, ended_at=draft.now))
                draft.note("event.canceled", event, vm=name)
                draft.wake(event.scope)
            elif name in event.resources:
                left = tuple(other for other in event.resources if other != name)
                draft.put_event(replace(event, resources=left))
                draft.note("event.resource_dropped", event, vm=name)
        operation = replace(operation, vms=tuple(other for other in operation.vms if other != name))
        if operation.vms:
            draft.put_operation(operation)
            _make_due_if_approved(draft, operation)
        else:
            end(draft, operation, Status.CANCELED)


# NotBefore and start times after the fact: a commit came late, or the clock was wrong.


def restore_notice(draft: Draft, operation: Operation, promised_at: datetime) -> None:
    """Of an operation that was announced or started at that moment, since guests can only see it now."""
    events = draft.live_events_of(operation.id)
    announced_at = events[0].created_at if events else operation.created_at
    if operation.status is Status.SCHEDULED and announced_at == promised_at:
        waits = operation.due_at == operation.not_before
        postponed = _postpone(draft, operation, operation.not_before + (draft.now - promised_at))
        draft.put_operation(replace(postponed, due_at=postponed.not_before if waits else operation.due_at))
    elif operation.status is Status.STARTED and operation.started_at == promised_at:
        draft.put_operation(replace(operation, started_at=draft.now))


def correct_clock(draft: Draft, operation: Operation, wrongly: datetime) -> None:
    """After a wrong clock was corrected: the operation keeps the notice it had left at `wrongly`."""
    if operation.status is Status.SCHEDULED:
        left = operation.expires_at - wrongly
        if left > timedelta(0) or operation.not_before > draft.now:
            operation = _postpone(draft, operation, draft.now + max(left, timedelta(0)))
    elif operation.status is Status.STARTED:
        operation = replace(operation, started_at=min(operation.started_at or draft.now, draft.now))
    if operation.status.live:
        draft.put_operation(replace(operation, due_at=draft.now))


def _postpone(draft: Draft, operation: Operation, to: datetime) -> Operation:
    """Changes and notes its events; the caller puts the returned operation."""
    not_before = whole_second_up(to)
    if operation.kind.traits.maintenance:
        not_before = windows.first_start(draft, operation.vms, operation.rollout, not_before)
    for event in draft.live_events_of(operation.id):
        draft.put_event(replace(event, not_before=not_before))
        draft.note("event.postponed", event, to=not_before)
    return replace(operation, not_before=not_before, clock_jumped=timedelta(0))
