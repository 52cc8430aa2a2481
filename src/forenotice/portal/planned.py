"""A rollout's plan as its page has it: the picture, wave by wave, group by group."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from forenotice.core.rollouts import KINDS
from forenotice.portal import progress, renderer, timeline, words
from forenotice.service.calls import View

MOST_GROUPS = 20
MOST_HOSTS = 100
MARGIN = 0.02
"""Of the picture's width, on both sides of the plan."""


def told(plan: View) -> dict[str, Any]:
    stops, same = plan["stops"], progress.are_update_domains(plan["waves"])
    groups = [scope for scope in plan["groups"] if scope["group"]]
    # Those whose budget makes others wait first, then those that are out longest.
    groups.sort(key=lambda group: (-group["delayed_hosts"], -group["out_seconds"], group["group"]))
    begins_at, ends_at = map(datetime.fromisoformat, (plan["begins_at"], plan["ends_at"]))
    drawn = _picture(plan, begins_at, ends_at) if stops else None
    return {
        "kind": plan["kind"],
        "hosts": len(stops),
        "vms": sum(wave["vms"] for wave in plan["waves"]),
        "begins_at": begins_at,
        "ends_at": ends_at,
        "takes": ends_at - begins_at,
        "picture": drawn,
        "folded": drawn is not None and all(lane.folded for lane in drawn.lanes),
        "by_host": len(stops) <= timeline.MOST_LANES,
        "type": KINDS[plan["kind"]].traits.type.value,
        "waves": list(_waves(plan, same=same)),
        "stops": stops[:MOST_HOSTS],
        "more_stops": len(stops) - MOST_HOSTS,
        "groups": [{**group, "decides": _decides(group)} for group in groups[:MOST_GROUPS]],
        "more_groups": len(groups) - MOST_GROUPS,
        "alone": len(plan["groups"]) - len(groups),
        "empty": plan["empty"],
        "assumes": plan["assumes"],
    }


def _decides(group: View) -> str:
    """The budget in words; empty without one."""
    rule, _, value = (group["budget"] or "").partition(" ")
    if not rule:
        return ""
    said = words.POLICY[rule].format(value)
    return said if value == str(group["allowed"]) else f"{said}: {group['allowed']} out at once"


def _waves(plan: View, *, same: bool) -> Iterator[View]:
    hosts: dict[int, list[str]] = {}
    for stop in plan["stops"]:
        hosts.setdefault(stop["wave"], []).append(stop["host"])
    for wave in plan["waves"]:
        title, detail = progress.title_of(wave, same=same)
        yield {**wave, "title": title, "detail": detail, "names": hosts[wave["wave"]]}


def _picture(plan: View, begins_at: datetime, ends_at: datetime) -> timeline.Timeline:
    """A lane for each host; where those would be too many, for each wave."""
    stops: Sequence[View] = plan["stops"]
    by_host = len(stops) <= timeline.MOST_LANES
    margin = (ends_at - begins_at) * MARGIN
    return timeline.draw(
        (_bar(plan, stop, by_host=by_host) for stop in stops),
        begin=begins_at - margin,
        end=ends_at + margin,
        now=begins_at,
        href=(lambda lane: f"/hosts/{lane}") if by_host else (lambda lane: f"#wave-{lane.partition(' ')[2]}"),
    )


def _bar(plan: View, stop: View, *, by_host: bool) -> timeline.Bar:
    not_before = datetime.fromisoformat(stop["not_before"])
    return timeline.Bar(
        id=stop["host"],
        lane=stop["host"] if by_host else f"Wave {stop['wave']}",
        type=KINDS[plan["kind"]].traits.type.value,
        label=f"{stop['host']} in wave {stop['wave']}: announced at {renderer.utc(stop['announced_at'])}, "
        f"started at {renderer.utc(not_before)}, over at {renderer.utc(stop['ends_at'])}",
        begin=datetime.fromisoformat(stop["announced_at"]),
        not_before=not_before,
        start=not_before,
        end=datetime.fromisoformat(stop["ends_at"]),
        expected=True,
    )
