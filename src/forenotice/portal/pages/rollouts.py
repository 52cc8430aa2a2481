"""/rollouts: which there are, and one of them: how far it is, what is in the way, pause, resume, cancel."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from forenotice.core import errors, fleet, rollout_progress
from forenotice.core.roles import Need
from forenotice.core.rollouts import RolloutHostStatus, RolloutStatus
from forenotice.portal.page import PageRequest, Pages
from forenotice.service import queries, rollouts
from forenotice.views import rollouts as views
from forenotice.views.rollouts import PlannedWave, Progress, WaveProgress

MOST_LIVE = 20
EXPLAINED = 5
"""Of those that are live; the others say what is in the way on their own page."""
SHOWN = 25
HOSTS_SHOWN = 50
OPERATIONS_SHOWN = 10
KINDS = {"update": "Update", "migrate": "Live migration", "reboot": "Reboot"}

ACTOR = re.compile(rf"\b({rollout_progress.PAUSED_BY})\w+:")
"""Who paused a rollout, with what kind of actor that is."""

pages = Pages()


class Verb(NamedTuple):
    """What can be done with a rollout."""

    do: Callable[[PageRequest, str], views.Rollout]
    title: str
    means: str
    button: str
    refuse: str
    message: str
    is_possible: Callable[[RolloutStatus], bool]


def _resume(visit: PageRequest, rollout_id: str) -> views.Rollout:
    retry = visit.asked(views.Resumption, {"retry": "retry" in visit.form}).retry
    return rollouts.resume(visit.service, visit.call(), rollout_id, retry=retry)


VERBS: Mapping[str, Verb] = {
    "pause": Verb(
        do=lambda visit, rollout_id: rollouts.pause(visit.service, visit.call(), rollout_id),
        title="Pause this rollout?",
        means="Nothing of it starts until it is resumed, not even what is announced and approved. What has started "
        "goes on to its end.",
        button="Pause the rollout",
        refuse="Let it go on",
        message="The rollout is paused: nothing of it starts until it is resumed.",
        is_possible=rollout_progress.can_be_paused,
    ),
    "resume": Verb(
        do=_resume,
        title="Resume this rollout?",
        means="It goes on where it was. Hosts that failed are left out, unless they have another try.",
        button="Resume the rollout",
        refuse="Leave it paused",
        message="The rollout goes on.",
        is_possible=rollout_progress.can_be_resumed,
    ),
    "cancel": Verb(
        do=lambda visit, rollout_id: rollouts.cancel(visit.service, visit.call(), rollout_id),
        title="Cancel this rollout?",
        means="What is only Scheduled is cancelled, and its guests see that. What has started goes on to its end. "
        "Hosts that wait are skipped. This cannot be undone: start another rollout for them.",
        button="Cancel the rollout",
        refuse="Keep it",
        message="The rollout is cancelled: what has started goes on to its end.",
        is_possible=rollout_progress.can_be_cancelled,
    ),
}


@pages.get("/rollouts", needs=Need.OVERSEE)
def show_all(visit: PageRequest) -> Response:
    after = visit.query.get("after")
    live = [] if after else rollouts.page(visit.service, live=True, limit=MOST_LIVE, access=visit.access).items
    ended = rollouts.page(visit.service, live=False, after=after, limit=SHOWN, access=visit.access)
    return visit.page(
        "rollouts.html",
        live=live,
        why={found.id: _why(visit, found.id) for found in live[:EXPLAINED]},
        ended=ended.items,
        after=after,
        next_url=f"/rollouts?{urlencode({'after': ended.next})}" if ended.next else None,
    )


@pages.get("/rollouts/{rollout_id}", needs=Need.OVERSEE)
def show(visit: PageRequest, error: errors.ForenoticeError | None = None) -> Response:
    rollout = rollouts.show(visit.service, visit.path["rollout_id"], visit.access)
    status, after = _status(visit), visit.query.get("host")
    hosts = rollouts.hosts(visit.service, rollout.id, after=after, limit=HOSTS_SHOWN, status=status)
    operations = queries.operations(visit.service, live=True, rollout=rollout.id, limit=OPERATIONS_SHOWN).items
    more = {**({"status": status.value} if status else {}), "host": hosts.next}
    return visit.page(
        "rollout.html",
        refusal=error,
        rollout=rollout,
        why=_why(visit, rollout.id),
        lines=lines(rollout.by_wave),
        same=are_update_domains(rollout.by_wave),
        hosts=hosts.items,
        domains=domain_names,
        operations=sorted(operations, key=lambda each: (each.not_before or each.created_at, each.host)),
        more_operations=rollout.progress.under_way > OPERATIONS_SHOWN,
        total=sum(counts(rollout.progress).values()),
        statuses=[(each.value, getattr(rollout.progress, each.name.lower())) for each in RolloutHostStatus],
        chosen=status,
        after=after,
        next_url=f"/rollouts/{rollout.id}?{urlencode(more)}#hosts" if hosts.next else None,
        verbs=[name for name, verb in VERBS.items() if verb.is_possible(rollout.status)],
    )


@pages.get("/rollouts/{rollout_id}/{verb}", needs=Need.MANAGE)
def ask(visit: PageRequest) -> Response:
    verb = _verb(visit)
    rollout = rollouts.show(visit.service, visit.path["rollout_id"], visit.access)
    return visit.page(
        "rollout_verb.html",
        rollout=rollout,
        verb=verb,
        name=visit.path["verb"],
        possible=verb.is_possible(rollout.status),
    )


@pages.post("/rollouts/{rollout_id}/{verb}", needs=Need.MANAGE)
def do(visit: PageRequest) -> Response:
    verb = _verb(visit)
    try:
        rollout = verb.do(visit, visit.path["rollout_id"])
    except (errors.RefusedError, errors.ConflictError) as error:
        return show(visit, error)
    return visit.go(f"/rollouts/{rollout.id}", message=verb.message)


def title(rollout: views.RolloutOptions) -> str:
    return f"{KINDS[rollout.kind]} of {', '.join(rollout.hosts.replace(',', ' ').split())}"


def _why(visit: PageRequest, rollout_id: str) -> str:
    return ACTOR.sub(r"\1", rollouts.explain(visit.service, rollout_id).sentence)


def _status(visit: PageRequest) -> RolloutHostStatus | None:
    given = visit.query.get("status")
    if not given:
        return None
    try:
        return RolloutHostStatus(given)
    except ValueError:
        raise errors.RefusedError(f"no host can be {given[:40]!r}: give {', '.join(RolloutHostStatus)}") from None


def _verb(visit: PageRequest) -> Verb:
    name = visit.path["verb"]
    if name not in VERBS:
        raise errors.NotFoundError(f"there is no page /rollouts/{visit.path['rollout_id']}/{name}")
    return VERBS[name]


MOST_WAVES = 20
"""Told one by one; those that are over are one line then, and those that come later another."""
LOOKS = ("done", "failed", "under_way", "waiting", "skipped")
"""In the order in which a bar has them."""
LEAST_RUN = 3
"""So many numbers that follow each other are told by the first and the last."""

Wave = WaveProgress | PlannedWave


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    parts: Sequence[tuple[float, float, str]]
    """Place and width in percent, and what it is."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    id: str
    title: str
    detail: str
    hosts: int
    meter: Meter


