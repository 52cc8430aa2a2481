"""From Started to the end: what the driver is asked to do, and what its answer changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from forenotice.core import lifecycle, placement
from forenotice.core.draft import Draft
from forenotice.core.fleet import SHUTDOWN_TIMEOUT
from forenotice.core.lifecycle import RECHECK
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.timing import STARTED_SHOWN

UNSAID = "the driver reported no result for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One driver call. It may be repeated after a crash."""

    operation: str
    kind: Kind
    host: str
    vms: tuple[str, ...]
    targets: Mapping[str, str]
    attempt: int
    started_at: datetime
    vm_ids: Mapping[str, str] = field(default_factory=dict)
    """By VM, as are the events by which its scope was told."""
    events: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the host, as is the address."""
    address: str | None = None
    target_addresses: Mapping[str, str | None] = field(default_factory=dict)
    """By VM, of the host it moves to."""
    duration: int = -1
    """DurationInSeconds as guests were told; -1 is unknown."""
    shutdown_timeouts: Mapping[str, timedelta] = field(default_factory=dict)
    """By VM: how long it may take to shut down before it is powered off."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """By VM: what the driver said in `NotYet.waiting` of the call before this one."""
    result_token: str = field(default="", repr=False, compare=False)
    """Lets its bearer report the result of this call."""

    def shutdown_seconds(self, vm: str) -> int:
        return int(self.shutdown_timeouts.get(vm, SHUTDOWN_TIMEOUT).total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYet:
    """Under way: ask again then, for those that are not done."""

    again_at: datetime
    done: tuple[str, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    """By VM: why the driver has not gone on. That is no failed try; the same words while it is the same reason,
    because each change is journalled. The next call gets them back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Every VM of the task is either done or has failed for a reason."""

    done: tuple[str, ...] = ()
    failures: Mapping[str, str]
    calls: tuple[Mapping[str, object], ...] = ()
    """What each call to the outside came to, for the journal."""


Outcome = NotYet | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCalls:
    """An operation's calls to the driver, as the process knows them that makes them."""

    waiting: int
    """Because enough others are under way."""
    under_way: int
    """In all."""
    at_once: int
    at_once_per_host: int | None
    until: datetime | None = None
    """When all of this try are over at the latest; None: some wait, or the driver does not say."""


def advance(draft: Draft, operation: Operation, process: str, claim_until: datetime) -> Task | None:
    """The next step of a Started operation: end it, hold it, or claim it and say what the driver must do."""
    started_at = operation.started_at or draft.now
    remaining = _remaining(operation)
    tried_enough = operation.attempt >= draft.timing.retries.tries
    if not remaining or (tried_enough and asked_for(operation) == remaining):
        # Counted from the commit, which has come after `started_at`.
        shown_until = started_at + draft.allowance + STARTED_SHOWN
        if draft.now < shown_until:
            draft.put_operation(replace(operation, due_at=shown_until))
        else:
            lifecycle.end(draft, operation, Status.FAILED if remaining else Status.COMPLETED)
        return None
    placed_before = asked_for(operation)
    if found := unplaced(operation):
        operation = replace(operation, targets=placement.choose(draft, operation, found))
        if chosen := {name: operation.targets[name] for name in found if name in operation.targets}:
            draft.note("operation.placed", operation, targets=chosen)
        for target in sorted({operation.targets[name] for name in found if name in operation.targets}):
            # Planned maintenance of a host that has to take VMs of a Started operation might wait for its end.
            for other in placement.maintenance_of(draft, target):
                why = f"host {target} has to take VMs of operation {operation.id}, which no other host can"
                lifecycle.end(draft, replace(other, failures=dict.fromkeys(other.vms, why)), Status.CANCELED)
    ready = asked_for(operation)
    if not ready or (tried_enough and ready == placed_before):
        draft.put_operation(replace(operation, due_at=draft.now + RECHECK, held=True))
        return None
    if tried_enough:
        # A host was found for somebody: all that remain are tried afresh.
        operation = replace(operation, attempt=0)
    draft.put_operation(replace(operation, held=False, due_at=draft.now, claimed_by=process, claimed_until=claim_until))
    host, hosts = draft.host(operation.host), draft.world.hosts
    return Task(
        operation=operation.id,
        kind=operation.kind,
        host=operation.host,
        vms=ready,
        targets={name: operation.targets[name] for name in ready if name in operation.targets},
        attempt=operation.attempt + 1,
        started_at=started_at,
        vm_ids={name: draft.vm(name).vm_id for name in ready},
        events={name: event.id for event in draft.events_of(operation.id) for name in event.resources if name in ready},
        labels=host.labels,
        address=host.address,
        target_addresses={name: hosts[target].address for name, target in operation.targets.items() if name in ready},
        duration=operation.announced_seconds,
        shutdown_timeouts={name: draft.scope(draft.vm(name).scope).policy.shutdown_timeout for name in ready},
        waiting={name: why for name, why in operation.waiting.items() if name in ready},
    )


