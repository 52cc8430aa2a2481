"""/history: what happened, filtered, page by page, and as a file."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from forenotice.control import export as exports
from forenotice.control.parameters import ExportQuery, HistoryQuery
from forenotice.core import errors
from forenotice.core.fleet import NAME
from forenotice.core.journal import OF_TOKENS
from forenotice.core.roles import Need
from forenotice.portal.page import PageRequest, Pages
from forenotice.service import history
from forenotice.store.journal import JournalFilter
from forenotice.views import wording

SHOWN = 50
ABOUT = ("vm", "scope", "host", "event", "operation", "rollout", "by")
"""What can be filtered for by a name or an id, beside the kind and the time."""
TIMES = ("since", "until")
NAMES = ("action", *ABOUT, *TIMES)
BARE: Mapping[str, tuple[str, ...]] = {"scope": ("group", "vm"), "by": ("", "operator", "tenant", "vm")}
"""What a name without a kind is taken for, in this order."""
LOCAL = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d+)?)?")
"""As a browser's field for a time gives it: without a zone."""
OF_SCOPES = frozenset({"event", "vm", "group", "scope", "command"})
"""Kinds of entries that belong to somebody."""

pages = Pages()


@pages.get("/history", needs=Need.SEE)
def show(visit: PageRequest) -> Response:
    given = _given(visit)
    context: dict[str, Any] = {
        "given": {name: visit.query.get(name, "") for name in NAMES},
        "kinds": _kinds(visit),
        "nouns": wording.NOUNS,
        "filtered": bool(given),
        "first": "after" not in visit.query,
        "newest": f"/history?{urlencode(given)}" if given else "/history",
        "exports": {
            form.value: f"/history/export?{urlencode({'format': form.value, **given})}" for form in exports.Format
        },
    }
    try:
        asked = visit.asked(HistoryQuery, {**_in_utc(_meant(visit, given)), **_kept(visit, "after")})
        wanted = asked.filter(visit.access)
        found = history.page(visit.service, wanted, after=asked.after, limit=SHOWN, newest_first=True)
    except errors.RefusedError as error:
        return visit.page("history.html", status=400, error=error.message, entries=[], next_url="", **context)
    next_url = f"/history?{urlencode({**given, 'after': found.next})}" if found.next else ""
    return visit.page("history.html", error="", entries=found.items, next_url=next_url, **context)


@pages.get("/history/export", needs=Need.SEE)
def export(visit: PageRequest) -> Response:
    asked = visit.asked(ExportQuery, {**_in_utc(_meant(visit, _given(visit))), **_kept(visit, "format")})
    found = history.everything(visit.service, asked.filter(visit.access))
    return exports.streamed(asked.format, found, visit.is_allowed)


def _given(visit: PageRequest) -> dict[str, str]:
    """What is filled in; an empty field asks for nothing."""
    return {name: visit.query[name].strip() for name in NAMES if visit.query.get(name, "").strip()}


def _meant(visit: PageRequest, given: Mapping[str, str]) -> dict[str, str]:
    """Scopes and actors by their bare names, too: the first kind of those of which there is something."""
    return {name: _qualified(visit, name, value) for name, value in given.items()}


def _qualified(visit: PageRequest, name: str, value: str) -> str:
    if name not in BARE or not NAME.fullmatch(value):
        return value
    for noun in BARE[name]:
        wanted = f"{noun}:{value}" if noun else value
        filters: dict[str, Any] = {name: wanted}
        if history.page(visit.service, JournalFilter(seen=visit.seen, **filters), limit=1).items:
            return wanted
    return value


def _kept(visit: PageRequest, name: str) -> dict[str, str]:
    return {name: visit.query[name]} if visit.query.get(name) else {}


def _in_utc(given: Mapping[str, str]) -> dict[str, str]:
    """The page says that its times are UTC; an address may have them with a zone, as the API takes them."""
    return {name: f"{value}Z" if name in TIMES and LOCAL.fullmatch(value) else value for name, value in given.items()}


def _kinds(visit: PageRequest) -> dict[str, dict[str, str]]:
    """What can be in the history of whoever looks."""
    found = wording.kinds()
    if visit.seen is not None:
        return {noun: found[noun] for noun in found if noun in OF_SCOPES}
    if not visit.may(Need.ADMINISTER):
        found.pop(OF_TOKENS.rstrip("."))
    return found
