"""What the pages of one VM, host and group share: what happened, what can be done, and what if there is none."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from forenotice.core import errors, roles
from forenotice.core.fleet import NAME
from forenotice.core.operations import VmState
from forenotice.portal import renderer, wording
from forenotice.portal.actions import ACTIONS, Action
from forenotice.portal.page import PageRequest
from forenotice.service import history
from forenotice.service.calls import View

LATELY = 6
VMS = 100
"""Of one page."""


def name_of(visit: PageRequest, noun: str) -> str:
    """The name in the path; what cannot be one is nobody's."""
    name = visit.path["name"]
    if not NAME.fullmatch(name):
        raise errors.NotFoundError(f"there is no {noun} {name[:80]!r}")
    return name


def after_of(visit: PageRequest) -> str | None:
    """The name behind which a page of VMs begins."""
    given = visit.query.get("after", "")
    return given if NAME.fullmatch(given) else None


def missing(visit: PageRequest, noun: str, error: errors.NotFoundError) -> Response:
    """It may be misspelt, or have been there once."""
    name = visit.path["name"]
    known = bool(NAME.fullmatch(name))
    filters = {"scope": f"group:{name}"} if noun == "group" else {noun.lower(): name}
    return visit.page(
        "fleet_missing.html",
        status=404,
        noun=noun,
        wanted=name[:64] if known else "",
        message=error.message,
        history_url=f"/history?{urlencode(filters)}" if known else "",
    )


def actions(visit: PageRequest, noun: str) -> list[Action]:
    """What whoever looks may do to a VM or a host."""
    return [action for action in ACTIONS.values() if action.noun == noun and visit.may(roles.need_of(action.kind))]


def heard(visit: PageRequest, names: Iterable[str], last_heard: str | None) -> datetime | None:
    """The newest poll of any of these VMs, of which the store hears only now and then."""
    polls = [at for name in names if (at := visit.portal.polled(name))]
    return max([*polls, *([renderer.read(last_heard)] if last_heard else [])], default=None)


def lately(visit: PageRequest, *about: Mapping[str, Any]) -> list[View]:
    """The newest entries about any of these, each with its sentence."""
    found: dict[int, View] = {}
    for filters in about:
        entries = history.page(visit.service, limit=LATELY, newest_first=True, seen=visit.seen, **filters)["items"]
        found |= {entry["seq"]: entry for entry in entries}
    newest = sorted(found.values(), key=lambda entry: -entry["seq"])[:LATELY]
    return [{**entry, "sentence": wording.sentence(entry)} for entry in newest]


SIGNS: Mapping[str, str] = {VmState.FINE: "✓", VmState.SCHEDULED: "◷", VmState.STARTED: "►", VmState.NOT_LISTENING: "⊘"}
"""So that colours are not alone to say it."""
MEANINGS: Mapping[str, str] = {
    VmState.FINE: "nothing is planned",
    VmState.SCHEDULED: "something will be done to it",
    VmState.STARTED: "something is being done to it",
    VmState.NOT_LISTENING: "nothing is planned, and nobody there asks for events",
}
