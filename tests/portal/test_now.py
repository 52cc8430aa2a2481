"""The start page: what is about to happen, why it waits, and who may do what about it."""

import re
from pathlib import Path

import pytest
from tests.portal.running import Portal, running

from forenotice.core.operations import Kind
from forenotice.service import calls, fleet, maintenance
from forenotice.service.calls import Call
from forenotice.views.fleet import PolicyChange


def restart(portal: Portal, *names: str, call: Call = calls.SYSTEM) -> list[str]:
    made = maintenance.schedule(portal.service, call, kind=Kind.RESTART, names=names)
    return [event.id for operation in made.operations for event in operation.events]


def test_an_empty_page_says_what_to_do_next(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/")
    assert "Nothing is about to happen." in page.text
    assert 'href="/act"' in page.html
    assert 'href="/act"' not in unchanged.visitor_as("viewer").get("/").html


def test_what_waits_is_drawn_and_listed_with_why(portal: Portal) -> None:
    [event] = restart(portal, "web-0")
    page = portal.visitor().get("/")
    assert "1 event is Scheduled." in page.text
    assert "Reboot of web-0" in page.text
    assert "It waits for approval by web (web-0)" in page.text
    assert "Nobody has approved" in page.text
    assert f'id="bar-{event}"' in page.html
    assert f'action="/events/{event}/approve"' in page.html
    assert f'href="/events/{event}/cancel?from=/"' in page.html
    assert "NotBefore now" in page.text


def test_who_has_approved_is_told(portal: Portal) -> None:
    [event] = restart(portal, "web-0")
    maintenance.approve(portal.service, Call(actor="operator:ann"), event)
    page = portal.visitor().get("/")
    assert "Approved by ann" in page.text
    assert "/approve" not in page.html


def test_how_much_is_live(portal: Portal) -> None:
    restart(portal, "web-0", "db")
    visitor = portal.visitor()
    assert "2 events are Scheduled." in visitor.get("/").text
    maintenance.schedule(portal.service, calls.SYSTEM, kind=Kind.HARDWARE_FAILURE, names=["host-c"])
    text = visitor.get("/").text
    assert re.search(r"(\d+) events are live: (1 is|\d+ are) Started, 2 are Scheduled\.", text), text
    assert text.count("Nobody has approved") == 2


def test_of_many_reasons_the_one_to_act_on_is_told(portal: Portal) -> None:
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
    assert "at the latest" not in why[1]
    state = visitor.get(f"/events/{pool}").html.partition('id="state"')[2].partition("</section>")[0]
    reasons = re.findall(r"<li>(.*?)</li>", state)
    assert reasons[0].startswith("The budget can never be met")
    assert len(reasons) > 1
    assert "at the latest" not in state
    assert visitor.get(f"/operations/{operation.id}").html.count("<li>The budget can never be met") == 1


def test_an_empty_fleet_says_what_to_do_first(tmp_path: Path) -> None:
    with running(tmp_path, fleet=False) as portal:
        visitor = portal.visitor()
        for path in ("/", "/act", "/fleet"):
            page = visitor.get(path).text
            assert page.count("forenotice fleet apply FILE") == 1, path
            assert "Restart a VM to see" not in page


def test_viewers_have_no_buttons(portal: Portal) -> None:
    restart(portal, "web-0")
    page = portal.visitor_as("viewer").get("/")
    assert "Reboot of web-0" in page.text
    assert "/approve" not in page.html
    assert "/cancel" not in page.html


def test_tenants_see_their_own_alone(portal: Portal) -> None:
    restart(portal, "web-0", "db")
    page = portal.visitor_as("tenant", "web").get("/")
    assert "1 event is Scheduled." in page.text
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
