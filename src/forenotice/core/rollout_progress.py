"""A rollout under way: which wave runs, which hosts may go now, and what comes of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forenotice.core import announcements, budgets, errors, lifecycle, placement, rollouts, windows
from forenotice.core.blockers import Blocker, BlockerKind, window_blockers
from forenotice.core.budgets import Outage, Rule
from forenotice.core.draft import Draft
from forenotice.core.fleet import several
from forenotice.core.lifecycle import RECHECK
from forenotice.core.operations import Event, Operation, Status, by_reason
from forenotice.core.rollouts import BEFORE_THE_FIRST, GateResult, Request, Rollout, RolloutStatus, Stop, StopStatus

GATE_LEASE = timedelta(seconds=60)
"""How long a gate may take to answer before it is asked again, and how long a green answer is valid."""
GATE_AGAIN = timedelta(seconds=10)
"""How soon a red gate is asked again."""
GATE_BREATH = timedelta(seconds=1)
"""That at least, whatever the speed: what it asks is not ours."""

RESULTS = {
    Status.COMPLETED: StopStatus.DONE,
    Status.FAILED: StopStatus.FAILED,
    Status.CANCELED: StopStatus.SKIPPED,
}
OTHERWISE = {
    Status.COMPLETED: "",
    Status.FAILED: "its operation failed",
    Status.CANCELED: "its operation was cancelled",
}
MOST_REASONS = 3
"""Of failures on one host, in one sentence."""
NO_VMS = "it has no VMs: there is nobody to tell"
PAUSED_BY = "paused by "
"""So begins why a rollout is paused that somebody has paused."""
RULES = {Rule.UPDATE_DOMAIN: BlockerKind.UPDATE_DOMAIN, Rule.BUDGET: BlockerKind.BUDGET}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """The gate must be asked before the wave begins."""

    rollout: str
    wave: int
    gate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """So many hosts of the wave may be taken."""

    wave: int
    hosts: int


def begin(draft: Draft, request: Request, order: Mapping[str, int], domains: Mapping[str, tuple[int, ...]]) -> Rollout:
    """Hosts that have no update domains have no VMs: they are skipped at once, so that they can take VMs of others."""
    rollout = Rollout(
        id=draft.new_id(),
        kind=request.kind,
        hosts=request.hosts,
        options=request.options,
        status=RolloutStatus.RUNNING,
        since=draft.now,
        created_at=draft.now,
        opens_at=draft.now,
        due_at=draft.now,
        by=draft.by,
        reason=request.reason,
    )
    draft.put_rollout(rollout)
    for host, wave in order.items():
        draft.put_stop(Stop(rollout=rollout.id, host=host, wave=wave, update_domains=domains[host]))
    draft.note(
        "rollout.started",
        rollout=rollout.id,
        kind=rollout.kind,
        hosts=rollout.hosts,
        stops=len(order),
        waves=len(set(order.values())),
        **rollout.options.told().facts(),
    )
    for host, wave in order.items():
        if not domains[host]:
            _skip(draft, Stop(rollout=rollout.id, host=host, wave=wave), NO_VMS)
    return rollout


def settle(draft: Draft, rollout_id: str, ended: Iterable[tuple[Stop, Operation]]) -> None:
    """Write down what has become of hosts whose operations have ended."""
    for stop, operation in ended:
        result = StopStatus.FAILED if operation.failures else RESULTS[operation.status]
        why = _why(operation)
        draft.put_stop(replace(stop, status=result, why=why))
        rollout = draft.rollout(rollout_id)
        if result is StopStatus.FAILED:
            rollout = replace(rollout, failures=rollout.failures + 1)
            draft.put_rollout(rollout)
            if rollout.status is RolloutStatus.RUNNING and rollout.failures >= rollout.options.max_failures:
                pause(draft, rollout, f"{rollout.failures} of its hosts failed, the last one {stop.host}: {why}")


def next_step(draft: Draft, rollout_id: str, under_way: int, next_wave: int | None) -> Go | None:
    """What to do now; `next_wave` is the first that has hosts waiting."""
    rollout = draft.rollout(rollout_id)
    if rollout.status is RolloutStatus.PAUSED:
        draft.put_rollout(replace(rollout, due_at=None))
        return None
    if under_way == 0 and (next_wave is None or rollout.status is RolloutStatus.CANCELING):
        _end(draft, rollout)
        return None
    draft.put_rollout(replace(rollout, due_at=draft.now + RECHECK))
    if next_wave is None or rollout.status is RolloutStatus.CANCELING:
        return None
    if next_wave != rollout.wave:
        if under_way:
            return None
        _wave_to(draft, draft.rollout(rollout_id), next_wave)
    return _enter(draft, draft.rollout(rollout_id), under_way)


def _wave_to(draft: Draft, rollout: Rollout, wave: int) -> None:
    first = rollout.wave == BEFORE_THE_FIRST
    opens_at = draft.now if first else draft.now + draft.timing.shortened(rollout.options.pause)
    draft.put_rollout(replace(rollout, wave=wave, opens_at=opens_at, opened_at=None, gate_result=None))


def _enter(draft: Draft, rollout: Rollout, under_way: int) -> Go | None:
    """Open the wave if the pause is over and its window allows it; `take` asks the gate."""
    is_open = rollout.opened_at is not None
    if not is_open and draft.now < rollout.opens_at:
        draft.put_rollout(replace(rollout, due_at=rollout.opens_at))
        return None
    if (later := told_at(draft, rollout)) > draft.now:
        draft.put_rollout(replace(rollout, due_at=later))
        return None
    if not is_open and rollout.options.gate is None:
        _open(draft, rollout)
    free = rollout.options.batch - under_way
    return Go(wave=rollout.wave, hosts=free) if free > 0 else None


def _open(draft: Draft, rollout: Rollout) -> None:
    draft.put_rollout(replace(rollout, opened_at=draft.now))
    draft.note("rollout.wave_began", rollout=rollout.id, wave=rollout.wave + 1)


def _pass_gate(draft: Draft, rollout: Rollout) -> GateCheck | None:
    """Open the wave if its gate was green recently; otherwise ask the gate."""
    result, gate = rollout.gate_result, rollout.options.gate
    assert gate is not None
    if result and result.green and draft.now < result.at + GATE_LEASE:
        _open(draft, rollout)
        return None
    result = None if result and result.green else result
    draft.put_rollout(replace(rollout, gate_result=result, due_at=draft.now + GATE_LEASE))
    return GateCheck(rollout=rollout.id, wave=rollout.wave, gate=gate)


def record_gate(draft: Draft, rollout_id: str, wave: int, result: GateResult) -> None:
    """What a gate said of a wave; of another wave, or when it is no longer asked, that says nothing."""
    rollout = draft.world.rollouts.get(rollout_id)
    if rollout is None or rollout.wave != wave or rollout.opened_at is not None or not rollout.status.live:
        return
    known = rollout.gate_result
    if known is None or known.green != result.green or known.status != result.status:
        draft.note(
            "rollout.gate_green" if result.green else "rollout.gate_red",
            rollout=rollout.id,
            wave=wave + 1,
            gate=rollout.options.told().gate,
            status=result.status,
        )
    again = max(draft.timing.shortened(GATE_AGAIN), GATE_BREATH)
    due_at = draft.now if result.green else draft.now + again
    running = rollout.status is RolloutStatus.RUNNING
    draft.put_rollout(replace(rollout, gate_result=result, due_at=due_at if running else rollout.due_at))


def take(draft: Draft, rollout_id: str, stops: Sequence[Stop], most: int) -> int | GateCheck:
    """Announce maintenance of up to `most` hosts that nothing hinders; gives how many.

    The gate of a wave is asked at its first host that does not wait for a window."""
    taken = 0
    for stop in stops:
        rollout = draft.rollout(rollout_id)
        if taken == most or rollout.status is not RolloutStatus.RUNNING:
            break
        if why := _idle(draft, stop.host):
            _skip(draft, stop, why)
            continue
        found = list(host_blockers(draft, rollout, stop.host))
        if later := [each.until for each in found if each.kind is BlockerKind.ANNOUNCEMENT and each.until]:
            draft.put_rollout(replace(rollout, due_at=min(later[0], rollout.due_at or later[0])))
            continue
        if rollout.opened_at is None and (ask := _pass_gate(draft, rollout)):
            return ask
        if all(blocker.operation is None for blocker in found):
            taken += _announce(draft, draft.rollout(rollout_id), stop)
    return taken


def _skip(draft: Draft, stop: Stop, why: str) -> None:
    draft.put_stop(replace(stop, status=StopStatus.SKIPPED, why=why))
    draft.note("rollout.host_skipped", rollout=stop.rollout, host=stop.host, why=why)


def _announce(draft: Draft, rollout: Rollout, stop: Stop) -> int:
    request = announcements.Request(
        kind=rollout.kind,
        name=stop.host,
        notice=rollout.options.notice,
        reason=rollout.reason,
        rollout=rollout.id,
    )
    try:
        operation = announcements.schedule(draft, request)
    except errors.ConflictError as error:
        # It was possible when the rollout began: a policy has changed since.
        pause(draft, rollout, error.message)
        return 0
    draft.put_stop(replace(stop, status=StopStatus.UNDER_WAY, operation=operation.id))
    return 1


def host_blockers(draft: Draft, rollout: Rollout, host: str) -> Iterator[Blocker]:
    """Why maintenance of a host is not announced now: another operation, a budget or a window is in the way."""
    for operation in draft.live_operations_on(host):
        if budgets.excludes_others(operation) or operation.kind is rollout.kind:
            yield Blocker(kind=BlockerKind.HOST_BUSY, operation=operation.id)
    for operation, _ in placement.arriving_at(draft, host):
        yield Blocker(kind=BlockerKind.HOST_BUSY, operation=operation.id)
    for part in rollouts.parts(draft, host):
        policy = draft.scope(part.scope).policy
        allowed = budgets.allowed(policy, draft.size_of(part.scope)) if budgets.has_budget(policy) else None
        if allowed is not None and part.vms > allowed:
            # No end of anything helps: a policy or the group has changed since the rollout began.
            yield Blocker(kind=BlockerKind.BUDGET, scope=part.scope)
            continue
        rule = budgets.blocker(standing(draft, part.scope), part.update_domain, part.vms, allowed)
        if rule is not None:
            holding = _holding(draft, part, rule)
            yield Blocker(kind=RULES[rule], scope=part.scope, event=holding.id, operation=holding.operation)
    yield from window_blockers(draft, sorted(vm.name for vm in draft.vms_on(host)), rollout.id, notice(rollout))


def is_put_off(draft: Draft, rollout: Rollout, host: str) -> bool:
    """Whether its guests are told later because of a window."""
    return any(each.kind is BlockerKind.ANNOUNCEMENT for each in host_blockers(draft, rollout, host))


def notice(rollout: Rollout) -> timedelta:
    return rollout.options.notice or rollout.kind.traits.notice


def told_at(draft: Draft, rollout: Rollout) -> datetime:
    """The earliest time to tell guests of the next hosts, by the rollout's own windows."""
    found = windows.slot(draft, [rollout.options.windows], notice(rollout))
    return draft.now if found is None else found.announce_at


