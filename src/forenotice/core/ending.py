"""How operations end: done, cancelled or failed; and what a VM that leaves its host takes out of others."""

from dataclasses import replace

from forenotice.core import errors, fleet
from forenotice.core.draft import Draft
from forenotice.core.operations import Operation, Status


def end(draft: Draft, operation: Operation, status: Status) -> None:
    """An operation and what is left of its events are over; guests no longer see them."""
    results = dict.fromkeys(operation.done, "done") | dict(operation.failures)
    for event in draft.live_events_of(operation.id):
        draft.put_event(replace(event, status=status, ended_at=draft.now))
        draft.note(
            f"event.{status.lower()}",
            scope=event.scope,
            event=event.id,
            operation=operation.id,
            host=operation.host,
            results={name: results[name] for name in event.resources if name in results},
        )
        draft.wake(event.scope)
    draft.put_operation(
        replace(
            operation,
            status=status,
            ended_at=draft.now,
            due_at=None,
            held=False,
            claimed_by=None,
            claimed_until=None,
        )
    )
    draft.note(
        f"operation.{status.lower()}",
        operation=operation.id,
        host=operation.host,
        rollout=operation.rollout,
        results=results,
    )
    if operation.rollout is not None and draft.rollout(operation.rollout).status.live:
        draft.put_rollout(replace(draft.rollout(operation.rollout), due_at=draft.now))
    for name in operation.vms:
        if name in draft.world.vms:
            _look_again_at_those_waiting_for(draft, name)
    if operation.kind.traits.keeps_others_away:
        # Its host may take VMs again.
        draft.make_room()
    if operation.kind.traits.removes:
        for name in operation.done:
            remove(draft, name)


def _look_again_at_those_waiting_for(draft: Draft, name: str) -> None:
    draft.wake(draft.vm(name).scope)
    for other in draft.live_operations_naming(name):
        if other.held:
            draft.put_operation(replace(other, due_at=draft.now))


def may_be_canceled(operation: Operation) -> bool:
    return operation.status in (Status.PLANNED, Status.SCHEDULED)


def cancel(draft: Draft, operation: Operation) -> None:
    if not may_be_canceled(operation):
        raise errors.ConflictError(
            f"operation {operation.id} is {operation.status}: only what is Planned or Scheduled can be cancelled",
            operation=operation.id,
            status=operation.status,
        )
    end(draft, operation, Status.CANCELED)


def remove(draft: Draft, name: str) -> None:
    """A VM is no longer: neither on its host nor in the fleet."""
    vm = draft.vm(name)
    leave_host(draft, name)
    draft.remove_vm(name)
    judge_planned_anew(draft, vm.host)
    # Also one that a VM of a group left behind when it was standalone: who has the name next starts afresh.
    draft.remove_scope(fleet.standalone_key(name))
    draft.note("vm.removed", scope=vm.scope, vm=name, host=vm.host)
    draft.make_room()


def move(draft: Draft, name: str, operation: Operation) -> None:
    """A VM is on another host now; a deletion that nobody was told of follows it."""
    vm = draft.vm(name)
    target = operation.targets[name]
    for other in draft.live_operations_on(vm.host):
        if other.vms == (name,) and not other.kind.traits.of_host and not draft.events_of(other.id):
            draft.put_operation(replace(other, host=target))
    leave_host(draft, name)
    draft.put_vm(replace(vm, host=target))
    judge_planned_anew(draft, vm.host)
    judge_planned_anew(draft, target)
    draft.note("vm.moved", scope=vm.scope, vm=name, host=target, operation=operation.id, source=vm.host)
    draft.make_room()


def judge_planned_anew(draft: Draft, host: str) -> None:
    """The host's VMs have changed, and so may the windows that apply."""
    for operation in draft.live_operations_on(host):
        if operation.status is Status.PLANNED:
            vms = fleet.names_of(draft.vms_on(host))
            draft.put_operation(replace(operation, vms=vms, due_at=draft.now))


def leave_host(draft: Draft, name: str) -> None:
    """Drop a VM from what is Scheduled on its host; what names nobody any more is cancelled."""
    vm = draft.vm(name)
    for operation in draft.live_operations_on(vm.host):
        if operation.status is not Status.SCHEDULED or name not in operation.vms:
            continue
        for event in draft.live_events_of(operation.id):
            if name not in event.resources:
                continue
            rest = tuple(other for other in event.resources if other != name)
            if rest:
                draft.put_event(replace(event, resources=rest))
                draft.note("event.resource_dropped", scope=event.scope, event=event.id, operation=operation.id, vm=name)
            else:
                draft.put_event(replace(event, status=Status.CANCELED, ended_at=draft.now))
                draft.note("event.canceled", scope=event.scope, event=event.id, operation=operation.id, vm=name)
                draft.wake(event.scope)
        left = replace(operation, vms=tuple(other for other in operation.vms if other != name))
        if left.vms:
            draft.put_operation(left)
            look_again_if_approved(draft, left)
        else:
            end(draft, left, Status.CANCELED)


def look_again_if_approved(draft: Draft, operation: Operation) -> None:
    """Once nobody is waited for, tick looks at it at once."""
    if operation.id in draft.world.awaited_elsewhere:
        return
    if all(event.approved for event in draft.live_events_of(operation.id)):
        draft.put_operation(replace(operation, due_at=draft.now, held=False))
