"""/rollouts: which there are, and one of them: how far it is, what is in the way, pause, resume, cancel."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response

from forenotice.core import errors, rollout_progress
from forenotice.core.roles import Need
from forenotice.core.rollouts import RolloutHostStatus, RolloutStatus
from forenotice.portal import progress_bar
from forenotice.portal.page import PageRequest, Pages
from forenotice.service import queries, rollouts
from forenotice.views import rollouts as views

MOST_LIVE = 20
EXPLAINED = 5
"""Of those that are live; the others say what is in the way on their own page."""
SHOWN = 25
HOSTS_SHOWN = 50
OPERATIONS_SHOWN = 10
KINDS = {"update": "Update", "migrate": "Live migration", "reboot": "Reboot"}

ACTOR = re.compile(rf"\b({rollout_progress.PAUSED_BY})\w+:")
"""Whoever paused a rollout, with what kind of actor that is."""

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
def show(visit: PageRequest) -> Response:
    return _shown(visit)


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
        return _shown(visit, error)
    return visit.go(f"/rollouts/{rollout.id}", message=verb.message)


def _shown(visit: PageRequest, error: errors.ForenoticeError | None = None) -> Response:
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
        lines=progress_bar.lines(rollout.by_wave),
        same=progress_bar.are_update_domains(rollout.by_wave),
        hosts=hosts.items,
        domains=progress_bar.domains_told,
        operations=sorted(operations, key=lambda each: (each.not_before or each.created_at, each.host)),
        more_operations=rollout.progress.under_way > OPERATIONS_SHOWN,
        total=sum(progress_bar.counts(rollout.progress).values()),
        statuses=[(each.value, getattr(rollout.progress, each.name.lower())) for each in RolloutHostStatus],
        chosen=status,
        after=after,
        next_url=f"/rollouts/{rollout.id}?{urlencode(more)}#hosts" if hosts.next else None,
        verbs=[name for name, verb in VERBS.items() if verb.is_possible(rollout.status)],
    )


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
