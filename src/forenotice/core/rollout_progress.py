"""A rollout under way: which wave runs, which hosts may go now, and what comes of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forenotice.core import announcements, errors, lifecycle, windows
from forenotice.core.blockers import BlockerKind, host_blockers
from forenotice.core.draft import Draft
from forenotice.core.fleet import several
from forenotice.core.lifecycle import RECHECK
from forenotice.core.operations import Operation, Status, by_reason
from forenotice.core.rollouts import (
    BEFORE_THE_FIRST,
    GateResult,
    Rollout,
    RolloutHost,
    RolloutHostStatus,
    RolloutSpec,
    RolloutStatus,
)

GATE_LEASE = timedelta(seconds=60)
"""How long a gate may take to respond before it is asked again, and how long a green result is valid."""
GATE_AGAIN = timedelta(seconds=10)
"""How soon a red gate is asked again,"""
GATE_PAUSE = timedelta(seconds=1)
"""and at least, whatever the speed: what it checks is not sped up."""

OUTCOMES = {
    Status.COMPLETED: (RolloutHostStatus.DONE, ""),
    Status.FAILED: (RolloutHostStatus.FAILED, "its operation failed"),
    Status.CANCELED: (RolloutHostStatus.SKIPPED, "its operation was cancelled"),
}
"""What becomes of a host by the status of its operation, and why."""
MOST_REASONS = 3
"""Of failures on one host, in one sentence."""
NO_VMS = "it has no VMs, so no guest has to be told"
PAUSED_BY = "paused by "
"""How the reason of a pause begins that an operator made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """The gate must be asked before the wave begins."""

    rollout: str
    wave: int
    gate: str


def begin(draft: Draft, spec: RolloutSpec, order: Mapping[str, int], domains: Mapping[str, tuple[int, ...]]) -> Rollout:
    """Hosts that have no update domains have no VMs: they are skipped at once, so that they can take VMs of others."""
    rollout = Rollout(
        id=draft.new_id(),
        kind=spec.kind,
        hosts=spec.hosts,
        options=spec.options,
        status=RolloutStatus.RUNNING,
        since=draft.now,
        created_at=draft.now,
        opens_at=draft.now,
        due_at=draft.now,
        by=draft.by,
        reason=spec.reason,
    )
    draft.put_rollout(rollout)
    facts = {"kind": rollout.kind, "hosts": rollout.hosts, **rollout.options.told().facts()}
    draft.note("rollout.started", rollout, stops=len(order), waves=len(set(order.values())), **facts)
    for host, wave in order.items():
        rollout_host = RolloutHost(rollout=rollout.id, host=host, wave=wave, update_domains=domains[host])
        draft.put_rollout_host(rollout_host)
        if not domains[host]:
            _skip(draft, rollout_host, NO_VMS)
    return rollout


def settle(draft: Draft, rollout_id: str, ended: Iterable[tuple[RolloutHost, Operation]]) -> None:
    """Write down what has become of hosts whose operations have ended."""
    for rollout_host, operation in ended:
        result, why = OUTCOMES[operation.status]
        if operation.failures:
            reasons = [f"{several(vms)}: {reason}" for reason, vms in by_reason(operation.failures).items()]
            more = [f"and {len(reasons) - MOST_REASONS} more reasons"] if len(reasons) > MOST_REASONS else []
            result, why = RolloutHostStatus.FAILED, "; ".join([*reasons[:MOST_REASONS], *more])
        draft.put_rollout_host(replace(rollout_host, status=result, why=why))
        if result is RolloutHostStatus.FAILED:
            failures = draft.rollout(rollout_id).failures + 1
            rollout = replace(draft.rollout(rollout_id), failures=failures)
            draft.put_rollout(rollout)
            if rollout.status is RolloutStatus.RUNNING and failures >= rollout.options.max_failures:
                pause(draft, rollout, f"{failures} of its hosts failed, the last one {rollout_host.host}: {why}")


