"""The grid of the fleet, and the pages of a host, a group and a VM: facts, policies, what is live, what happened."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import msgspec
import pytest
from tests.portal.running import Portal, running
from tests.service.inventories import Hosts, domain
from tests.service.rig import OPERATOR

from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.core.timing import Timing
from forenotice.portal.pages import fleet as page_module
from forenotice.service import fleet, fleet_map, history, maintenance, overview, queries
from forenotice.service.guests import Guests
from forenotice.service.inventory import InventoryLoop
from forenotice.service.tick import tick
from forenotice.store.journal import JournalFilter
from forenotice.views.fleet import FactsChange, HostChange, NewGroup, NewHost, PolicyChange, VmChange

HOST_ACTIONS = {"host-update", "host-reboot", "live-migration", "degraded-hardware", "hardware-failure"}
POLICY = {"listening": "never", "auto_approve_restart": "yes", "max_user_operations": "3", "reason": "asleep"}
GROUP_POLICY = {
    "listening": "auto",
    "terminate_notice_minutes": "7.5",
    "max_user_operations": "",
    "max_unavailable": "25%",
    "min_available": "2",
    "shutdown_timeout_seconds": "0",
}
NO_POLICY = {
    "listening": "auto",
    "auto_approve_restart": False,
    "auto_approve_redeploy": False,
    "terminate_notice_minutes": None,
    "max_user_operations": None,
    "max_unavailable": None,
    "min_available": None,
    "windows": [],
    "shutdown_timeout_seconds": 60,
}


def policy(portal: Portal, path: str) -> dict[str, object]:
    """Of a group or VM, by its page."""
    _, noun, name = path.split("/")
    found = queries.group(portal.service, name) if noun == "groups" else queries.vm(portal.service, name)
    return dict(msgspec.to_builtins(found.policy))


def schedule(portal: Portal, kind: Kind, *names: str) -> str:
    """The id of the first event."""
    made = maintenance.schedule(portal.service, OPERATOR, kind=kind, names=names).operations
    return str(made[0].events[0].id)


# The grid


def test_hosts_with_the_states_of_their_vms(portal: Portal) -> None:
    schedule(portal, Kind.RESTART, "web-0")
    fleet.set_policy(portal.service, OPERATOR, "vm:db", PolicyChange(listening=Listening.NEVER))
    fleet.set_host(portal.service, OPERATOR, "host-d", HostChange(cordoned=True))
    portal.visitor().get("/fleet").shows(
        "host-a ✓ pool_0 , fine ✓ pool_1 , fine ◷ web-0 , scheduled",
        "⊘ db , not listening",
        "host-d cordoned no VM",
        "✓ fine 8 VMs · nothing is planned ◷ scheduled 1 VM",
        '<a class="vm vm-scheduled" href="/vms/web-0">',
        'href="/hosts/host-a"',
    )


def test_groups_and_standalone_vms(unchanged: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = unchanged.visitor()
    page = visitor.get("/fleet?by=group")
    page.shows("pool placement group ✓ pool_0 , fine ✓ pool_1", "Standalone VMs ✓ batch , fine ✓ db , fine")
    page.shows('href="/groups/web"')
    assert "host-a" not in page.text
    monkeypatch.setattr(fleet_map, "MOST_VMS", 3)
    visitor.get("/fleet?by=group").shows("pool placement group 5 VMs, of which the first 3 are looked at here")


@pytest.mark.parametrize("role", ["tenant", "viewer"])
def test_a_token_with_scopes_sees_those_alone(unchanged: Portal, role: str) -> None:
    visitor = unchanged.visitor_as(role, "web")
    for path in ("/fleet", "/fleet?by=host", "/fleet?by=group", "/fleet?q=*", "/fleet?q=o"):
        page = visitor.get(path)
        assert "host-" not in page.html[page.html.index("<main") :], path
        assert "by host" not in page.text
        assert ("web-1" in page.text) == ("q=o" not in path)
    for path in ("/", "/fleet", "/groups/web", "/vms/web-0", "/history", *(["/act"] if role == "tenant" else [])):
        html = re.sub(r'placeholder="[^"]*"', "", visitor.get(path).html)
        assert not re.search(r"pool|\bdb\b|\bbatch\b", html), path
    for path in ("/vms/db", "/vms/db/document", "/vms/nobody", "/vms/a%20b", "/vms/a%20b/policy"):
        missing = visitor.get(path, 404)
        missing.shows("There is no such VM", "Find a VM or group")
        missing.lacks("127.1.0.30")
    for path in ("/groups/pool", "/groups/nobody", "/groups/a%20b", "/groups/a%20b/policy"):
        visitor.get(path, 404).shows("There is no such group")


def test_pages_of_hosts_follow_each_other(portal: Portal) -> None:
    for number in range(fleet_map.ROWS):
        fleet.add_host(portal.service, OPERATOR, NewHost(name=f"rack-{number:02}"))
    visitor = portal.visitor()
    first = visitor.get("/fleet")
    [onward] = re.findall(r'href="(/fleet\?by=host&amp;after=[^"]+)"', first.html)
    second = visitor.get(onward.replace("&amp;", "&"))
    rows = [re.findall(r'<tr id="host-([^"]+)"', page.html) for page in (first, second)]
    assert (len(rows[0]), rows[0][0], rows[1]) == (25, "host-a", ["rack-21", "rack-22", "rack-23", "rack-24"])
    second.shows("To the first page")
    visitor.get("/fleet?after=zzz").shows("There are no more. To the first page")
    # What can be no name is behind nothing.
    for place in ("/fleet?", "/fleet?by=group&", "/hosts/host-a?", "/groups/web?"):
        visitor.get(f"{place}after=a%20b").lacks("To the first page")


@pytest.mark.parametrize(
    ("wanted", "status", "text"),
    [
        ("web", 200, "Found “web” VMs ✓ web-0 , fine ✓ web-1 , fine ✓ web-2 , fine Groups web 3 VMs"),
        ("host-a", 200, "Found “host-a” Hosts host-a 3 VMs"),
        ("zebra", 200, "Nothing is named “zebra”"),
        ("%5B", 400, "Refused: '[' is not a name or pattern: give one such as a-1, a-* or !a-1"),
        ("%3Cb%3E", 400, "Refused: '<b>' is not a name or pattern"),
        ("*e" * 200, 400, "too long"),
    ],
)
def test_search(unchanged: Portal, wanted: str, status: int, text: str) -> None:
    page = unchanged.visitor().get(f"/fleet?q={wanted}", status)
    assert text in page.text
    assert "<b>" not in page.html


def test_empty_pages_say_what_to_do_next(portal: Portal, tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tmp_path_factory.mktemp("empty"), fleet=False) as empty:
        empty.visitor().get("/fleet").shows("The fleet is empty. Say which hosts and VMs there are")
        tenant = empty.visitor_as("tenant", "web-*")
        tenant.get("/fleet").shows("As soon as there are VMs in web-*, they are shown here.")
    group = NewGroup(name="new", kind=ScopeKind.AVAILABILITY_SET, policy=PolicyChange())
    fleet.add_group(portal.service, OPERATOR, group)
    page = portal.visitor().get("/groups/new")
    page.shows("It has no VM yet. Add one: forenotice vm add NAME --host HOST --group new")


@pytest.mark.parametrize("path", ["/fleet", "/groups/web", "/hosts/host-a", "/tokens"])
def test_a_table_that_scrolls_is_no_second_landmark_of_the_same_name(unchanged: Portal, path: str) -> None:
    html = unchanged.visitor().get(path).html
    assert 'class="wide"' in html
    landmarks = re.findall(r'<(?:section|div)\b[^>]*aria-labelledby="[^"]+"[^>]*>', html)
    named = [re.findall(r'aria-labelledby="([^"]+)"', tag)[0] for tag in landmarks if 'role="group"' not in tag]
    assert len(named) == len(set(named))


# Facts, and what is live


def test_facts(unchanged: Portal) -> None:
    visitor = unchanged.visitor()
    visitor.get("/hosts/host-d").shows("It has no VM.")
    host = visitor.get("/hosts/host-b")
    host.shows(
        "It takes VMs that must move. It has 4 VMs.",
        "VM State Group UD FD db ✓ fine standalone 0 0 pool_2 ✓ fine pool 1 1",
        "Nothing is planned for this host.",
        "Host host-b was added.",
        'href="/history?host=host-b"',
    )
    assert set(re.findall(r'href="/act\?kind=([a-z-]+)&amp;name=host-b"', host.html)) == HOST_ACTIONS
    visitor.get("/groups/pool").shows(
        "Kind placement group VMs 5 Listens yes Last heard never DocumentIncarnation 1",
        "VM State Host UD FD pool_0 ✓ fine host-a 0 0 pool_1 ✓ fine host-a 0 0 pool_2 ✓ fine host-b 1 1",
        "Deletions are announced 5 minutes ahead",
        "Nothing is planned for this group.",
        'href="/history?scope=group:pool"',
        'href="/vms/pool_0#document"',
    )
    vm = visitor.get("/vms/pool_2")
    vm.shows(
        '<a href="/fleet" aria-current="page">',
        "✓ fine : nothing is planned.",
        "Host host-b Group pool Update domain 1 Fault domain 1",
        "Addresses 127.1.0.22",
        'href="/hosts/host-b"',
        "It goes by the policy of its group: see that of pool",
    )
    vm.lacks("Change the policy", "Spot", "times as fast")
    visitor.get("/vms/batch").shows("Spot yes: it can be evicted")
    visitor.get("/vms/db").lacks("kind=eviction")


def test_labels_lead_to_the_other_hosts_that_have_them_and_select_hosts_to_act_on(portal: Portal) -> None:
    for name in ("host-a", "host-b", "host-d"):
        fleet.set_host(portal.service, OPERATOR, name, HostChange(labels={"rack": "r1"}))
    visitor = portal.visitor()
    visitor.get("/hosts/host-a").shows("Labels: rack=r1", 'href="/fleet?q=label%3Arack%3Dr1"')
    found = visitor.get("/fleet?q=label%3Arack%3Dr1")
    found.shows("Found “label:rack=r1” Hosts host-a 3 VMs host-b 4 VMs host-d 0 VMs")
    found.lacks("VMs web")
    visitor.get("/fleet?q=label%3Arack%3Dr9").shows("Nothing fits “label:rack=r9”")
    visitor.get("/fleet").shows("host-a rack=r1")
    portal.visitor_as("tenant", "web").get("/fleet?q=label%3Arack%3Dr1").lacks("host-a")
    path = "/act?kind=host-update&name=label%3Arack%3Dr1%2C!host-b"
    # What was shown is confirmed.
    visitor.get(path).shows("Update host-a So it would be", 'name="name" value="host-a"')
    visitor.post("/act", {"kind": "host-update", "name": "label:rack=r1, !host-b", "notice": ""}, on=path)
    assert [each.host for each in queries.operations(portal.service).items] == ["host-a"]


def test_capacity_and_what_is_used_of_it(portal: Portal) -> None:
    visitor = portal.visitor()
    visitor.get("/hosts/host-a").lacks("capacity")
    fleet.set_host(portal.service, OPERATOR, "host-a", HostChange(capacity=10.5))
    fleet.set_vm(portal.service, OPERATOR, "web-0", VmChange(size=4, facts=FactsChange(size="m2")))
    visitor.get("/hosts/host-a").shows("Of its capacity of 10.5, 6 is used.")
    fleet.set_host(portal.service, OPERATOR, "host-a", HostChange(capacity=1))
    visitor.get("/hosts/host-a").shows(
        "Of its capacity of 1, 6 is used: it takes nobody until there is room.", "Host host-a was changed: capacity."
    )
    visitor.get("/vms/web-0").shows("Size 4 of its host's capacity", "vmSize m2")


def test_what_is_live_and_what_happened(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule(portal, Kind.HOST_UPDATE, "host-b")
    event = schedule(portal, Kind.RESTART, "web-0", "web-2")
    visitor = portal.visitor()
    host = visitor.get("/hosts/host-b")
    for names in ("web-1", "pool_2 and pool_3", "db"):
        host.shows(f"Freeze of {names} Scheduled NotBefore in 1")
    host.lacks("web-0")
    assert host.html.count('<input type="hidden" name="from" value="/hosts/host-b">') == 3
    group = visitor.get("/groups/web")
    group.shows("Reboot of web-0 Scheduled NotBefore in 1", "web-0 ◷ scheduled", "Reboot of web-0 was announced")
    group.shows('<input type="hidden" name="from" value="/groups/web">')
    group.lacks("Freeze of db")
    page = visitor.get("/vms/web-0")
    page.shows(
        "◷ scheduled : maintenance is announced.",
        "It waits for approval by web (web-0)",
        f'action="/events/{event}/approve"',
        f'href="/events/{event}/cancel',
        "Reboot of web-0 was announced, not before",
        'href="/history?vm=web-0"',
    )
    assert "Reboot of web-2" not in page.text[: page.text.index("What the guest sees")]
    approved = visitor.post(f"/events/{event}/approve", {"from": "/vms/web-0"}, on="/vms/web-0")
    assert approved.location == "/vms/web-0"
    visitor.get("/vms/web-0").shows("Approved by admin")

    monkeypatch.setattr(overview, "MOST", 2)
    host = visitor.get("/hosts/host-b")
    host.shows("There are more: these 2 are the most urgent.")
    assert host.html.count('<li id="event-') == 2
    visitor.get("/groups/web").shows("The start page has all.", '<a href="/?scope=group:web">The start page</a>')
    assert visitor.get("/?scope=group:web").html.count('<li id="event-') == 3


def test_the_newest_of_its_history_is_shown_last(portal: Portal) -> None:
    for listening in ("never", "always") * 4:
        fleet.set_policy(portal.service, OPERATOR, "vm:db", PolicyChange(listening=Listening(listening)))
    page = portal.visitor().get("/vms/db").html
    assert page.count('<li id="entry-') == 6
    assert page.index('id="facts"') < page.index('id="policy"') < page.index('id="lately"')


def test_vms_of_a_large_group_are_shown_page_by_page(portal: Portal) -> None:
    for number in range(page_module.VMS - 4):
        fleet.add_vm(portal.service, OPERATOR, VmSpec(name=f"pool_x{number:03}", host="host-d", group="pool"))
    visitor = portal.visitor()
    [onward] = re.findall(r'href="(/groups/pool\?after=[^"#]+)#vms"', visitor.get("/groups/pool").html)
    second = visitor.get(onward)
    assert re.findall(r'<tr id="vm-([^"]+)"', second.html) == ["pool_x095"]
    second.shows("VMs 101 ")
    visitor.get("/groups/pool?after=zzz").shows("There are no more.")


def test_the_document_in_a_chosen_version(portal: Portal) -> None:
    schedule(portal, Kind.RESTART, "web-0")
    visitor = portal.visitor()
    for version in queries.VERSIONS:
        document = queries.document(portal.service, "web-0", version)
        sent = visitor.get(f"/vms/web-0/document?api-version={version}")
        assert (sent.body, sent.headers["content-type"]) == (document, "application/json")
        page = visitor.get(f"/vms/web-0?api-version={version}")
        [shown] = re.findall(r"(?s)<pre[^>]*>(.*?)</pre>", page.html)
        assert re.sub(r"\n *", "", unescape(shown)).replace('": ', '":') == document.decode()
        page.shows(f"<option selected>{version}</option>")
    visitor.get("/vms/db?api-version=2038-01-19", 400).shows("choose one of 2020-07-01, 2019-08-01")
    visitor.get("/vms/db/document?api-version=2038-01-19", 400)


def test_the_last_poll_of_a_vm_its_group_and_its_host(tmp_path: Path) -> None:
    polled = {"web-0": datetime.now(UTC) - timedelta(minutes=3), "web-2": datetime.now(UTC) - timedelta(minutes=2)}
    with running(tmp_path, polled=polled.get) as portal:
        visitor = portal.visitor()
        visitor.get("/vms/pool_1").shows("nobody of its group has polled")
        visitor.get("/vms/db").shows("Last polled never")
        now = datetime.now(UTC)
        Guests(portal.service).heard({"group:web": now - timedelta(minutes=9), "vm:db": now - timedelta(minutes=1)})
        group = visitor.get("/groups/web")
        group.shows(' data-look-every="10">')
        assert re.search(r"<time [^>]*data-countdown>2 min\b[^<]* ago</time>", group.html)
        visitor.get("/vms/web-1").shows("known as long as one process of the service answers it")
        for path, said, minutes in (
            ("/groups/web", "Last heard", 2),
            ("/vms/web-0", "Last polled", 3),
            ("/vms/web-1", "Last polled its group was last heard", 2),
            ("/vms/db", "Last polled it was last heard", 1),
            ("/hosts/host-a", "It has 3 VMs; the last poll from there was", 3),
        ):
            text = visitor.get(path).text
            assert re.search(rf"{said} 20\S+ \S+ UTC \( {minutes} min\b[^)]* ago \)", text), (path, text)
        visitor.get("/hosts/host-b").lacks("last poll")


def test_a_service_that_runs_faster_says_so_and_writes_spans_in_full(tmp_path: Path) -> None:
    with running(tmp_path, timing=Timing(speed=60)) as portal:
        visitor = portal.visitor()
        for path in ("/", "/fleet", "/vms/db"):
            page = visitor.get(path).text
            assert "60 times as fast as it says" in page[page.rindex("forenotice ") :]
        visitor.get("/vms/db").shows("until it has been silent for 1 d")
        fleet.set_policy(portal.service, OPERATOR, "vm:db", PolicyChange(listening=Listening.NEVER))
        visitor.get("/act?kind=restart&name=db").shows("in the last 1 d, or the policy says so")


# Policies


def test_the_policy_of_a_vm_is_changed(portal: Portal) -> None:
    visitor = portal.visitor()
    sent = {**POLICY, "windows": "mon-fri 22:00-04:00 Europe/Berlin\n\n sat 00:00-06:00 UTC \n"}
    assert visitor.post("/vms/db/policy", sent, on="/vms/db").location == "/vms/db"
    page = visitor.get("/vms/db")
    page.shows(
        "The policy of VM db is changed.",
        "Listens never: nobody there is waited for",
        "Restarts of users are approved by themselves Redeploys of users are approved by its guests",
        "Operations of users at most 3 at once",
        "asleep",
        # What stood in the form is what it begins with.
        'name="max_user_operations" inputmode="numeric" value="3"',
        ">mon-fri 22:00-04:00 Europe/Berlin\nsat 00:00-06:00 UTC</textarea>",
    )
    assert re.search(r'id="listening-never"[^>]* checked', page.html)
    assert re.search(r'id="auto_approve_restart"[^>]* checked', page.html)
    windows = ["mon-fri 22:00-04:00 Europe/Berlin", "sat 00:00-06:00 UTC"]
    changed = {"listening": "never", "auto_approve_restart": True, "max_user_operations": 3, "windows": windows}
    assert policy(portal, "/vms/db") == NO_POLICY | changed
    [entry] = history.page(portal.service, JournalFilter(scope="vm:db", by="operator:admin")).items
    assert (entry.action, entry.reason) == ("scope.policy_changed", "asleep")
    visitor.post("/vms/db/policy", {"listening": "auto"}, on="/vms/db")
    assert policy(portal, "/vms/db")["windows"] == []


def test_the_policy_of_a_group_is_changed(portal: Portal) -> None:
    visitor = portal.visitor()
    assert visitor.post("/groups/web/policy", GROUP_POLICY, on="/groups/web").location == "/groups/web"
    visitor.get("/groups/web").shows(
        "The policy of group web is changed.",
        "are announced 7.5 minutes ahead",
        "has at most 25% of its VMs down at once, leaves at least 2 of its VMs",
        "Shutdown a VM is powered off at once",
    )
    changed = {"terminate_notice_minutes": 7.5, "max_unavailable": "25%", "min_available": 2}
    changed |= {"shutdown_timeout_seconds": 0}
    assert policy(portal, "/groups/web") == NO_POLICY | changed
    visitor.post("/groups/web/policy", {**GROUP_POLICY, "max_unavailable": "1", "min_available": ""}, on="/groups/web")
    found = policy(portal, "/groups/web")
    assert (found["max_unavailable"], found["min_available"]) == (1, None)


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        ("/groups/web", {"terminate_notice_minutes": "30"}, "terminate notice must be from 5 to 15 minutes"),
        ("/groups/web", {"terminate_notice_minutes": "soon"}, "“Minutes' notice of a deletion” in the form must be"),
        ("/groups/web", {"max_unavailable": "lots"}, "“VMs down at once for planned maintenance, at most”"),
        ("/groups/web", {"min_available": "-1"}, "“VMs that planned maintenance leaves, at least”"),
        ("/groups/web", {"windows": "at night"}, "'at night'"),
        ("/vms/db", {"listening": "sometimes"}, "listening"),
        ("/vms/db", {"max_user_operations": "many"}, "“Users' operations at once, at most”"),
        ("/vms/db", {"max_user_operations": "0"}, "“Users' operations at once, at most”"),
        ("/vms/db", {"windows": "whenever"}, "'whenever'"),
        ("/vms/db", {"shutdown_timeout_seconds": "3601"}, "“Seconds that a VM may take to shut down”"),
        ("/vms/db", {"reason": "a\u202eb"}, "a reason is at most"),
    ],
)
def test_a_refused_policy_is_shown_again_with_the_reason(
    unchanged: Portal, path: str, fields: dict[str, str], text: str
) -> None:
    before = policy(unchanged, path)
    sent = {**(POLICY if path == "/vms/db" else GROUP_POLICY), **fields}
    answer = unchanged.visitor().post(f"{path}/policy", sent, on=path, status=400)
    assert text in answer.text[answer.text.index("Refused:") :][:300]
    assert re.search(r"<details[^>]* open", answer.html)
    assert answer.html.count(" autofocus>") == 1
    for name, value in sent.items():
        assert name == "listening" or value in unescape(answer.html)
    assert policy(unchanged, path) == before


def test_a_vm_of_a_group_goes_by_the_groups_policy(unchanged: Portal) -> None:
    visitor = unchanged.visitor()
    refused = visitor.post("/vms/web-0/policy", POLICY, on="/vms/db", status=409)
    refused.shows("VM web-0 goes by the policy of its group: change that of group web")
    for path in ("/vms/web-0", "/groups/web"):
        assert visitor.get(f"{path}/policy", 303).location == f"{path}#policy"


# What a role is offered, and what is not there


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
    event = schedule(portal, Kind.RESTART, "batch")
    visitor = portal.visitor() if role == "admin" else portal.visitor_as(role, scopes)
    page = visitor.get("/vms/batch")
    assert set(re.findall(r'href="/act\?kind=([a-z-]+)&amp;name=batch"', page.html)) == actions
    assert ("/vms/batch/policy" in page.html) is manages
    assert (f"/events/{event}/approve" in page.html) is bool(actions)
    assert (f"/events/{event}/cancel" in page.html) is manages
    assert ('href="/hosts/host-c"' in page.html) is (scopes is None)
    if scopes is None:
        host, group = visitor.get("/hosts/host-b").html, visitor.get("/groups/web").html
        assert ("/act" in host[host.index("<main") :]) is ("cordon" in host) is manages
        assert ("/groups/web/policy" in group) is manages


def test_cordoning_and_back(portal: Portal) -> None:
    visitor = portal.visitor()
    assert visitor.post("/hosts/host-d/cordon", on="/hosts/host-d").location == "/hosts/host-d"
    page = visitor.get("/hosts/host-d")
    page.shows("Host host-d is cordoned: it takes no further VMs.", "cordoned It takes no further VMs.")
    page.lacks("/hosts/host-d/cordon")
    assert queries.host(portal.service, "host-d").cordoned
    visitor.post("/hosts/host-d/uncordon", on="/hosts/host-d")
    visitor.get("/hosts/host-d").shows("Host host-d takes VMs again.")
    by_admin = history.page(portal.service, JournalFilter(host="host-d", by="operator:admin")).items
    assert [entry.action for entry in by_admin] == ["host.cordoned", "host.uncordoned"]


def test_what_is_gone_leads_to_its_history(portal: Portal) -> None:
    fleet.remove_vm(portal.service, OPERATOR, "batch")
    visitor = portal.visitor()
    visitor.get("/vms/batch", 404).shows("There is no VM 'batch'.", 'href="/history?vm=batch"')
    visitor.get("/history?vm=batch")
    for path in ("/hosts/nobody", "/hosts/a%20b"):
        visitor.get(path, 404).shows("There is no such host")
    for path in ("/vms/batch/policy", "/groups/nobody/policy", "/hosts/nobody/cordon"):
        visitor.post(path, POLICY, status=404)


def test_an_operation_that_a_window_puts_off_is_shown_before_guests_are_told(portal: Portal) -> None:
    visitor = portal.visitor()
    opens = (portal.service.clock.now() + timedelta(hours=6)).hour
    window, later = (f"daily {hour:02}:00-{hour + 1:02}:00 UTC" for hour in (opens, (opens + 1) % 24))
    fleet.set_policy(portal.service, OPERATOR, "vm:db", PolicyChange(windows=[window]))
    preview = "/act?kind=host-update&name=host-b"
    visitor.get(preview).shows(
        "It is planned; guests are told at 20",
        f"because the window of db ({window}) opens at 20",
        "Guests are not told before 20",
        "and not earlier.",
    )
    made = visitor.post("/act", {"kind": "host-update", "name": "host-b"}, on=preview).location
    visitor.get(made).shows(
        "Update host-b: it is planned. Guests are told at 20",
        "None yet: guests do not know of it.",
        "Guests are told in",
    )
    for path in ("/", "/hosts/host-b", "/vms/db", "/vms/pool_2"):
        visitor.get(path).shows(
            "Planned, not announced yet Host update of db, pool_2, pool_3 and web-1 Planned", "Guests will be told in "
        )
    tenant = portal.visitor_as("tenant", "web")
    for path in ("/", "/vms/web-1"):
        tenant.get(path).lacks("not announced yet", "Guests will be told")
    visitor.get("/hosts/host-b").shows("Nothing is announced yet for this host.")
    visitor.get("/").shows("Nothing is announced yet.")
    visitor.get("/hosts/host-a").lacks("not announced yet")
    assert queries.events(portal.service).items == []
    visitor.get("/history").shows("An operation was planned: host update of db, pool_2, pool_3 and web-1 on host-b")
    visitor.get(preview).shows("It is planned already")
    fleet.set_policy(portal.service, OPERATOR, "group:web", PolicyChange(windows=[later]))
    tick(portal.service)
    visitor.get(made).shows("Guests are told not known yet")
    visitor.get("/").shows("It is not known yet when guests will be told · host host-b")
    assert visitor.post(f"{made}/cancel", on=made).location == made
    visitor.get(made).shows("Cancelled: host update of db")
    visitor.get("/").lacks("not announced yet")
    visitor.post("/operations/nobody/cancel", on="/", status=404)


# Drift


def test_how_hosts_differ_from_the_fleet_is_shown_until_it_is_settled(portal: Portal) -> None:
    hosts = Hosts(domains={"host-a": [domain("bad name", 1)]}, silent={"host-b": "no route to host"})
    loop = InventoryLoop(portal.service, hosts.open)
    for name in ("host-a", "host-b"):
        fleet.set_host(portal.service, OPERATOR, name, HostChange(inventory="libvirt", address="test:///default"))
    loop.step()
    visitor, tenant = portal.visitor(), portal.visitor_as("tenant", "group:web")
    told = "host-a , bad name: it cannot be added: &#39;bad name&#39; is not a VM name"
    visitor.get("/").shows("Hosts differ from the fleet", unescape(told), "no longer has it", "no route to host")
    visitor.get("/hosts/host-a").shows(
        "The fleet follows what libvirt says of its VMs", "It differs from the fleet", "? missing"
    )
    visitor.get("/hosts/host-b").shows("not been able to list the VMs of host-b since", "no route to host")
    visitor.get("/vms/web-0").shows("? missing : its host does not have it", "A host differs from the fleet")
    tenant.get("/vms/web-0").shows("? missing : its host does not have it")
    assert "bad name" not in tenant.get("/").text
    visitor.get("/fleet").shows("? web-0 , missing", "host-b does not answer")
    hosts.silent.clear()
    for name in ("host-a", "host-b"):
        vms = queries.vms(portal.service, host=name).items
        hosts.domains[name] = [replace(domain(vm.name, 1), uuid=vm.vm_id.lower()) for vm in vms]
        hosts.changed(name)
    loop.step()
    for path in ("/", "/fleet", "/hosts/host-a", "/vms/web-0"):
        visitor.get(path).lacks(
            "Hosts differ from the fleet", "It differs from the fleet", "A host differs", "missing :", "does not answer"
        )
