"""The page of a VM: facts, policy, what is live, what happened, the document, and when it polled."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import msgspec
import pytest
from tests.portal.running import Portal, running
from tests.service.rig import OPERATOR

from forenotice.core.fleet import Listening
from forenotice.core.operations import Kind
from forenotice.core.timing import Timing
from forenotice.service import fleet, history, maintenance, queries
from forenotice.service.guests import Guests
from forenotice.views.fleet import PolicyChange

POLICY = {
    "listening": "never",
    "auto_approve_restart": "yes",
    "max_user_operations": "3",
    "windows": "",
    "reason": "asleep",
}


def policy(portal: Portal, vm: str) -> dict[str, object]:
    return dict(msgspec.to_builtins(queries.vm(portal.service, vm).policy))


def restart(portal: Portal, name: str) -> str:
    made = maintenance.schedule(portal.service, OPERATOR, kind=Kind.RESTART, names=[name]).operations
    return str(made[0].events[0].id)


def test_facts(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/vms/pool_2")
    assert "VM pool_2" in page.text
    assert '<a href="/fleet" aria-current="page">' in page.html
    assert "✓ fine : nothing is planned." in page.text
    assert "Host host-b Group pool Update domain 1 Fault domain 1" in page.text
    assert "Addresses 127.1.0.22" in page.text
    assert 'href="/hosts/host-b"' in page.html
    assert "It goes by the policy of its group: see that of pool" in page.text
    assert "Change the policy" not in page.text
    assert "Spot" not in page.text
    assert "Spot yes: it can be evicted" in unchanged.visitor().get("/vms/batch").text


def test_what_is_live_and_what_happened(portal: Portal) -> None:
    event = restart(portal, "web-0")
    restart(portal, "web-1")
    visitor = portal.visitor()
    page = visitor.get("/vms/web-0")
    assert "◷ scheduled : maintenance is announced." in page.text
    assert "Reboot of web-0 Scheduled NotBefore in 1" in page.text
    assert "It waits for approval by web (web-0)" in page.text
    assert "Reboot of web-1" not in page.text[: page.text.index("What the guest sees")]
    assert f'action="/events/{event}/approve"' in page.html
    assert '<input type="hidden" name="from" value="/vms/web-0">' in page.html
    assert f'href="/events/{event}/cancel' in page.html
    assert "Reboot of web-0 was announced, not before" in page.text
    assert 'href="/history?vm=web-0"' in page.html
    approved = visitor.post(f"/events/{event}/approve", {"from": "/vms/web-0"}, on="/vms/web-0")
    assert approved.location == "/vms/web-0"
    assert "Approved by admin" in visitor.get("/vms/web-0").text


def test_the_document_in_a_chosen_version(portal: Portal) -> None:
    restart(portal, "web-0")
    visitor = portal.visitor()
    for version in queries.VERSIONS:
        told = queries.document(portal.service, "web-0", version)
        sent = visitor.get(f"/vms/web-0/document?api-version={version}")
        assert (sent.body, sent.headers["content-type"]) == (told, "application/json")
        page = visitor.get(f"/vms/web-0?api-version={version}")
        [shown] = re.findall(r"(?s)<pre[^>]*>(.*?)</pre>", page.html)
        assert re.sub(r"\n *", "", unescape(shown)).replace('": ', '":') == told.decode()
        assert f"<option selected>{version}</option>" in page.html


def test_an_unknown_version_is_refused(unchanged: Portal) -> None:
    visitor = unchanged.visitor()
    assert "choose one of 2020-07-01, 2019-08-01" in visitor.get("/vms/db?api-version=2038-01-19", 400).text
    visitor.get("/vms/db/document?api-version=2038-01-19", 400)


def test_when_it_last_polled(tmp_path: Path) -> None:
    polled = {"web-0": datetime.now(UTC) - timedelta(minutes=3)}
    with running(tmp_path, polled=polled.get) as portal:
        visitor = portal.visitor()
        assert "nobody of its group has polled" in visitor.get("/vms/pool_1").text
        assert "Last polled never" in visitor.get("/vms/db").text
        heard = datetime.now(UTC) - timedelta(minutes=1)
        Guests(portal.service).heard({"group:web": heard, "vm:db": heard})
        assert re.search(r"Last polled 20\S+ \S+ UTC \( 3 min\b[^)]* ago \)", visitor.get("/vms/web-0").text)
        other = visitor.get("/vms/web-1").text
        assert re.search(r"Last polled its group was last heard 20\S+ \S+ UTC \( 1 min [^)]*\) Listens", other)
        assert "known as long as one process of the service answers it" in other
        assert re.search(
            r"Last polled it was last heard 20\S+ \S+ UTC \( 1 min [^)]*\) Listens", visitor.get("/vms/db").text
        )


def test_a_service_that_runs_faster_says_so_on_every_page_and_writes_spans_in_full(tmp_path: Path) -> None:
    with running(tmp_path, timing=Timing(speed=60)) as portal:
        visitor = portal.visitor()
        for path in ("/", "/fleet", "/vms/db"):
            page = visitor.get(path).text
            assert "60 times as fast as it says" in page[page.rindex("forenotice ") :]
        assert "until it has been silent for 1 d" in visitor.get("/vms/db").text
        fleet.set_policy(portal.service, OPERATOR, "vm:db", PolicyChange(listening=Listening.NEVER))
        assert "in the last 1 d, or the policy says so" in visitor.get("/act?kind=restart&name=db").text


def test_the_service_of_usual_speed_says_nothing_of_it(unchanged: Portal) -> None:
    assert "times as fast" not in unchanged.visitor().get("/vms/db").text


def test_the_newest_of_its_history_is_shown_last(portal: Portal) -> None:
    for listening in ("never", "always") * 4:
        fleet.set_policy(portal.service, OPERATOR, "vm:db", PolicyChange(listening=Listening(listening)))
    page = portal.visitor().get("/vms/db").html
    assert page.count('<li id="entry-') == 6
    assert page.index('id="facts"') < page.index('id="policy"') < page.index('id="lately"')


def test_the_policy_is_changed(portal: Portal) -> None:
    visitor = portal.visitor()
    sent = {**POLICY, "windows": "mon-fri 22:00-04:00 Europe/Berlin\n\n sat 00:00-06:00 UTC \n"}
    assert visitor.post("/vms/db/policy", sent, on="/vms/db").location == "/vms/db"
    page = visitor.get("/vms/db")
    assert "The policy of VM db is changed." in page.text
    assert "Listens never: nobody there is waited for" in page.text
    assert "Restarts of users are approved by themselves Redeploys of users are approved by its guests" in page.text
    assert "Operations of users at most 3 at once" in page.text
    assert policy(portal, "db") == {
        "listening": "never",
        "auto_approve_restart": True,
        "auto_approve_redeploy": False,
        "terminate_notice_minutes": None,
        "max_user_operations": 3,
        "max_unavailable": None,
        "min_available": None,
        "windows": ["mon-fri 22:00-04:00 Europe/Berlin", "sat 00:00-06:00 UTC"],
    }
    [entry] = history.page(portal.service, scope="vm:db", by="operator:admin").items
    assert (entry.action, entry.reason) == ("scope.policy_changed", "asleep")
    assert "asleep" in page.text
    # What stood in the form is what it begins with.
    assert re.search(r'id="listening-never"[^>]* checked', page.html)
    assert re.search(r'id="auto_approve_restart"[^>]* checked', page.html)
    assert 'name="max_user_operations" inputmode="numeric" value="3"' in page.html
    assert ">mon-fri 22:00-04:00 Europe/Berlin\nsat 00:00-06:00 UTC</textarea>" in page.html
    visitor.post("/vms/db/policy", {"listening": "auto"}, on="/vms/db")
    assert policy(portal, "db")["windows"] == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"listening": "sometimes"}, "listening"),
        ({"max_user_operations": "many"}, "“Users' operations at once, at most”"),
        ({"max_user_operations": "0"}, "“Users' operations at once, at most”"),
        ({"windows": "whenever"}, "'whenever'"),
        ({"reason": "a\u202eb"}, "a reason is at most"),
    ],
)
def test_a_refused_policy_shows_the_form_again_with_the_sentence(
    unchanged: Portal, fields: dict[str, str], said: str
) -> None:
    before = policy(unchanged, "db")
    answer = unchanged.visitor().post("/vms/db/policy", {**POLICY, **fields}, on="/vms/db", status=400)
    assert "VM db" in answer.text
    refused = answer.text[answer.text.index("Refused:") :]
    assert said in refused[:300]
    assert re.search(r"<details[^>]* open", answer.html)
    assert answer.html.count(" autofocus>") == 1
    for name, value in fields.items():
        if name != "listening":
            assert value in unescape(answer.html)
    assert f'value="{fields.get("max_user_operations", "3")}"' in answer.html
    assert policy(unchanged, "db") == before


def test_a_vm_of_a_group_goes_by_the_groups_policy(unchanged: Portal) -> None:
    visitor = unchanged.visitor()
    answer = visitor.post("/vms/web-0/policy", POLICY, on="/vms/db", status=409)
    assert "VM web-0 goes by the policy of its group: change that of group web" in answer.text
    assert visitor.get("/vms/web-0/policy", 303).location == "/vms/web-0#policy"


@pytest.mark.parametrize(
    ("role", "scopes", "actions", "manages"),
    [
        ("admin", None, {"restart", "redeploy", "eviction", "deletion"}, True),
        ("platform", None, {"restart", "redeploy", "eviction", "deletion"}, True),
        ("viewer", None, set(), False),
        ("viewer", "vm:batch", set(), False),
        ("tenant", "vm:batch", {"restart", "redeploy"}, False),
    ],
)
def test_what_the_role_allows(portal: Portal, role: str, scopes: str | None, actions: set[str], manages: bool) -> None:
    event = restart(portal, "batch")
    visitor = portal.visitor() if role == "admin" else portal.visitor_as(role, scopes)
    page = visitor.get("/vms/batch")
    assert set(re.findall(r'href="/act\?kind=([a-z-]+)&amp;name=batch"', page.html)) == actions
    assert ("/vms/batch/policy" in page.html) is manages
    assert (f"/events/{event}/approve" in page.html) is bool(actions)
    assert (f"/events/{event}/cancel" in page.html) is manages
    assert ('href="/hosts/host-c"' in page.html) is (scopes is None)
    if not manages:
        assert "this needs the role" in visitor.post("/vms/batch/policy", POLICY, status=403).text.lower()
    visitor.get("/hosts/host-c", 200 if scopes is None else 403)


def test_only_spot_vms_can_be_evicted(unchanged: Portal) -> None:
    assert "kind=eviction" not in unchanged.visitor().get("/vms/db").html


def test_what_is_not_ones_own_is_not_there(unchanged: Portal) -> None:
    tenant = unchanged.visitor_as("tenant", "web")
    for place in ("/vms/db", "/vms/db/document", "/vms/nobody", "/vms/a%20b", "/vms/a%20b/policy"):
        page = tenant.get(place, 404)
        assert "There is no such VM" in page.text
        assert "Find a VM or group" in page.text
        assert "127.1.0.30" not in page.html


def test_one_that_is_gone_leads_to_its_history(portal: Portal) -> None:
    fleet.remove_vm(portal.service, OPERATOR, "batch")
    visitor = portal.visitor()
    page = visitor.get("/vms/batch", 404)
    assert "There is no VM 'batch'." in page.text
    assert 'href="/history?vm=batch"' in page.html
    visitor.post("/vms/batch/policy", POLICY, status=404)
    assert visitor.get("/history?vm=batch").status == 200
