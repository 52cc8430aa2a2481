"""Rollouts and plans as operators see them: plain values, ready for JSON."""

from collections.abc import Iterable, Sequence

from forenotice.core.operations import Kind
from forenotice.core.rollout_plan import Plan, PlannedGroup, PlannedStop, expected
from forenotice.core.rollouts import KINDS, GateResult, Request, Rollout, Stop, StopStatus, Tally
from forenotice.service.views import View, moment

NAMES = {kind: name for name, kind in KINDS.items()}


def rollout(rollout: Rollout, tally: Sequence[Tally]) -> View:
    return {**listed(rollout, tally), "by_wave": _by_wave(tally)}


def listed(rollout: Rollout, tally: Sequence[Tally]) -> View:
    """As one of many: it does not say whose wave is when."""
    return {
        "id": rollout.id,
        "kind": NAMES[rollout.kind],
        "hosts": rollout.hosts,
        "status": rollout.status.value,
        "why": rollout.why,
        **rollout.options.facts(),
        "wave": rollout.wave + 1,
        "waves": len({some.wave for some in tally}),
        "wave_began_at": moment(rollout.opened_at),
        "failures": rollout.failures,
        "progress": _progress(tally),
        "gate_result": rollout.gate_result and _gate_result(rollout.gate_result),
        "created_at": moment(rollout.created_at),
        "ended_at": moment(rollout.ended_at),
        "by": rollout.by,
        "reason": rollout.reason,
    }


def _gate_result(gate_result: GateResult) -> View:
    return {
        "green": gate_result.green,
        "status": gate_result.status,
        "output": gate_result.output,
        "at": moment(gate_result.at),
    }


def _progress(tally: Iterable[Tally]) -> View:
    found = dict.fromkeys(StopStatus, 0)
    for some in tally:
        found[some.status] += some.hosts
    return {status.name.lower(): hosts for status, hosts in found.items()}


def _by_wave(tally: Iterable[Tally]) -> list[View]:
    """A wave has one update domain of each group; groups may number them differently, so it may have several."""
    by_wave: dict[int, list[Tally]] = {}
    for some in tally:
        by_wave.setdefault(some.wave, []).append(some)
    return [
        {
            "wave": wave + 1,
            "update_domains": _domains(some.update_domains for some in found),
            "progress": _progress(found),
        }
        for wave, found in sorted(by_wave.items())
    ]


def _domains(several: Iterable[tuple[int, ...]]) -> list[int]:
    return sorted({domain for domains in several for domain in domains})


def stop(stop: Stop) -> View:
    return {
        "host": stop.host,
        "wave": stop.wave + 1,
        "update_domains": list(stop.update_domains),
        "status": stop.status.value,
        "operation": stop.operation,
        "why": stop.why,
    }


def plan(plan: Plan, request: Request) -> View:
    return {
        "kind": NAMES[request.kind],
        "hosts": request.hosts,
        **request.options.facts(),
        "begins_at": moment(plan.begins_at),
        "ends_at": moment(plan.ends_at),
        "waves": _waves(plan),
        "stops": [_planned_stop(stop) for stop in plan.stops],
        "groups": [_planned_group(group) for group in plan.groups],
        "empty": list(plan.empty),
        "assumes": _assumes(request.kind),
    }


def _waves(plan: Plan) -> list[View]:
    by_wave: dict[int, list[PlannedStop]] = {}
    for stop in plan.stops:
        by_wave.setdefault(stop.wave, []).append(stop)
    return [
        {
            "wave": wave + 1,
            "update_domains": _domains(stop.update_domains for stop in stops),
            "hosts": len(stops),
            "vms": sum(len(stop.vms) for stop in stops),
            "begins_at": moment(min(stop.announced_at for stop in stops)),
            "first_start_at": moment(min(stop.not_before for stop in stops)),
            "ends_at": moment(max(stop.ends_at for stop in stops)),
        }
        for wave, stops in sorted(by_wave.items())
    ]


def _planned_stop(stop: PlannedStop) -> View:
    return {
        "host": stop.host,
        "wave": stop.wave + 1,
        "update_domains": list(stop.update_domains),
        "vms": list(stop.vms),
        "announced_at": moment(stop.announced_at),
        "not_before": moment(stop.not_before),
        "ends_at": moment(stop.ends_at),
    }


def _planned_group(group: PlannedGroup) -> View:
    noun, _, name = group.scope.partition(":")
    return {
        "scope": group.scope,
        "group": name if noun == "group" else None,
        "members": group.members,
        "out_seconds": group.out.total_seconds(),
        "most_out": group.most_out,
        "allowed": group.allowed,
        "budget": group.budget or None,
        "delayed_hosts": group.delayed,
    }


def _assumes(kind: Kind) -> str:
    return (
        "Assumed: nobody approves early, every gate is green, nothing fails, each host takes "
        f"{expected(kind).total_seconds():g} s at speed 1, and each host is taken as soon as another is done."
    )
