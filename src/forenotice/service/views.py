"""Core's things as operators see them: structs of `views`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from forenotice.core import explanations, placement
from forenotice.core.draft import Draft
from forenotice.core.fleet import Host, Scope, Vm, amount
from forenotice.core.journal import Entry
from forenotice.core.lifecycle import is_listening
from forenotice.core.operations import Event, Kind, Operation, Status
from forenotice.core.rollout_plan import Plan, PlannedStop, expected
from forenotice.core.rollouts import KINDS, Request, Rollout, Stop, StopStatus, Tally
from forenotice.core.timing import Timing
from forenotice.views import fleet, history, maintenance, rollouts

NAMES = {kind: name for name, kind in KINDS.items()}
EXPLANATIONS: Mapping[str, Any] = {
    "event": maintenance.EventExplanation,
    "operation": maintenance.OperationExplanation,
    "rollout": maintenance.RolloutExplanation,
}


def plain(value: object) -> Any:
    """Anything that a journal entry or an explanation may hold, as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def host(host: Host, vms: int, used: float) -> fleet.Host:
    return fleet.Host(
        name=host.name,
        cordoned=host.cordoned,
        labels=dict(host.labels),
        capacity=host.capacity,
        address=host.address,
        used=used,
        vms=vms,
    )


def loaded_host(draft: Draft, name: str) -> fleet.Host:
    return host(draft.host(name), len(draft.vms_on(name)), amount(placement.taken(draft, name)))


def vm(vm: Vm, scope: Scope, now: datetime, timing: Timing) -> fleet.Vm:
    return fleet.Vm(
        name=vm.name,
        vm_id=vm.vm_id,
        host=vm.host,
        group=vm.group,
        scope=vm.scope,
        update_domain=vm.update_domain,
        fault_domain=vm.fault_domain,
        spot=vm.spot,
        addresses=list(vm.addresses),
        facts=fleet.Facts.of(vm.facts),
        size=vm.size,
        policy=fleet.Policy.of(scope.policy) if vm.group is None else None,
        incarnation=scope.incarnation,
        listening=is_listening(scope, now, timing),
        last_heard=scope.last_heard,
    )


def group(scope: Scope, vms: int, now: datetime, timing: Timing) -> fleet.Group:
    return fleet.Group(
        name=scope.name,
        kind=scope.kind,
        policy=fleet.Policy.of(scope.policy),
        vms=vms,
        incarnation=scope.incarnation,
        listening=is_listening(scope, now, timing),
        last_heard=scope.last_heard,
    )


def operation(operation: Operation, events: Iterable[Event]) -> maintenance.Operation:
    planned = operation.status is Status.PLANNED
    # While held, the time is unknown: `due_at` is only the next check.
    held = planned and operation.held
    return maintenance.Operation(
        id=operation.id,
        kind=operation.kind,
        host=operation.host,
        vms=list(operation.vms),
        status=operation.status,
        created_at=operation.created_at,
        not_before=None if held else operation.not_before,
        announce_at=operation.due_at if planned and not held else None,
        started_at=operation.started_at,
        ended_at=operation.ended_at,
        by=operation.by,
        reason=operation.reason,
        rollout=operation.rollout,
        targets=dict(operation.targets),
        attempt=operation.attempt,
        failures=dict(operation.failures),
        events=[event_of(operation, event) for event in events],
    )


def event_of(operation: Operation, event: Event) -> maintenance.Event:
    return maintenance.Event(
        id=event.id,
        operation=event.operation,
        kind=operation.kind,
        host=operation.host,
        scope=event.scope,
        group=_group_of(event.scope),
        resources=list(event.resources),
        type=event.type,
        source=event.source,
        description=event.description,
        duration_seconds=event.duration,
        status=event.status.value,  # type: ignore[arg-type]
        created_at=event.created_at,
        not_before=event.not_before,
        approved_at=event.approved_at,
        approved_by=event.approved_by,
        implied=event.implied,
        ended_at=event.ended_at,
    )


def _group_of(scope: str) -> str | None:
    noun, _, name = scope.partition(":")
    return name if noun == "group" else None


def explanation(found: explanations.Explanation) -> Any:
    """An explanation of an event, an operation or a rollout, each a struct of its own."""
    return EXPLANATIONS[found.noun](
        **{found.noun: found.id},
        sentence=found.sentence,
        sentences=list(found.sentences),
        since=found.since,
        until=found.until,
        waiting_for=plain(found.waiting_for),
    )


