"""/rollouts/new and /rollouts/plan: a rollout that somebody thinks of, and what it would come to; its start."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import ImmutableMultiDict
from starlette.responses import Response

from forenotice.control import models
from forenotice.control.responses import status_of
from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.core.rollouts import KINDS
from forenotice.portal import forms, planned
from forenotice.portal.page import PageRequest, Pages
from forenotice.service import rollouts

BLANK: Mapping[str, str] = {
    "kind": "update",
    "hosts": "",
    "batch": "1",
    "pause_minutes": "0",
    "gate": "",
    "max_failures": "1",
    "windows": "",
    "notice_minutes": "",
    "reason": "",
}
MEANINGS = {
    "update": "Its VMs freeze for some seconds.",
    "migrate": "Its VMs move to other hosts, with a freeze of some seconds.",
    "reboot": "It is restarted, and all its VMs with it.",
}

pages = Pages()


@pages.get("/rollouts/new", needs=Need.OVERSEE)
def blank(visit: PageRequest) -> Response:
    return _page(visit, _given(visit.query))


@pages.get("/rollouts/plan", needs=Need.OVERSEE, expensive=True)
def plan(visit: PageRequest) -> Response:
    given = _given(visit.query)
    try:
        asked = _asked(visit, given)
        found = rollouts.plan(visit.service, asked.request(asked.reason))
    except (errors.RefusedError, errors.NotFoundError, errors.ConflictError) as error:
        return _page(visit, given, error)
    return _page(visit, given, plan=planned.told(found), plan_url=f"/rollouts/plan?{urlencode(given)}")


@pages.post("/rollouts", needs=Need.MANAGE)
def start(visit: PageRequest) -> Response:
    given = _given(visit.form)
    try:
        call = visit.call()
        rollout = rollouts.start(visit.service, call, _asked(visit, given).request(call.reason))
    except (errors.RefusedError, errors.NotFoundError, errors.ConflictError) as error:
        return _page(visit, given, error)
    return visit.go(f"/rollouts/{rollout['id']}", said="The rollout is started.")


def _given(fields: ImmutableMultiDict[str, str]) -> dict[str, str]:
    return {name: fields.get(name, blank).strip() for name, blank in BLANK.items()}


def _asked(visit: PageRequest, given: Mapping[str, str]) -> models.NewRollout:
    values: dict[str, Any] = {
        "kind": given["kind"],
        "hosts": given["hosts"],
        "batch": forms.number(given["batch"] or BLANK["batch"]),
        "pause_minutes": forms.number(given["pause_minutes"] or BLANK["pause_minutes"]),
        "gate": given["gate"] or None,
        "max_failures": forms.number(given["max_failures"] or BLANK["max_failures"]),
        "windows": [line.strip() for line in given["windows"].splitlines() if line.strip()],
        "notice_minutes": forms.number(given["notice_minutes"]),
        "reason": given["reason"],
    }
    if not values["hosts"]:
        raise errors.RefusedError("say which hosts: names with commas between them, such as rack1-*,!rack1-07")
    return visit.asked(models.NewRollout, values)


def _page(
    visit: PageRequest, given: Mapping[str, str], error: errors.ForenoticeError | None = None, **context: Any
) -> Response:
    return visit.page(
        "rollout_new.html",
        status=status_of(error) if error else 200,
        given=given,
        error=error.message if error else None,
        kinds={name: (MEANINGS[name], kind.traits.notice) for name, kind in KINDS.items()},
        gates=visit.service.gates.names,
        **{"plan": None, "plan_url": "", **context},
    )
