"""What the pages of one VM, host and group share: what happened, what can be done, and what if there is none."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from forenotice.core import errors, roles
from forenotice.core.fleet import NAME
from forenotice.portal import rendering, wording
from forenotice.portal.deeds import DEEDS, Deed
from forenotice.portal.visiting import Visit
from forenotice.service import history
from forenotice.service.calls import View

LATELY = 6
VMS = 100
"""Of one page."""


def name_of(visit: Visit, noun: str) -> str:
    """The name in the path; what cannot be one is nobody's."""
    name = visit.path["name"]
    if not NAME.fullmatch(name):
        raise errors.NotFoundError(f"there is no {noun} {name[:80]!r}")
    return name


def after_of(visit: Visit) -> str | None:
    """The name behind which a page of VMs begins."""
    given = visit.query.get("after", "")
    return given if NAME.fullmatch(given) else None


def missing(visit: Visit, noun: str, error: errors.NotFoundError) -> Response:
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


def deeds(visit: Visit, noun: str) -> list[Deed]:
    """What whoever looks may do to a VM or a host."""
    return [deed for deed in DEEDS.values() if deed.noun == noun and visit.may(roles.need_of(deed.kind))]


def heard(visit: Visit, names: Iterable[str], last_heard: str | None) -> datetime | None:
    """The newest poll of any of these VMs, of which the store hears only now and then."""
    polls = [at for name in names if (at := visit.house.polled(name))]
    return max([*polls, *([rendering.read(last_heard)] if last_heard else [])], default=None)


def lately(visit: Visit, *about: Mapping[str, Any]) -> list[View]:
    """The newest entries about any of these, each with its sentence."""
    found: dict[int, View] = {}
    for filters in about:
        entries = history.page(visit.service, limit=LATELY, newest_first=True, seen=visit.seen, **filters)["items"]
        found |= {entry["seq"]: entry for entry in entries}
    newest = sorted(found.values(), key=lambda entry: -entry["seq"])[:LATELY]
    return [{**entry, "sentence": wording.sentence(entry)} for entry in newest]
