"""/rollouts/new and /rollouts/plan: a rollout that somebody thinks of, and what it would come to; its start."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import ImmutableMultiDict
from starlette.responses import Response

from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.core.rollouts import KINDS
from forenotice.portal import forms, renderer, timeline
from forenotice.portal.page import PageRequest, Pages
from forenotice.portal.pages.rollouts import are_update_domains, title_of
from forenotice.service import rollouts
from forenotice.views import rollouts as views
from forenotice.views import wording

BLANK: Mapping[str, str] = {
    "kind": "update",
    "hosts": "",
    "batch": "1",
    "pause_minutes": "0",
    "gate": "",
    "max_failures": "1",
    "windows": "",
    "notice_minutes": "",
    "duration_seconds": "",
    "reason": "",
}
MEANINGS = {
    "update": "Its VMs freeze for some seconds.",
    "migrate": "Its VMs move to other hosts, with a freeze of some seconds.",
    "reboot": "It is restarted, and all its VMs with it.",
}

MOST_GROUPS = 20
MOST_HOSTS = 100
MARGIN = 0.02
"""Of the picture's width, on both sides of the plan."""

pages = Pages()


@pages.get("/rollouts/new", needs=Need.OVERSEE)
def blank(visit: PageRequest) -> Response:
    return _page(visit, _given(visit.query))


@pages.get("/rollouts/plan", needs=Need.OVERSEE, expensive=True)
def plan(visit: PageRequest) -> Response:
    given = _given(visit.query)
    try:
        asked = _asked(visit, given)
        found = rollouts.plan(visit.service, asked.spec(asked.reason))
    except (errors.RefusedError, errors.NotFoundError, errors.ConflictError) as error:
        return _page(visit, given, error)
    return _page(visit, given, plan=_plan_context(found), plan_url=f"/rollouts/plan?{urlencode(given)}")


@pages.post("/rollouts", needs=Need.MANAGE)
def start(visit: PageRequest) -> Response:
    given = _given(visit.form)
    try:
        call = visit.call()
        rollout = rollouts.start(visit.service, call, _asked(visit, given).spec(call.reason))
    except (errors.RefusedError, errors.NotFoundError, errors.ConflictError) as error:
        return _page(visit, given, error)
    return visit.go(f"/rollouts/{rollout.id}", message="The rollout is started.")


def _given(fields: ImmutableMultiDict[str, str]) -> dict[str, str]:
    return {name: fields.get(name, blank).strip() for name, blank in BLANK.items()}


def _asked(visit: PageRequest, given: Mapping[str, str]) -> views.NewRollout:
    values: dict[str, Any] = {
        "kind": given["kind"],
        "hosts": given["hosts"],
        "batch": forms.number(given["batch"] or BLANK["batch"]),
        "pause_minutes": forms.number(given["pause_minutes"] or BLANK["pause_minutes"]),
        "gate": given["gate"] or None,
        "max_failures": forms.number(given["max_failures"] or BLANK["max_failures"]),
        "windows": forms.lines(given["windows"]),
        "notice_minutes": forms.number(given["notice_minutes"]),
        "duration_seconds": forms.number(given["duration_seconds"]),
        "reason": given["reason"],
    }
    if not values["hosts"]:
        raise errors.RefusedError("say which hosts: names with commas between them, such as rack1-*,!rack1-07")
    return visit.asked(views.NewRollout, values)


def _page(
    visit: PageRequest, given: Mapping[str, str], error: errors.ForenoticeError | None = None, **context: Any
) -> Response:
    return visit.page(
        "rollout_new.html",
        refusal=error,
        given=given,
        kinds={name: (MEANINGS[name], kind.traits.minimum_notice) for name, kind in KINDS.items()},
        gates=visit.service.gates.names,
        **{"plan": None, "plan_url": "", **context},
    )


def _plan_context(plan: views.RolloutPlan) -> dict[str, Any]:
    hosts, same = plan.planned_hosts, are_update_domains(plan.waves)
    groups = [scope for scope in plan.groups if scope.group]
    # Those whose budget makes others wait first, then those that are down longest.
    groups.sort(key=lambda group: (-group.delayed_hosts, -group.down_seconds, group.group))
    drawn = _picture(plan) if hosts else None
    return {
        "kind": plan.kind,
        "hosts": len(hosts),
        "vms": sum(wave.vms for wave in plan.waves),
        "begins_at": plan.begins_at,
        "ends_at": plan.ends_at,
        "takes": plan.ends_at - plan.begins_at,
        "picture": drawn,
        "folded": drawn is not None and all(lane.folded for lane in drawn.lanes),
        "by_host": len(hosts) <= timeline.MOST_LANES,
        "type": KINDS[plan.kind].traits.type.value,
        "waves": list(_waves(plan, same=same)),
        "planned_hosts": hosts[:MOST_HOSTS],
        "more_hosts": len(hosts) - MOST_HOSTS,
        "groups": groups[:MOST_GROUPS],
        "decides": _decides,
        "more_groups": len(groups) - MOST_GROUPS,
        "alone": len(plan.groups) - len(groups),
        "empty": plan.empty,
        "assumes": plan.assumes,
    }


def _decides(group: views.PlannedScope) -> str:
    """The budget in words; empty without one."""
    rule, _, value = (group.budget or "").partition(" ")
    if not rule:
        return ""
    said = wording.POLICY[rule].format(value)
    return said if value == str(group.allowed) else f"{said}: {group.allowed} down at once"


def _waves(plan: views.RolloutPlan, *, same: bool) -> Iterator[tuple[views.PlannedWave, str, str, list[str]]]:
    hosts: dict[int, list[str]] = {}
    for host in plan.planned_hosts:
        hosts.setdefault(host.wave, []).append(host.host)
    for wave in plan.waves:
        yield wave, *title_of(wave, same=same), hosts[wave.wave]


def _picture(plan: views.RolloutPlan) -> timeline.Timeline:
    """A lane for each host; where those would be too many, for each wave."""
    by_host = len(plan.planned_hosts) <= timeline.MOST_LANES
    margin = (plan.ends_at - plan.begins_at) * MARGIN
    return timeline.draw(
        (_bar(plan, host, by_host=by_host) for host in plan.planned_hosts),
        begin=plan.begins_at - margin,
        end=plan.ends_at + margin,
        now=plan.begins_at,
        href=(lambda lane: f"/hosts/{lane}") if by_host else (lambda lane: f"#wave-{lane.partition(' ')[2]}"),
    )


def _bar(plan: views.RolloutPlan, host: views.PlannedHost, *, by_host: bool) -> timeline.Bar:
    return timeline.Bar(
        id=host.host,
        lane=host.host if by_host else f"Wave {host.wave}",
        type=KINDS[plan.kind].traits.type.value,
        label=f"{host.host} in wave {host.wave}: announced at {renderer.utc(host.announced_at)}, "
        f"started at {renderer.utc(host.not_before)}, over at {renderer.utc(host.ends_at)}",
        begin=host.announced_at,
        not_before=host.not_before,
        start=host.not_before,
        end=host.ends_at,
        expected=True,
    )