def standing(draft: Draft, scope: str) -> Outage:
    """What is out of a scope, or announced to be."""
    found = Outage()
    for event in draft.live_events_in(scope):
        if budgets.excludes_others(draft.operation(event.operation)):
            found.add(event.update_domain, len(event.resources))
        elif event.status is Status.STARTED:
            found.others += len(event.resources)
    return found


def _holding(draft: Draft, part: rollouts.Part, rule: Rule) -> Event:
    """The oldest of the events of a scope that are in the way."""

    def is_in_the_way(event: Event) -> bool:
        excludes = budgets.excludes_others(draft.operation(event.operation))
        if rule is Rule.UPDATE_DOMAIN:
            return excludes and event.update_domain != part.update_domain
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
    draft.note("rollout.paused", rollout=rollout.id, why=why)


def resume(draft: Draft, rollout: Rollout) -> None:
    if not can_be_resumed(rollout.status):
        raise _conflict(rollout, "only a paused rollout can be resumed")
    draft.put_rollout(
        replace(
            rollout,
            status=RolloutStatus.RUNNING,
            since=draft.now,
            why="",
            failures=0,
            gate_result=None,
            due_at=draft.now,
        )
    )
    draft.note("rollout.resumed", rollout=rollout.id)
    for operation in _live_operations(draft, rollout):
        if operation.held:
            draft.put_operation(replace(operation, due_at=draft.now))


