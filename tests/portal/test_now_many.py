"""The start page with more than fits: spans, pages of the list, and lanes that are folded into one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from tests.portal import crowd
from tests.portal.running import Answer, Portal, Visitor, running
from tests.service.rig import ManualClock

from forenotice.core.operations import Kind
from forenotice.portal.timeline import MOST_LANES
from forenotice.service import calls, maintenance
from forenotice.service.overview import PAGE

GROUPS = 30
ENDED = "g-00"
"""Here alone something has ended."""


@dataclass(frozen=True)
class Many:
    portal: Portal
    visitor: Visitor
    live: frozenset[str]
    ended: str


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Many]:
    """One event was cancelled two hours ago; of each other group one is live."""
    clock = ManualClock()
    with running(tmp_path_factory.mktemp("many"), fleet=False, clock=clock) as portal:
        [first, *others] = crowd.settle(portal.service, GROUPS)
        [operation] = maintenance.schedule(portal.service, calls.SYSTEM, kind=Kind.REDEPLOY, names=[first]).operations
        maintenance.cancel_operation(portal.service, calls.SYSTEM, operation.id)
        clock.advance(hours=2)
        live = crowd.announce(portal.service, others)
        yield Many(portal, portal.visitor(), frozenset(live), operation.events[0].id)


def listed(page: Answer) -> list[str]:
    return re.findall(r'<li id="event-([^"]+)">', page.html)


def lanes(page: Answer) -> list[str]:
    return re.findall(r'<li class="lane" id="picture-([^"]+)">', page.html)


@pytest.mark.parametrize(("span", "hours"), [("1h", 1), ("6h", 6), ("24h", 24), ("7d", 7 * 24)])
def test_the_scale_is_of_the_span(many: Many, span: str, hours: int) -> None:
    html = many.visitor.get(f"/?span={span}").html
    now, length = many.portal.service.clock.now(), timedelta(hours=hours)
    marks = [datetime.fromisoformat(mark) for mark in re.findall(r'data-mark="([^"]+)"', html)]
    assert now - length <= min(marks) < now - length / 2
    assert now + length / 2 < max(marks) <= now + length


@pytest.mark.parametrize(("span", "shown"), [("1h", False), ("6h", True), ("24h", True), ("7d", True)])
def test_what_ended_two_hours_ago_is_drawn_where_the_span_reaches_it(many: Many, span: str, shown: bool) -> None:
    page = many.visitor.get(f"/?span={span}&scope=group:{ENDED}")
    assert (f'id="bar-{many.ended}"' in page.html) is shown
    assert (lanes(page) == [ENDED]) is shown
    words = f"Nothing happened in the last {span[:-1]} {span[-1]}, and nothing is planned for the next."
    assert (words in page.text) is not shown


def test_the_list_has_pages_that_together_are_everything(many: Many) -> None:
    first, second = many.visitor.get("/"), many.visitor.get("/?page=2")
    assert f"{len(many.live)} events are" in first.text
    assert len(listed(first)) == PAGE
    assert len(listed(second)) == len(many.live) - PAGE
    assert {*listed(first), *listed(second)} == many.live
    assert "Page 1 of 2" in first.text
    assert "Page 2 of 2" in second.text
    assert 'href="/?page=2">Next</a>' in first.html
    assert 'href="/?page=1">Previous</a>' in second.html
    assert listed(many.visitor.get("/?page=99")) == listed(second)


def test_another_span_begins_with_the_first_page_and_keeps_its_lanes(many: Many) -> None:
    html = many.visitor.get("/?page=2&many=yes").html
    assert 'href="/?span=6h&amp;many=yes"' in html
    assert "page=2&amp;span" not in html


def test_lanes_beyond_the_first_are_folded_into_one_until_they_are_asked_for(many: Many) -> None:
    few, all_of_them = many.visitor.get("/?span=1h"), many.visitor.get("/?span=1h&many=yes")
    assert len(lanes(few)) == MOST_LANES
    hidden = len(many.live) - MOST_LANES
    assert f"and {hidden} more groups" in few.text
    assert 'href="/?span=1h&amp;many=yes">show' in few.html
    assert len(lanes(all_of_them)) == len(many.live)
    assert "more groups" not in all_of_them.text


def test_one_group_alone_has_one_lane_and_one_event(many: Many) -> None:
    page = many.visitor.get("/?scope=group:g-17")
    assert lanes(page) == ["g-17"]
    assert len(listed(page)) == 1
    assert "1 event is" in page.text