def next_step(draft: Draft, rollout_id: str, under_way: int, next_wave: int | None) -> int | None:
    """The wave of which hosts may be taken now; `next_wave` is the first that has hosts waiting."""
    rollout = draft.rollout(rollout_id)
    if rollout.status is RolloutStatus.PAUSED:
        draft.put_rollout(replace(rollout, due_at=None))
        return None
    if next_wave is None or rollout.status is RolloutStatus.CANCELING:
        if under_way:
            draft.put_rollout(replace(rollout, due_at=draft.now + RECHECK))
        else:
            _end(draft, rollout)
        return None
    rollout = replace(rollout, due_at=draft.now + RECHECK)
    if next_wave != rollout.wave and not under_way:
        first = rollout.wave == BEFORE_THE_FIRST
        opens_at = draft.now if first else draft.now + draft.timing.shortened(rollout.options.pause)
        rollout = replace(rollout, wave=next_wave, opens_at=opens_at, opened_at=None, gate_result=None)
    draft.put_rollout(rollout)
    if next_wave != rollout.wave:
        return None
    pausing = rollout.opened_at is None and draft.now < rollout.opens_at
    later = rollout.opens_at if pausing else announce_at(draft, rollout)
    if later > draft.now:
        draft.put_rollout(replace(rollout, due_at=later))
        return None
    if rollout.opened_at is None and rollout.options.gate is None:
        _open(draft, rollout)
    return rollout.wave if under_way < rollout.options.batch else None


def announce_at(draft: Draft, rollout: Rollout) -> datetime:
    """The earliest time to tell guests of the next hosts, by the rollout's own windows."""
    found = windows.slot(draft, [rollout.options.windows], rollout.notice)
    return draft.now if found is None else found.announce_at


def _open(draft: Draft, rollout: Rollout) -> None:
    draft.put_rollout(replace(rollout, opened_at=draft.now))
    draft.note("rollout.wave_began", rollout, wave=rollout.wave + 1)


def _pass_gate(draft: Draft, rollout: Rollout) -> GateCheck | None:
    """Open the wave if its gate was green recently; otherwise ask the gate."""
    result, gate = rollout.gate_result, rollout.options.gate
    assert gate is not None
    green = result is not None and result.green
    if result and green and draft.now < result.at + GATE_LEASE:
        _open(draft, rollout)
        return None
    draft.put_rollout(replace(rollout, gate_result=None if green else result, due_at=draft.now + GATE_LEASE))
    return GateCheck(rollout=rollout.id, wave=rollout.wave, gate=gate)


def record_gate(draft: Draft, rollout_id: str, wave: int, result: GateResult) -> None:
    """A gate's result before a wave; before another wave, or when it is no longer asked, it counts for nothing."""
    rollout = draft.world.rollouts.get(rollout_id)
    if rollout is None or rollout.wave != wave or rollout.opened_at is not None or not rollout.status.live:
        return
    known = rollout.gate_result
    if known is None or (known.green, known.status) != (result.green, result.status):
        facts = {"wave": wave + 1, "gate": rollout.options.told().gate, "status": result.status}
        draft.note("rollout.gate_green" if result.green else "rollout.gate_red", rollout, **facts)
    if rollout.status is RolloutStatus.RUNNING:
        again = max(draft.timing.shortened(GATE_AGAIN), GATE_PAUSE)
        rollout = replace(rollout, due_at=draft.now if result.green else draft.now + again)
    draft.put_rollout(replace(rollout, gate_result=result))


def take(draft: Draft, rollout_id: str, rollout_hosts: Sequence[RolloutHost], most: int) -> int | GateCheck:
    """Announce maintenance of up to `most` hosts that nothing blocks; gives how many.

    The gate of a wave is asked at its first host that does not wait for a window."""
    taken = 0
    for rollout_host in rollout_hosts:
        rollout, host = draft.rollout(rollout_id), rollout_host.host
        if taken == most or rollout.status is not RolloutStatus.RUNNING:
            break
        if not draft.vms_on(host):
            _skip(draft, rollout_host, NO_VMS if host in draft.world.hosts else "it is no longer in the fleet")
            continue
        found = list(host_blockers(draft, rollout, host))
        if later := [each.until for each in found if each.kind is BlockerKind.ANNOUNCEMENT and each.until]:
            draft.put_rollout(replace(rollout, due_at=min(later[0], rollout.due_at or later[0])))
            continue
        if rollout.opened_at is None and (check := _pass_gate(draft, rollout)):
            return check
        if all(blocker.operation is None for blocker in found):
            taken += _announce(draft, draft.rollout(rollout_id), rollout_host)
    return taken