def counts(progress: Progress) -> dict[str, int]:
    return msgspec.structs.asdict(progress)


def meter(progress: Progress) -> Meter:
    return _meter(counts(progress))


def _meter(counts: Mapping[str, int]) -> Meter:
    hosts = sum(counts.values())
    parts: list[tuple[float, float, str]] = []
    before = 0
    for look in LOOKS:
        if counts[look] and look != "waiting":
            left, right = before / hosts * 100, (before + counts[look]) / hosts * 100
            parts.append((round(left, 2), round(right - left, 2), look))
        before += counts[look]
    others = [f"{counts[look]} {look.replace('_', ' ')}" for look in ("under_way", "failed", "skipped") if counts[look]]
    return Meter(parts=parts, text=", ".join([f"{counts['done']} of {hosts} done", *others]))


def lines(waves: Sequence[WaveProgress]) -> list[Line]:
    """Where waves and update domains are the same they are called so; where groups differ a wave says which it has."""
    same = are_update_domains(waves)
    if len(waves) <= MOST_WAVES:
        return [_line([wave], same=same) for wave in waves]
    over = next((number for number, wave in enumerate(waves) if not _is_over(wave.progress)), len(waves))
    shown, later = waves[over : over + MOST_WAVES], waves[over + MOST_WAVES :]
    found = [_line([wave], same=same) for wave in shown]
    return [
        *([_line(waves[:over], same=same)] if over else []),
        *found,
        *([_line(later, same=same)] if later else []),
    ]


def are_update_domains(waves: Sequence[Wave]) -> bool:
    """Whether each wave has one update domain, and each of those has one wave."""
    domains = [tuple(wave.update_domains) for wave in waves]
    return all(len(each) == 1 for each in domains) and len(set(domains)) == len(domains)


def title_of(wave: Wave, *, same: bool) -> tuple[str, str]:
    """What a wave is called, and what is said of it beside."""
    numbered = f"Wave {wave.wave}"
    if same:
        return f"Update domain {wave.update_domains[0]}", numbered.lower()
    return numbered, domain_names(wave.update_domains)


def domain_names(domains: Sequence[int]) -> str:
    if not domains:
        return ""
    return f"update domain{'' if len(domains) == 1 else 's'} {fleet.names(_runs(domains))}"


def _line(waves: Sequence[WaveProgress], *, same: bool) -> Line:
    total: Counter[str] = Counter()
    for wave in waves:
        total.update(counts(wave.progress))
    title, detail = title_of(waves[0], same=same)
    if len(waves) > 1:
        title, detail = f"Waves {waves[0].wave} to {waves[-1].wave}", ""
    return Line(id=f"wave-{waves[0].wave}", title=title, detail=detail, hosts=total.total(), meter=_meter(total))


def _is_over(progress: Progress) -> bool:
    return not (progress.waiting or progress.under_way or progress.failed)


def _runs(numbers: Sequence[int]) -> list[str]:
    """`0 to 4`, `7`."""
    found: list[str] = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda each: each[1] - each[0]):
        values = [value for _, value in run]
        found += [f"{values[0]} to {values[-1]}"] if len(values) >= LEAST_RUN else map(str, values)
    return found
