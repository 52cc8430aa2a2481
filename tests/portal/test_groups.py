"""The page of a group: facts, its VMs, policy, what is live, what happened."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import msgspec
import pytest
from tests.portal.running import Portal, running
from tests.service.rig import OPERATOR

from forenotice.core.fleet import ScopeKind
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.portal.pages import fleet as fleet_pages
from forenotice.service import fleet, maintenance, overview, queries
from forenotice.service.guests import Guests
from forenotice.views.fleet import NewGroup, PolicyChange

POLICY = {
    "listening": "auto",
    "terminate_notice_minutes": "7.5",
    "max_user_operations": "",
    "max_unavailable": "25%",
    "min_available": "2",
    "windows": "",
    "reason": "",
}


def policy(portal: Portal, group: str) -> dict[str, object]:
    return dict(msgspec.to_builtins(queries.group(portal.service, group).policy))


def test_facts_and_vms(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/groups/pool")
    assert "Kind placement group VMs 5 Listens yes Last heard never DocumentIncarnation 1" in page.text
    assert "VM State Host UD FD pool_0 ✓ fine host-a 0 0 pool_1 ✓ fine host-a 0 0 pool_2 ✓ fine host-b 1 1" in page.text
    assert "Deletions are announced 5 minutes ahead" in page.text
    assert "Nothing is planned for this group." in page.text
    assert 'href="/history?scope=group:pool"' in page.html
    assert 'href="/vms/pool_0#document"' in page.html


def test_what_is_live_and_what_happened(portal: Portal) -> None:
    maintenance.schedule(portal.service, OPERATOR, kind=Kind.RESTART, names=["web-1", "db"])
    page = portal.visitor().get("/groups/web")
    assert "Reboot of web-1 Scheduled NotBefore in 1" in page.text
    assert "web-1 ◷ scheduled" in page.text
    assert "Reboot of db" not in page.text
    assert '<input type="hidden" name="from" value="/groups/web">' in page.html
    assert "Reboot of web-1 was announced" in page.text


def test_of_many_events_the_others_are_on_the_start_page(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST", 2)
    maintenance.schedule(portal.service, OPERATOR, kind=Kind.RESTART, names=["web-0", "web-1", "web-2"])
    visitor = portal.visitor()
    page = visitor.get("/groups/web")
    assert "There are more: these 2 are the most urgent. The start page has all." in page.text
    assert '<a href="/?scope=group:web">The start page</a>' in page.html
    assert visitor.get("/?scope=group:web").html.count('<li id="event-') == 3


def test_the_policy_is_changed(portal: Portal) -> None:
    visitor = portal.visitor()
    assert visitor.post("/groups/web/policy", POLICY, on="/groups/web").location == "/groups/web"
    page = visitor.get("/groups/web")
    assert "The policy of group web is changed." in page.text
    assert "are announced 7.5 minutes ahead" in page.text
    assert "has at most 25% of its VMs down at once, leaves at least 2 of its VMs" in page.text
    assert policy(portal, "web") == {
        "listening": "auto",
        "auto_approve_restart": False,
        "auto_approve_redeploy": False,
        "terminate_notice_minutes": 7.5,
        "max_user_operations": None,
        "max_unavailable": "25%",
        "min_available": 2,
        "windows": [],
    }
    visitor.post("/groups/web/policy", {**POLICY, "max_unavailable": "1", "min_available": ""}, on="/groups/web")
    assert (policy(portal, "web")["max_unavailable"], policy(portal, "web")["min_available"]) == (1, None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"terminate_notice_minutes": "30"}, "terminate notice must be from 5 to 15 minutes"),
        ({"terminate_notice_minutes": "soon"}, "“Minutes' notice of a deletion” in the form must be"),
        (
            {"max_unavailable": "lots"},
            "“VMs down at once for planned maintenance, at most”",
        ),
        ({"min_available": "-1"}, "“VMs that planned maintenance leaves, at least”"),
        ({"windows": "at night"}, "'at night'"),
    ],
)
def test_a_refused_policy_shows_the_form_again_with_the_sentence(
    unchanged: Portal, fields: dict[str, str], said: str
) -> None:
    before = policy(unchanged, "web")
    answer = unchanged.visitor().post("/groups/web/policy", {**POLICY, **fields}, on="/groups/web", status=400)
    assert said in answer.text[answer.text.index("Refused:") :][:300]
    assert re.search(r"<details[^>]* open", answer.html)
    assert answer.html.count(" autofocus>") == 1
    for value in {**POLICY, **fields}.values():
        assert value in unescape(answer.html)
    assert policy(unchanged, "web") == before


def test_many_vms_are_shown_page_by_page(portal: Portal) -> None:
    for number in range(fleet_pages.VMS - 4):
        fleet.add_vm(portal.service, OPERATOR, VmSpec(name=f"pool_x{number:03}", host="host-d", group="pool"))
    visitor = portal.visitor()
    first = visitor.get("/groups/pool")
    [onward] = re.findall(r'href="(/groups/pool\?after=[^"#]+)#vms"', first.html)
    second = visitor.get(onward)
    assert re.findall(r'<tr id="vm-([^"]+)"', second.html) == ["pool_x095"]
    assert "VMs 101 " in second.text
    assert "There are no more." in visitor.get("/groups/pool?after=zzz").text


def test_when_it_was_last_heard_goes_with_what_its_vms_say(tmp_path: Path) -> None:
    polled = {"web-0": datetime.now(UTC) - timedelta(minutes=3), "web-2": datetime.now(UTC) - timedelta(minutes=2)}
    with running(tmp_path, polled=polled.get) as portal:
        visitor = portal.visitor()
        Guests(portal.service).heard({"group:web": datetime.now(UTC) - timedelta(minutes=9)})
        page = visitor.get("/groups/web")
        assert re.search(r"Last heard 20\S+ \S+ UTC \( 2 min\b[^)]* ago \)", page.text)
        assert ' data-look-every="10">' in page.html
        assert re.search(r"<time [^>]*data-countdown>2 min\b[^<]* ago</time>", page.html)
        assert re.search(
            r"its group was last heard 20\S+ \S+ UTC \( 2 min\b[^)]* ago \)", visitor.get("/vms/web-1").text
        )
        host = visitor.get("/hosts/host-a")
        assert re.search(r"It has 3 VMs; the last poll from there was 20\S+ \S+ UTC \( 3 min\b[^)]* ago \)", host.text)
        assert "last poll" not in visitor.get("/hosts/host-b").text


def test_an_empty_group_says_what_to_do_next(portal: Portal) -> None:
    fleet.add_group(
        portal.service, OPERATOR, NewGroup(name="new", kind=ScopeKind.AVAILABILITY_SET, policy=PolicyChange())
    )
    assert "It has no VM yet. Add one: forenotice vm add NAME --host HOST --group new" in (
        portal.visitor().get("/groups/new").text
    )


def test_whoever_has_some_scopes_sees_those_alone(unchanged: Portal) -> None:
    tenant, viewer = unchanged.visitor_as("tenant", "web"), unchanged.visitor_as("viewer")
    page = tenant.get("/groups/web")
    assert "web-2 ✓ fine 2 2" in page.text
    assert not re.search(r"pool|\bdb\b|batch", page.html)
    for visitor in (tenant, viewer):
        assert "/groups/web/policy" not in visitor.get("/groups/web").html
        visitor.post("/groups/web/policy", POLICY, status=403)
    for place in ("/groups/pool", "/groups/nobody", "/groups/a%20b", "/groups/a%20b/policy"):
        assert "There is no such group" in tenant.get(place, 404).text
    assert "There is no group 'pool'." in tenant.get("/groups/pool", 404).text
    unchanged.visitor().post("/groups/nobody/policy", POLICY, on="/groups/web", status=404)
    assert viewer.get("/groups/web/policy", 303).location == "/groups/web#policy"