def _skip(draft: Draft, rollout_host: RolloutHost, why: str) -> None:
    draft.put_rollout_host(replace(rollout_host, status=RolloutHostStatus.SKIPPED, why=why))
    draft.note("rollout.host_skipped", rollout=rollout_host.rollout, host=rollout_host.host, why=why)


def _announce(draft: Draft, rollout: Rollout, rollout_host: RolloutHost) -> bool:
    spec = announcements.OperationSpec(
        kind=rollout.kind,
        name=rollout_host.host,
        notice=rollout.options.notice,
        duration=rollout.options.duration,
        reason=rollout.reason,
        rollout=rollout.id,
    )
    try:
        operation = announcements.schedule(draft, spec)
    except errors.ConflictError as error:
        # It was possible when the rollout began: a policy has changed since.
        pause(draft, rollout, error.message)
        return False
    draft.put_rollout_host(replace(rollout_host, status=RolloutHostStatus.UNDER_WAY, operation=operation.id))
    return True


def can_be_paused(status: RolloutStatus) -> bool:
    return status is RolloutStatus.RUNNING


def can_be_resumed(status: RolloutStatus) -> bool:
    return status is RolloutStatus.PAUSED


def can_be_cancelled(status: RolloutStatus) -> bool:
    return status in (RolloutStatus.RUNNING, RolloutStatus.PAUSED)


def pause(draft: Draft, rollout: Rollout, why: str) -> None:
    if not can_be_paused(rollout.status):
        raise _conflict(rollout, "only a running rollout can be paused")
    draft.put_rollout(replace(rollout, status=RolloutStatus.PAUSED, since=draft.now, why=why, due_at=None))
    draft.note("rollout.paused", rollout, why=why)


def resume(draft: Draft, rollout: Rollout) -> None:
    if not can_be_resumed(rollout.status):
        raise _conflict(rollout, "only a paused rollout can be resumed")
    resumed = replace(rollout, status=RolloutStatus.RUNNING, since=draft.now, due_at=draft.now)
    draft.put_rollout(replace(resumed, why="", failures=0, gate_result=None))
    draft.note("rollout.resumed", rollout)
    for operation in [*draft.world.operations.values()]:
        if operation.rollout == rollout.id and operation.status.live and operation.held:
            draft.put_operation(replace(operation, due_at=draft.now))


def cancel(draft: Draft, rollout: Rollout) -> None:
    """What is only Scheduled is cancelled; what has started goes on to its end."""
    if not can_be_cancelled(rollout.status):
        raise _conflict(rollout, "only one that is running or paused can be cancelled")
    draft.note("rollout.canceling", rollout)
    draft.put_rollout(replace(rollout, status=RolloutStatus.CANCELING, since=draft.now, why="", due_at=draft.now))
    for operation in [*draft.world.operations.values()]:
        if operation.rollout == rollout.id and lifecycle.may_be_canceled(operation):
            lifecycle.cancel(draft, operation)


def _end(draft: Draft, rollout: Rollout) -> None:
    """With failed hosts it pauses instead: an operator decides whether they are tried again."""
    canceling = rollout.status is RolloutStatus.CANCELING
    if rollout.failures and not canceling:
        why = f"all hosts are done except {rollout.failures} that failed: resume it, with or without those"
        pause(draft, rollout, why)
        return
    status = RolloutStatus.CANCELED if canceling else RolloutStatus.COMPLETED
    draft.put_rollout(replace(rollout, status=status, since=draft.now, ended_at=draft.now, due_at=None))
    draft.note(f"rollout.{status.lower()}", rollout)


def _conflict(rollout: Rollout, what: str) -> errors.ConflictError:
    why = f"rollout {rollout.id} is {rollout.status}: {what}"
    return errors.ConflictError(why, rollout=rollout.id, status=rollout.status)
