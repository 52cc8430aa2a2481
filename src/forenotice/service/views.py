"""Core's things as operators see them: structs of `views`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from forenotice.core import explanations, placement
from forenotice.core.draft import Draft
from forenotice.core.fleet import Drift, Host, Scope, Vm, amount
from forenotice.core.inventory import Silence
from forenotice.core.journal import Entry
from forenotice.core.lifecycle import is_listening
from forenotice.core.operations import Event, Operation, Status
from forenotice.core.rollout_plan import Plan, PlannedHost, expected
from forenotice.core.rollouts import KINDS, Rollout, RolloutHost, RolloutHostStatus, RolloutSpec, Tally
from forenotice.core.timing import CLOCK_TOLERANCE, Timing
from forenotice.views import fleet, history, maintenance, rollouts

S = TypeVar("S", bound=msgspec.Struct)

COPIES: Mapping[type, Callable[[Any], Any]] = {tuple: list, dict: dict, MappingProxyType: dict}

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


def of(struct: type[S], source: object, /, **others: Any) -> S:
    """A struct whose fields are the attributes of the same name, except for the others; with lists and dicts."""
    names, values = _same(struct, frozenset(others))
    same = {
        name: COPIES[type(value)](value) if type(value) in COPIES else value
        for name, value in zip(names, values(source), strict=True)
    }
    return struct(**same, **others)


@cache
def _same(struct: type[msgspec.Struct], others: frozenset[str]) -> tuple[list[str], Callable[[object], Iterable[Any]]]:
    names = [name for name in struct.__struct_fields__ if name not in others]
    return names, attrgetter(*names) if len(names) > 1 else lambda source: [getattr(source, name) for name in names]


def host(host: Host, vms: int, used: float, drift: int = 0, silence: Silence | None = None) -> fleet.Host:
    since, why = (silence.since, silence.why) if silence else (None, None)
    return of(fleet.Host, host, used=used, vms=vms, drift=drift, silent_since=since, silent_because=why)


def loaded_host(draft: Draft, name: str, drift: int = 0, silence: Silence | None = None) -> fleet.Host:
    used = amount(placement.taken(draft, name))
    return host(draft.host(name), len(draft.vms_on(name)), used, drift, silence)


def vm(vm: Vm, scope: Scope, now: datetime, timing: Timing, drift: Iterable[Drift] = ()) -> fleet.Vm:
    return of(
        fleet.Vm,
        vm,
        facts=fleet.Facts.of(vm.facts),
        policy=fleet.Policy.of(scope.policy) if vm.group is None else None,
        incarnation=scope.incarnation,
        listening=is_listening(scope, now, timing),
        last_heard=scope.last_heard,
        drift=[of(fleet.Drift, each) for each in drift],
    )


def group(scope: Scope, vms: int, now: datetime, timing: Timing) -> fleet.Group:
    policy = fleet.Policy.of(scope.policy)
    return of(fleet.Group, scope, policy=policy, vms=vms, listening=is_listening(scope, now, timing))


def operation(operation: Operation, events: Iterable[Event]) -> maintenance.Operation:
    planned = operation.status is Status.PLANNED
    # While held, the time is unknown: `due_at` is only the next check.
    held = planned and operation.held
    return of(
        maintenance.Operation,
        operation,
        not_before=None if held else operation.not_before,
        announce_at=operation.due_at if planned and not held else None,
        duration_seconds=operation.announced_seconds,
        events=[event_of(operation, event) for event in events],
    )


def event_of(operation: Operation, event: Event) -> maintenance.Event:
    return of(
        maintenance.Event,
        event,
        kind=operation.kind,
        host=operation.host,
        group=_group_of(event.scope),
        duration_seconds=event.duration,
        status=event.status.value,
    )


def _group_of(scope: str) -> str | None:
    noun, _, name = scope.partition(":")
    return name if noun == "group" else None


def explanation(found: explanations.Explanation, behind: timedelta = timedelta(0)) -> Any:
    """An explanation of an event, an operation or a rollout, each a struct of its own; `behind` is for the clock."""
    if behind >= CLOCK_TOLERANCE:
        found = explanations.with_clock_behind(found, behind)
    return of(EXPLANATIONS[found.noun], found, waiting_for=plain(found.waiting_for), **{found.noun: found.id})


def entry(seq: int, entry: Entry) -> history.Entry:
    return of(history.Entry, entry, seq=seq, data=plain(entry.data))


def rollout(rollout: Rollout, tally: Sequence[Tally]) -> rollouts.Rollout:
    return rollouts.Rollout(**msgspec.structs.asdict(listed_rollout(rollout, tally)), by_wave=_by_wave(tally))


def listed_rollout(rollout: Rollout, tally: Sequence[Tally]) -> rollouts.ListedRollout:
    """As one of many: it does not say which host is in which wave."""
    found = rollout.gate_result
    return of(
        rollouts.ListedRollout,
        rollout,
        **rollout.options.facts(),
        kind=NAMES[rollout.kind],
        wave=rollout.wave + 1,
        waves=len({some.wave for some in tally}),
        wave_began_at=rollout.opened_at,
        progress=_progress(tally),
        gate_result=None if found is None else of(rollouts.GateResult, found),
    )


def _progress(tally: Iterable[Tally]) -> rollouts.Progress:
    found = dict.fromkeys(RolloutHostStatus, 0)
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
            wave=wave + 1, update_domains=_domains(some.update_domains for some in found), progress=_progress(found)
        )
        for wave, found in sorted(by_wave.items())
    ]


def _domains(several: Iterable[tuple[int, ...]]) -> list[int]:
    return sorted({domain for domains in several for domain in domains})


def rollout_host(host: RolloutHost) -> rollouts.RolloutHost:
    return of(rollouts.RolloutHost, host, wave=host.wave + 1)


def plan(plan: Plan, spec: RolloutSpec) -> rollouts.RolloutPlan:
    return of(
        rollouts.RolloutPlan,
        plan,
        **spec.options.facts(),
        kind=NAMES[spec.kind],
        hosts=spec.hosts,
        waves=_waves(plan),
        planned_hosts=[of(rollouts.PlannedHost, host, wave=host.wave + 1) for host in plan.planned_hosts],
        groups=[
            of(
                rollouts.PlannedScope,
                group,
                group=_group_of(group.scope),
                down_seconds=group.down.total_seconds(),
                budget=group.budget or None,
                delayed_hosts=group.delayed,
            )
            for group in plan.groups
        ],
        assumes=_assumes(spec),
    )


def _waves(plan: Plan) -> list[rollouts.PlannedWave]:
    by_wave: dict[int, list[PlannedHost]] = {}
    for host in plan.planned_hosts:
        by_wave.setdefault(host.wave, []).append(host)
    return [
        rollouts.PlannedWave(
            wave=wave + 1,
            update_domains=_domains(host.update_domains for host in hosts),
            hosts=len(hosts),
            vms=sum(len(host.vms) for host in hosts),
            begins_at=min(host.announced_at for host in hosts),
            first_start_at=min(host.not_before for host in hosts),
            ends_at=max(host.ends_at for host in hosts),
        )
        for wave, hosts in sorted(by_wave.items())
    ]


def _assumes(spec: RolloutSpec) -> str:
    takes = expected(spec.kind, spec.options.duration)
    return (
        "Assumed: no guest approves early, every gate is green, nothing fails, each host takes "
        f"{takes.total_seconds():g} s at speed 1, and each host is taken as soon as another is done."
    )
