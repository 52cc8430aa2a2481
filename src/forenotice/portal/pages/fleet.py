"""/fleet: where VMs are and how they are, by host or by group; and finding one by a part of its name."""

import re
from urllib.parse import urlencode

from starlette.responses import Response

from forenotice.core import errors
from forenotice.core.fleet import NAME
from forenotice.core.roles import Need
from forenotice.portal.page import PageRequest, Pages
from forenotice.portal.subjects import MEANINGS, SIGNS
from forenotice.service import fleet_map, queries
from forenotice.service.calls import View

AFTER = re.compile(rf"(?:(?:group|vm):)?{NAME.pattern}")
"""A host's name or a scope's key, behind which a page begins."""

LONGEST = 200

pages = Pages()


@pages.get("/fleet", needs=Need.SEE)
def show(visit: PageRequest) -> Response:
    wanted = visit.query.get("q", "").strip()
    if len(wanted) > LONGEST:
        return _page(visit, status=400, wanted=wanted[:LONGEST], error="this is too long: a part of a name is enough")
    if wanted:
        return _found(visit, wanted)
    by = "host" if visit.may(Need.OVERSEE) and visit.query.get("by") != "group" else "group"
    given = visit.query.get("after", "")
    after = given if AFTER.fullmatch(given) else None
    found = (
        fleet_map.by_host(visit.service, after=after)
        if by == "host"
        else fleet_map.by_group(visit.service, after=after, seen=visit.seen)
    )
    next_url = "/fleet?" + urlencode({"by": by, "after": found["next"]}) if found["next"] else None
    return _page(visit, grid=found, by=by, first=after is None, next_url=next_url)


def _found(visit: PageRequest, wanted: str) -> Response:
    try:
        found = queries.search(visit.service, wanted, see_hosts=visit.may(Need.OVERSEE), seen=visit.seen)
    except errors.RefusedError as error:
        return _page(visit, status=400, wanted=wanted, error=error.message)
    return _page(visit, wanted=wanted, found=found)


def _page(
    visit: PageRequest,
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
