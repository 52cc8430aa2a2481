"""A rollout under way: which wave runs, which hosts may go now, and what comes of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forenotice.core import announcements, budgets, errors, lifecycle, rollouts, update_domains, windows
from forenotice.core.blockers import Blocker, BlockerKind, arrival_blockers, window_blockers
from forenotice.core.budgets import Rule, VmsDown
from forenotice.core.draft import Draft
from forenotice.core.fleet import several
from forenotice.core.lifecycle import RECHECK
from forenotice.core.operations import Event, Operation, Status, by_reason
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
"""How long a gate may take to answer before it is asked again, and how long a green answer is valid."""
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
            result, why = RolloutHostStatus.FAILED, _failures(operation)
        draft.put_rollout_host(replace(rollout_host, status=result, why=why))
        if result is RolloutHostStatus.FAILED:
            rollout = draft.rollout(rollout_id)
            rollout = replace(rollout, failures=rollout.failures + 1)
            draft.put_rollout(rollout)
            if rollout.status is RolloutStatus.RUNNING and rollout.failures >= rollout.options.max_failures:
                pause(
                    draft, rollout, f"{rollout.failures} of its hosts failed, the last one {rollout_host.host}: {why}"
                )


def next_step(draft: Draft, rollout_id: str, under_way: int, next_wave: int | None) -> int | None:
    """The wave of which hosts may be taken now; `next_wave` is the first that has hosts waiting."""
    rollout = draft.rollout(rollout_id)
    canceling = rollout.status is RolloutStatus.CANCELING
    if rollout.status is RolloutStatus.PAUSED:
        draft.put_rollout(replace(rollout, due_at=None))
        return None
    if under_way == 0 and (next_wave is None or canceling):
        _end(draft, rollout)
        return None
    rollout = replace(rollout, due_at=draft.now + RECHECK)
    draft.put_rollout(rollout)
    if next_wave is None or canceling:
        return None
    if next_wave != rollout.wave:
        if under_way:
            return None
        first = rollout.wave == BEFORE_THE_FIRST
        opens_at = draft.now if first else draft.now + draft.timing.shortened(rollout.options.pause)
        rollout = replace(rollout, wave=next_wave, opens_at=opens_at, opened_at=None, gate_result=None)
        draft.put_rollout(rollout)
    return rollout.wave if _enter(draft, rollout) and under_way < rollout.options.batch else None


def _enter(draft: Draft, rollout: Rollout) -> bool:
    """Open the wave if the pause is over and its window allows it; `take` asks the gate."""
    is_open = rollout.opened_at is not None
    pausing = not is_open and draft.now < rollout.opens_at
    later = rollout.opens_at if pausing else announce_at(draft, rollout)
    if later > draft.now:
        draft.put_rollout(replace(rollout, due_at=later))
        return False
    if not is_open and rollout.options.gate is None:
        _open(draft, rollout)
    return True


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
        draft.note(
            "rollout.gate_green" if result.green else "rollout.gate_red",
            rollout,
            wave=wave + 1,
            gate=rollout.options.told().gate,
            status=result.status,
        )
    again = max(draft.timing.shortened(GATE_AGAIN), GATE_PAUSE)
    due_at = draft.now if result.green else draft.now + again
    running = rollout.status is RolloutStatus.RUNNING
    draft.put_rollout(replace(rollout, gate_result=result, due_at=due_at if running else rollout.due_at))


def take(draft: Draft, rollout_id: str, rollout_hosts: Sequence[RolloutHost], most: int) -> int | GateCheck:
    """Announce maintenance of up to `most` hosts that nothing blocks; gives how many.

    The gate of a wave is asked at its first host that does not wait for a window."""
    taken = 0
    for rollout_host in rollout_hosts:
        rollout = draft.rollout(rollout_id)
        if taken == most or rollout.status is not RolloutStatus.RUNNING:
            break
        if rollout_host.host not in draft.world.hosts or not draft.vms_on(rollout_host.host):
            _skip(
                draft,
                rollout_host,
                NO_VMS if rollout_host.host in draft.world.hosts else "it is no longer in the fleet",
            )
            continue
        found = list(host_blockers(draft, rollout, rollout_host.host))
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
    notice, reason = rollout.options.notice, rollout.reason
    spec = announcements.OperationSpec(
        kind=rollout.kind, name=rollout_host.host, notice=notice, reason=reason, rollout=rollout.id
    )
    try:
        operation = announcements.schedule(draft, spec)
    except errors.ConflictError as error:
        # It was possible when the rollout began: a policy has changed since.
        pause(draft, rollout, error.message)
        return False
    draft.put_rollout_host(replace(rollout_host, status=RolloutHostStatus.UNDER_WAY, operation=operation.id))
    return True


def host_blockers(draft: Draft, rollout: Rollout, host: str) -> Iterator[Blocker]:
    """Why maintenance of a host is not announced now: another operation, a budget or a window is in the way."""
    for operation in draft.live_operations_on(host):
        if update_domains.excludes_others(operation) or operation.kind is rollout.kind:
            yield Blocker(kind=BlockerKind.HOST_BUSY, operation=operation.id)
    yield from arrival_blockers(draft, host)
    for part in rollouts.parts(draft, host):
        policy = draft.scope(part.scope).policy
        allowed = budgets.allowed(policy, draft.size_of(part.scope)) if budgets.has_budget(policy) else None
        if allowed is not None and part.vms > allowed:
            # No end of anything helps: a policy or the group has changed since the rollout began.
            yield Blocker(kind=BlockerKind.BUDGET, scope=part.scope)
            continue
        rule = budgets.blocker(_vms_down(draft, part.scope), part.update_domain, part.vms, allowed)
        if rule is not None:
            oldest = _oldest_in_the_way(draft, part, rule)
            kind = BlockerKind(rule.value)
            yield Blocker(kind=kind, scope=part.scope, event=oldest.id, operation=oldest.operation)
    yield from window_blockers(draft, sorted(vm.name for vm in draft.vms_on(host)), rollout.id, notice(rollout))


def is_put_off(draft: Draft, rollout: Rollout, host: str) -> bool:
    """Whether its guests are told later because of a window."""
    return any(each.kind is BlockerKind.ANNOUNCEMENT for each in host_blockers(draft, rollout, host))


def notice(rollout: Rollout) -> timedelta:
    return rollout.options.notice or rollout.kind.traits.minimum_notice


def announce_at(draft: Draft, rollout: Rollout) -> datetime:
    """The earliest time to tell guests of the next hosts, by the rollout's own windows."""
    found = windows.slot(draft, [rollout.options.windows], notice(rollout))
    return draft.now if found is None else found.announce_at