def cancel(draft: Draft, rollout: Rollout) -> None:
    """What is only Scheduled is cancelled; what has started goes on to its end."""
    if not can_be_cancelled(rollout.status):
        raise _conflict(rollout, "only one that is running or paused can be cancelled")
    draft.note("rollout.canceling", rollout=rollout.id)
    draft.put_rollout(replace(rollout, status=RolloutStatus.CANCELING, since=draft.now, why="", due_at=draft.now))
    for operation in _live_operations(draft, rollout):
        if lifecycle.may_be_canceled(operation):
            lifecycle.cancel(draft, operation)


def _live_operations(draft: Draft, rollout: Rollout) -> list[Operation]:
    mine = (operation for operation in draft.world.operations.values() if operation.rollout == rollout.id)
    return [operation for operation in mine if operation.status.live]


def _end(draft: Draft, rollout: Rollout) -> None:
    """What failed is not passed over: somebody has to say that it may be left at that."""
    canceling = rollout.status is RolloutStatus.CANCELING
    if rollout.failures and not canceling:
        pause(draft, rollout, f"all is done but what failed ({rollout.failures}): resume it, with or without those")
        return
    status = RolloutStatus.CANCELED if canceling else RolloutStatus.COMPLETED
    draft.put_rollout(replace(rollout, status=status, since=draft.now, ended_at=draft.now, due_at=None))
    draft.note(f"rollout.{status.lower()}", rollout=rollout.id)


def _idle(draft: Draft, host: str) -> str:
    """Why there is nothing to do on a host; empty: there is."""
    if host not in draft.world.hosts:
        return "it is no longer in the fleet"
    return "" if draft.vms_on(host) else NO_VMS


def _why(operation: Operation) -> str:
    if operation.failures:
        told = [f"{several(vms)}: {reason}" for reason, vms in by_reason(operation.failures).items()]
        more = len(told) - MOST_REASONS
        return "; ".join([*told[:MOST_REASONS], *([f"and {more} more reasons"] if more > 0 else [])])
    return OTHERWISE[operation.status]


def _conflict(rollout: Rollout, what: str) -> errors.ConflictError:
    return errors.ConflictError(
        f"rollout {rollout.id} is {rollout.status}: {what}", rollout=rollout.id, status=rollout.status
    )
