"""/fleet: where VMs are and how they are, by host or by group; and finding one by a part of its name."""

import re
from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.responses import Response

from notbefore.core import errors
from notbefore.core.fleet import NAME
from notbefore.core.roles import Need
from notbefore.core.states import State
from notbefore.portal.paths import Pages
from notbefore.portal.visiting import Visit
from notbefore.service import finding, grid
from notbefore.service.calls import View

SIGNS: Mapping[str, str] = {State.FINE: "✓", State.SCHEDULED: "◷", State.STARTED: "►", State.NOT_LISTENING: "⊘"}
"""So that colours are not alone to say it."""
MEANINGS: Mapping[str, str] = {
    State.FINE: "nothing is planned",
    State.SCHEDULED: "something will be done to it",
    State.STARTED: "something is being done to it",
    State.NOT_LISTENING: "nothing is planned, and nobody there asks for events",
}

AFTER = re.compile(rf"(?:(?:group|vm):)?{NAME.pattern}")
"""A host's name or a scope's key, behind which a page begins."""

pages = Pages()


@pages.get("/fleet", needs=Need.SEE)
def show(visit: Visit) -> Response:
    wanted = visit.query.get("q", "").strip()
    if wanted:
        return _found(visit, wanted)
    by = "host" if visit.may(Need.OVERSEE) and visit.query.get("by") != "group" else "group"
    given = visit.query.get("after", "")
    after = given if AFTER.fullmatch(given) else None
    found = (
        grid.by_host(visit.service, after=after)
        if by == "host"
        else grid.by_group(visit.service, after=after, seen=visit.seen)
    )
    next_url = "/fleet?" + urlencode({"by": by, "after": found["next"]}) if found["next"] else None
    return _page(visit, grid=found, by=by, first=after is None, next_url=next_url)


def _found(visit: Visit, wanted: str) -> Response:
    try:
        found = finding.find(visit.service, wanted, hosts=visit.may(Need.OVERSEE), seen=visit.seen)
    except errors.RefusedError as error:
        return _page(visit, status=400, wanted=wanted, error=error.message)
    return _page(visit, wanted=wanted, found=found)


def _page(
    visit: Visit,
    *,
    status: int = 200,
    wanted: str = "",
    error: str = "",
    grid: View | None = None,
    found: View | None = None,
    by: str = "",
    first: bool = True,
    next_url: str | None = None,
) -> Response:
    return visit.page(
        "fleet.html",
        status=status,
        wanted=wanted,
        error=error,
        grid=grid,
        found=found,
        by=by,
        first=first,
        next_url=next_url,
        signs=SIGNS,
        meanings=MEANINGS,
    )
