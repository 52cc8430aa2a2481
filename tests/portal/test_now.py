"""The start page: what is about to happen, why it waits, who may do what; and with more than fits."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.portal import crowd
from tests.portal.running import Answer, Portal, Visitor, running
from tests.service.rig import ManualClock

from forenotice.core.operations import Kind
from forenotice.portal.timeline import MOST_LANES
from forenotice.service import calls, fleet, maintenance
from forenotice.service.calls import Call
from forenotice.service.overview import PAGE
from forenotice.views.fleet import PolicyChange

GROUPS = 30
ENDED = "g-00"
"""Here alone something has ended."""


def restart(portal: Portal, *names: str) -> list[str]:
    made = maintenance.schedule(portal.service, calls.SYSTEM, kind=Kind.RESTART, names=names)
    return [event.id for operation in made.operations for event in operation.events]


def test_an_empty_page_says_what_to_do_next(unchanged: Portal) -> None:
    unchanged.visitor().get("/").shows("Nothing is about to happen.", 'href="/act"')
    unchanged.visitor_as("viewer").get("/").lacks('href="/act"')


def test_an_empty_fleet_says_what_to_do_first(tmp_path: Path) -> None:
    with running(tmp_path, fleet=False) as portal:
        visitor = portal.visitor()
        for path in ("/", "/act", "/fleet"):
            page = visitor.get(path)
            assert page.text.count("forenotice fleet apply FILE") == 1, path
            page.lacks("Restart a VM to see")


def test_what_waits_is_drawn_and_listed_with_why(portal: Portal) -> None:
    web, db = restart(portal, "web-0", "db")
    visitor = portal.visitor()
    visitor.get("/").shows(
        "2 events are Scheduled.",
        "Reboot of web-0",
        "It waits for approval by web (web-0)",
        "Nobody has approved",
        "NotBefore now",
        f'id="bar-{web}"',
        f'action="/events/{web}/approve"',
        f'href="/events/{web}/cancel?from=/"',
        '<a href="/groups/web">web</a>',
        '<a href="/vms/db">db (VM)</a>',
    )
    alone = visitor.get("/?scope=vm:db")
    alone.shows("Reboot of db")
    alone.lacks("Reboot of web-0")
    # Viewers have no buttons, and tenants see their own alone.
    viewer = portal.visitor_as("viewer").get("/")
    viewer.shows("Reboot of web-0")
    viewer.lacks("/approve", "/cancel")
    tenant = portal.visitor_as("tenant", "web").get("/")
    tenant.shows("1 event is Scheduled.")
    assert "db" not in tenant.text
    assert tenant.html.count("/approve") == 1
    tenant.lacks("/cancel")
    for event in (web, db):
        maintenance.approve(portal.service, Call(actor="operator:ann"), event)
    page = visitor.get("/")
    page.shows("Approved by ann")
    page.lacks("/approve")


def test_how_much_is_live(portal: Portal) -> None:
    restart(portal, "web-0", "db")
    maintenance.schedule(portal.service, calls.SYSTEM, kind=Kind.HARDWARE_FAILURE, names=["host-c"])
    text = portal.visitor().get("/").text
    assert re.search(r"(\d+) events are live: (1 is|\d+ are) Started, 2 are Scheduled\.", text), text
    assert text.count("Nobody has approved") == 2


def test_of_many_reasons_the_one_to_act_on_comes_first(portal: Portal) -> None:
    [operation] = maintenance.schedule(
        portal.service, calls.SYSTEM, kind=Kind.LIVE_MIGRATION, names=["host-b"]
    ).operations
    [pool] = [each.id for each in operation.events if each.scope == "group:pool"]
    fleet.set_policy(portal.service, calls.SYSTEM, "group:pool", PolicyChange(max_unavailable="1"))
    visitor = portal.visitor()
    card = visitor.get("/").html.partition(f'id="event-{pool}"')[2].partition("</li>")[0]
    why = re.search(r'<p class="why">(.*?)</p>', card)
    assert why
    assert why[1].startswith("The budget can never be met")
    assert re.search(rf'<a href="/events/{pool}">and \d more reasons?<', why[1])
    state = visitor.get(f"/events/{pool}").html.partition('id="state"')[2].partition("</section>")[0]
    reasons = re.findall(r"<li>(.*?)</li>", state)
    assert reasons[0].startswith("The budget can never be met")
    assert len(reasons) > 1
    assert "at the latest" not in why[1] + state
    assert visitor.get(f"/operations/{operation.id}").html.count("<li>The budget can never be met") == 1


def test_what_is_asked_wrongly_is_refused_or_put_right(unchanged: Portal) -> None:
    visitor = unchanged.visitor()
    visitor.get("/?span=2h", 400).shows("choose 1h, 6h, 24h, 7d")
    for page in ("-1", "0", "x", "9" * 9):
        visitor.get(f"/?page={page}")


def test_a_lane_folds_and_unfolds(portal: Portal) -> None:
    restart(portal, "pool_0", "pool_1", "pool_2", "pool_3", "pool_4")
    maintenance.schedule(portal.service, calls.SYSTEM, kind=Kind.HOST_UPDATE, names=["host-a", "host-b"])
    visitor = portal.visitor()
    visitor.get("/").shows('href="/?unfold=pool">unfold')
    unfolded = visitor.get("/?span=1h&unfold=pool")
    unfolded.shows('href="/?span=1h">fold')
    assert unfolded.html.count('class="bar"') == 7 + 3


# Many groups


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
def test_spans(many: Many, span: str, hours: int) -> None:
    html = many.visitor.get(f"/?span={span}").html
    assert re.findall(r'href="([^"]*)" aria-current="true"', html) == [f"/?span={span}"]
    now, length = many.portal.service.clock.now(), timedelta(hours=hours)
    marks = [datetime.fromisoformat(mark) for mark in re.findall(r'data-mark="([^"]+)"', html)]
    assert now - length <= min(marks) < now - length / 2
    assert now + length / 2 < max(marks) <= now + length
    # What ended two hours ago is drawn where the span reaches it.
    page, shown = many.visitor.get(f"/?span={span}&scope=group:{ENDED}"), hours > 2
    assert (f'id="bar-{many.ended}"' in page.html) is (lanes(page) == [ENDED]) is shown
    words = f"Nothing happened in the last {span[:-1]} {span[-1]}, and nothing is planned for the next."
    assert (words in page.text) is not shown


def test_the_list_has_pages_that_together_are_everything(many: Many) -> None:
    first, second = many.visitor.get("/"), many.visitor.get("/?page=2")
    first.shows(f"{len(many.live)} events are", "Page 1 of 2", 'href="/?page=2">Next</a>')
    second.shows("Page 2 of 2", 'href="/?page=1">Previous</a>')
    assert (len(listed(first)), len(listed(second))) == (PAGE, len(many.live) - PAGE)
    assert {*listed(first), *listed(second)} == many.live
    assert listed(many.visitor.get("/?page=99")) == listed(second)
    # Another span begins with the first page and keeps its lanes.
    page = many.visitor.get("/?page=2&many=yes")
    page.shows('href="/?span=6h&amp;many=yes"')
    page.lacks("page=2&amp;span")
    alone = many.visitor.get("/?scope=group:g-17")
    assert (lanes(alone), len(listed(alone))) == (["g-17"], 1)
    alone.shows("1 event is")


def test_lanes_beyond_the_first_are_folded_into_one_until_they_are_asked_for(many: Many) -> None:
    few, all_of_them = many.visitor.get("/?span=1h"), many.visitor.get("/?span=1h&many=yes")
    assert (len(lanes(few)), len(lanes(all_of_them))) == (MOST_LANES, len(many.live))
    few.shows(f"and {len(many.live) - MOST_LANES} more groups", 'href="/?span=1h&amp;many=yes">show')
    all_of_them.lacks("more groups")