def _vms_down(draft: Draft, scope: str) -> VmsDown:
    """How many VMs of a scope are down, or announced to be."""
    found = VmsDown()
    for event in draft.live_events_in(scope):
        if update_domains.excludes_others(draft.operation(event.operation)):
            found.add(event.update_domain, len(event.resources))
        elif event.status is Status.STARTED:
            found.others += len(event.resources)
    return found


def _oldest_in_the_way(draft: Draft, part: rollouts.Part, rule: Rule) -> Event:
    def is_in_the_way(event: Event) -> bool:
        excludes = update_domains.excludes_others(draft.operation(event.operation))
        if rule is Rule.UPDATE_DOMAIN:
            return excludes and update_domains.is_excluded(part.update_domain, [event.update_domain])
        return excludes or event.status is Status.STARTED

    found = filter(is_in_the_way, draft.live_events_in(part.scope))
    return min(found, key=lambda event: (event.created_at, event.id))


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
    for operation in _live_operations(draft, rollout):
        if operation.held:
            draft.put_operation(replace(operation, due_at=draft.now))


def cancel(draft: Draft, rollout: Rollout) -> None:
    """What is only Scheduled is cancelled; what has started goes on to its end."""
    if not can_be_cancelled(rollout.status):
        raise _conflict(rollout, "only one that is running or paused can be cancelled")
    draft.note("rollout.canceling", rollout)
    draft.put_rollout(replace(rollout, status=RolloutStatus.CANCELING, since=draft.now, why="", due_at=draft.now))
    for operation in _live_operations(draft, rollout):
        if lifecycle.may_be_canceled(operation):
            lifecycle.cancel(draft, operation)


def _live_operations(draft: Draft, rollout: Rollout) -> list[Operation]:
    mine = (operation for operation in draft.world.operations.values() if operation.rollout == rollout.id)
    return [operation for operation in mine if operation.status.live]


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


def _failures(operation: Operation) -> str:
    told = [f"{several(vms)}: {reason}" for reason, vms in by_reason(operation.failures).items()]
    more = len(told) - MOST_REASONS
    return "; ".join([*told[:MOST_REASONS], *([f"and {more} more reasons"] if more > 0 else [])])


def _conflict(rollout: Rollout, what: str) -> errors.ConflictError:
    why = f"rollout {rollout.id} is {rollout.status}: {what}"
    return errors.ConflictError(why, rollout=rollout.id, status=rollout.status)
