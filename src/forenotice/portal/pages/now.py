"""The start page: what is about to happen, and why it waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from starlette.responses import Response

from forenotice.core import errors
from forenotice.core.operations import Status
from forenotice.core.roles import Need
from forenotice.portal.page import PageRequest, Pages
from forenotice.portal.renderer import utc
from forenotice.portal.timeline import MOST_LANES, Bar, draw
from forenotice.service import overview, queries
from forenotice.views import maintenance, wording
from forenotice.views.base import Matches

SPANS: Final[Mapping[str, tuple[str, timedelta]]] = {
    "1h": ("1 h", timedelta(hours=1)),
    "6h": ("6 h", timedelta(hours=6)),
    "24h": ("24 h", timedelta(hours=24)),
    "7d": ("7 d", timedelta(days=7)),
}
USUAL = "24h"
MOST_BARS = 2000
"""A quarter is kept for events that have ended."""
MOST_UNFOLDED = 10
MOST_DRIFT = 10
MANY_LANES = 60
ALONE = " (VM)"

pages = Pages()


@pages.get("/", needs=Need.SEE)
def show(visit: PageRequest) -> Response:
    chosen = _Chosen(visit)
    _, length = SPANS[chosen.span]
    since = visit.now - length
    found = overview.now(visit.service, visit.access, since=since, most=MOST_BARS, scope=chosen.scope, page=chosen.page)
    now = found.now
    drawn = draw(
        [_bar(each, now) for each in found.bars],
        begin=now - length,
        end=now + length,
        now=now,
        unfolded=chosen.unfolded,
        most_lanes=MANY_LANES if chosen.many else MOST_LANES,
        href=_lane_page,
    )
    spans = [(key, said, chosen.but(span=key)) for key, (said, _) in SPANS.items()]
    empty = not found.bars and not queries.vms(visit.service, limit=1, seen=visit.seen).items
    planned = Matches() if chosen.scope else overview.planned(visit.service, visit.access)
    oversees = visit.may(Need.OVERSEE) and not chosen.scope
    return visit.page(
        "now.html",
        planned=planned,
        drift=queries.drift(visit.service, limit=MOST_DRIFT) if oversees else Matches(),
        silent=dict(visit.service.silent) if oversees else {},
        found=found,
        drawn=drawn,
        chosen=chosen,
        spans=spans,
        spans_words=SPANS[chosen.span][0],
        empty=empty,
    )


class _Chosen:
    """What the address asks for, and addresses that ask for almost the same."""

    def __init__(self, visit: PageRequest) -> None:
        self._given = {name: visit.query.get(name, "") for name in ("span", "scope", "page", "many")}
        self.span = self._given["span"] or USUAL
        if self.span not in SPANS:
            raise errors.RefusedError(f"there is no such span: choose {', '.join(SPANS)}")
        self.scope = self._given["scope"] or None
        self.page = int(page) if (page := self._given["page"]).isascii() and page.isdigit() and len(page) < 7 else 1
        self.many = self._given["many"] == "yes"
        self.unfolded = visit.query.getlist("unfold")[:MOST_UNFOLDED]

    def but(self, **changed: str) -> str:
        """An address with something else; a choice other than a page begins with the first one."""
        return self._address({**self._given, "page": "", **changed}, self.unfolded)

    def unfold(self, lane: str) -> str:
        return self._address(self._given, [*self.unfolded, lane])

    def fold(self, lane: str) -> str:
        return self._address(self._given, [name for name in self.unfolded if name != lane])

    def _address(self, given: Mapping[str, str], unfolded: Sequence[str]) -> str:
        asked = [(name, value) for name, value in given.items() if value]
        asked += [("unfold", name) for name in unfolded]
        return f"/?{urlencode(asked)}" if asked else "/"


def _lane(scope: str) -> str:
    """A group by its name; a VM that stands alone says so."""
    noun, _, name = scope.partition(":")
    return name if noun == "group" else f"{name}{ALONE}"


def _lane_page(lane: str) -> str:
    return f"/vms/{lane.removesuffix(ALONE)}" if lane.endswith(ALONE) else f"/groups/{lane}"


def _bar(event: maintenance.Bar, now: datetime) -> Bar:
    status = event.status
    waits = status == Status.SCHEDULED
    start = max(event.not_before, now) if waits else event.started_at
    return Bar(
        id=event.id,
        lane=_lane(event.scope),
        type=event.type,
        label=_Label(event),
        begin=event.created_at,
        not_before=event.not_before,
        start=start,
        # Of some nobody knows how long they take: they are drawn as far as they have come.
        end=event.ended_at or event.expected_end or max(start or now, now),
        expected=waits,
        status=status,
        href=f"/events/{event.id}",
    )


@dataclass(frozen=True, slots=True)
class _Label:
    """Made when it is written: of a large fleet most bars are folded into others."""

    event: maintenance.Bar

    def __str__(self) -> str:
        event = self.event
        names = wording.several(event.resources)
        when = f"NotBefore {utc(event.not_before)}" if event.status == Status.SCHEDULED else ""
        since = f"since {utc(event.started_at)}" if event.status == Status.STARTED and event.started_at else ""
        return f"{event.type} of {names}: {', '.join(part for part in (event.status, when or since) if part)}"
