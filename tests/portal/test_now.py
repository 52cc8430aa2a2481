"""The start page: what is about to happen, why it waits, and who may do what about it."""

import re

import pytest
from tests.portal.running import Portal

from notbefore.core.operations import Kind
from notbefore.service import calls, maintenance
from notbefore.service.calls import Call


def restart(portal: Portal, *names: str, call: Call = calls.SYSTEM) -> list[str]:
    made = maintenance.schedule(portal.service, call, kind=Kind.RESTART, names=names)
    return [event["id"] for operation in made["operations"] for event in operation["events"]]


def test_an_empty_page_says_what_to_do_next(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/")
    assert "Nothing is about to happen." in page.text
    assert 'href="/act"' in page.html
    assert 'href="/act"' not in unchanged.visitor_as("viewer").get("/").html


def test_what_waits_is_drawn_and_listed_with_why(portal: Portal) -> None:
    [event] = restart(portal, "web-0")
    page = portal.visitor().get("/")
    assert "1 event is live: 1 is Scheduled." in page.text
    assert "Reboot of web-0" in page.text
    assert "It waits for approval by web (web-0)" in page.text
    assert "Nobody has approved" in page.text
    assert f'id="bar-{event}"' in page.html
    assert f'action="/events/{event}/approve"' in page.html
    assert f'href="/events/{event}/cancel"' in page.html


def test_who_has_approved_is_told(portal: Portal) -> None:
    [event] = restart(portal, "web-0")
    maintenance.approve(portal.service, Call(actor="operator:ann"), event)
    page = portal.visitor().get("/")
    assert "Approved by ann operator" in page.text
    assert "/approve" not in page.html


def test_viewers_have_no_buttons(portal: Portal) -> None:
    restart(portal, "web-0")
    page = portal.visitor_as("viewer").get("/")
    assert "Reboot of web-0" in page.text
    assert "/approve" not in page.html
    assert "/cancel" not in page.html


def test_tenants_see_their_own_alone(portal: Portal) -> None:
    restart(portal, "web-0", "db")
    page = portal.visitor_as("tenant", "web").get("/")
    assert "1 event is live" in page.text
    assert "db" not in page.text
    assert page.html.count("/approve") == 1
    assert "/cancel" not in page.html


def test_a_lane_leads_to_its_group_or_vm(portal: Portal) -> None:
    restart(portal, "web-0", "db")
    html = portal.visitor().get("/").html
    assert '<a href="/groups/web">web</a>' in html
    assert '<a href="/vms/db">db (VM)</a>' in html


@pytest.mark.parametrize("span", ["1h", "6h", "24h", "7d"])
def test_spans(unchanged: Portal, span: str) -> None:
    html = unchanged.visitor().get(f"/?span={span}").html
    [current] = re.findall(r'href="([^"]*)" aria-current="true"', html)
    assert current == f"/?span={span}"


def test_what_is_asked_wrongly_is_refused_or_put_right(unchanged: Portal) -> None:
    visitor = unchanged.visitor()
    assert "choose 1h, 6h, 24h, 7d" in visitor.get("/?span=2h", 400).text
    for page in ("-1", "0", "x", "9" * 9):
        visitor.get(f"/?page={page}")


def test_one_scope_alone(portal: Portal) -> None:
    restart(portal, "web-0", "db")
    text = portal.visitor().get("/?scope=vm:db").text
    assert "Reboot of db" in text
    assert "Reboot of web-0" not in text


def test_a_lane_folds_and_unfolds(portal: Portal) -> None:
    restart(portal, "pool_0", "pool_1", "pool_2", "pool_3", "pool_4")
    maintenance.schedule(portal.service, calls.SYSTEM, kind=Kind.HOST_UPDATE, names=["host-a", "host-b"])
    visitor = portal.visitor()
    assert 'href="/?unfold=pool">unfold' in visitor.get("/").html
    unfolded = visitor.get("/?span=1h&unfold=pool").html
    assert unfolded.count('class="bar"') == 7 + 3
    assert 'href="/?span=1h">fold' in unfolded