def report(draft: Draft, operation: Operation, process: str, attempt: int, outcome: Outcome) -> None:
    """Record the result of a try. A result that comes too late (ended, claimed or tried again) changes nothing."""
    if operation.claimed_by == process:
        record_result(draft, operation, attempt, outcome)


def record_result(draft: Draft, operation: Operation, attempt: int, outcome: Outcome) -> None:
    """Record the result of the present try, whichever process made it; that of another try changes nothing."""
    if operation.status is not Status.STARTED or operation.attempt + 1 != attempt:
        return
    operation = replace(operation, claimed_by=None, claimed_until=None)
    if isinstance(outcome, NotYet):
        operation = _keep_waiting(draft, operation, attempt, outcome)
        outcome = Finished(done=outcome.done, failures={})
    else:
        unsaid = {name: UNSAID for name in asked_for(operation) if name not in outcome.done}
        outcome = replace(outcome, failures=unsaid | dict(outcome.failures))
        operation = replace(operation, failures={}, waiting={}, due_at=draft.now)
    operation = replace(operation, done=operation.done + outcome.done)
    if outcome.failures:
        again = draft.now + draft.timing.retries.pause_after(attempt)
        operation = replace(operation, failures=outcome.failures, attempt=attempt, due_at=again)
    draft.put_operation(operation)
    if outcome.done or outcome.failures:
        results = {"done": list(outcome.done), "failures": dict(outcome.failures), "calls": list(outcome.calls)}
        draft.note("driver.failed" if outcome.failures else "driver.finished", operation, attempt=attempt, **results)
    if operation.kind.traits.moves:
        for name in outcome.done:
            lifecycle.move_vm(draft, name, operation.targets[name], operation.id)


def _keep_waiting(draft: Draft, operation: Operation, attempt: int, outcome: NotYet) -> Operation:
    """However long it takes, waiting is no failed try; it is journalled when the reasons change."""
    asked = asked_for(operation)
    waiting = {name: why for name, why in outcome.waiting.items() if name in asked and name not in outcome.done}
    if waiting and waiting != operation.waiting:
        draft.note("driver.waiting", operation, attempt=attempt, waiting=waiting)
    return replace(operation, due_at=outcome.again_at, waiting=waiting)


def concerns(operation: Operation, attempt: int, outcome: Finished) -> bool:
    """Whether a result is that of the present try: of all VMs that it is for, and of no others.

    The number alone does not say: a VM for which a host was found later is asked for under the same.
    """
    present = operation.status is Status.STARTED and operation.attempt + 1 == attempt
    return present and {*outcome.done, *outcome.failures} == set(asked_for(operation))


def asked_for(operation: Operation) -> tuple[str, ...]:
    """The remaining VMs that the driver can act on: they have a target, or need none."""
    moves = operation.kind.traits.moves
    return tuple(name for name in _remaining(operation) if not moves or name in operation.targets)


def unplaced(operation: Operation) -> tuple[str, ...]:
    """Those of the remaining VMs that must move and have no target."""
    ready = asked_for(operation)
    return tuple(name for name in _remaining(operation) if name not in ready)


def waits_for_a_host(operation: Operation) -> bool:
    """It has started and cannot go on; announced maintenance is cancelled for it."""
    return operation.status is Status.STARTED and bool(unplaced(operation))


def _remaining(operation: Operation) -> tuple[str, ...]:
    return tuple(name for name in operation.vms if name not in operation.done)