def entry(seq: int, entry: Entry) -> history.Entry:
    return history.Entry(
        seq=seq,
        at=entry.at,
        action=entry.action,
        by=entry.by,
        origin=entry.origin,
        reason=entry.reason,
        scope=entry.scope,
        event=entry.event,
        operation=entry.operation,
        host=entry.host,
        vm=entry.vm,
        rollout=entry.rollout,
        data=plain(entry.data),
    )


def rollout(rollout: Rollout, tally: Sequence[Tally]) -> rollouts.Rollout:
    return rollouts.Rollout(**msgspec.structs.asdict(listed_rollout(rollout, tally)), by_wave=_by_wave(tally))


def listed_rollout(rollout: Rollout, tally: Sequence[Tally]) -> rollouts.ListedRollout:
    """As one of many: it does not say which host is in which wave."""
    found = rollout.gate_result
    return rollouts.ListedRollout(
        id=rollout.id,
        **_options(rollout),
        status=rollout.status,
        why=rollout.why,
        wave=rollout.wave + 1,
        waves=len({some.wave for some in tally}),
        wave_began_at=rollout.opened_at,
        failures=rollout.failures,
        progress=_progress(tally),
        gate_result=None
        if found is None
        else rollouts.GateResult(green=found.green, status=found.status, output=found.output, at=found.at),
        created_at=rollout.created_at,
        ended_at=rollout.ended_at,
        by=rollout.by,
        reason=rollout.reason,
    )


def _options(asked: Rollout | Request) -> dict[str, Any]:
    return {"kind": NAMES[asked.kind], "hosts": asked.hosts, **asked.options.facts()}


def _progress(tally: Iterable[Tally]) -> rollouts.Progress:
    found = dict.fromkeys(StopStatus, 0)
    for some in tally:
        found[some.status] += some.hosts
    return rollouts.Progress(**{status.name.lower(): hosts for status, hosts in found.items()})


def _by_wave(tally: Iterable[Tally]) -> list[rollouts.WaveProgress]:
    """A wave has one update domain of each group; groups may number them differently, so it may have several."""
    by_wave: dict[int, list[Tally]] = {}
    for some in tally:
        by_wave.setdefault(some.wave, []).append(some)
    return [
        rollouts.WaveProgress(
            wave=wave + 1,
            update_domains=_domains(some.update_domains for some in found),
            progress=_progress(found),
        )
        for wave, found in sorted(by_wave.items())
    ]


def _domains(several: Iterable[tuple[int, ...]]) -> list[int]:
    return sorted({domain for domains in several for domain in domains})


def stop(stop: Stop) -> rollouts.RolloutHost:
    return rollouts.RolloutHost(
        host=stop.host,
        wave=stop.wave + 1,
        update_domains=list(stop.update_domains),
        status=stop.status,
        operation=stop.operation,
        why=stop.why,
    )


def plan(plan: Plan, request: Request) -> rollouts.RolloutPlan:
    return rollouts.RolloutPlan(
        **_options(request),
        begins_at=plan.begins_at,
        ends_at=plan.ends_at,
        waves=_waves(plan),
        stops=[
            rollouts.PlannedHost(
                host=stop.host,
                wave=stop.wave + 1,
                update_domains=list(stop.update_domains),
                vms=list(stop.vms),
                announced_at=stop.announced_at,
                not_before=stop.not_before,
                ends_at=stop.ends_at,
            )
            for stop in plan.stops
        ],
        groups=[
            rollouts.PlannedScope(
                scope=group.scope,
                group=_group_of(group.scope),
                members=group.members,
                out_seconds=group.out.total_seconds(),
                most_out=group.most_out,
                allowed=group.allowed,
                budget=group.budget or None,
                delayed_hosts=group.delayed,
            )
            for group in plan.groups
        ],
        empty=list(plan.empty),
        assumes=_assumes(request.kind),
    )


def _waves(plan: Plan) -> list[rollouts.PlannedWave]:
    by_wave: dict[int, list[PlannedStop]] = {}
    for stop in plan.stops:
        by_wave.setdefault(stop.wave, []).append(stop)
    return [
        rollouts.PlannedWave(
            wave=wave + 1,
            update_domains=_domains(stop.update_domains for stop in stops),
            hosts=len(stops),
            vms=sum(len(stop.vms) for stop in stops),
            begins_at=min(stop.announced_at for stop in stops),
            first_start_at=min(stop.not_before for stop in stops),
            ends_at=max(stop.ends_at for stop in stops),
        )
        for wave, stops in sorted(by_wave.items())
    ]


def _assumes(kind: Kind) -> str:
    return (
        "Assumed: nobody approves early, every gate is green, nothing fails, each host takes "
        f"{expected(kind).total_seconds():g} s at speed 1, and each host is taken as soon as another is done."
    )
