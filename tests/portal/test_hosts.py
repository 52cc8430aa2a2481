"""The page of a host: its VMs, what is live, cordoning, and what can be done."""

import re
from datetime import timedelta

import pytest
from tests.portal.running import Portal
from tests.service.rig import OPERATOR

from forenotice.core.operations import Kind
from forenotice.service import fleet, history, maintenance, overview, queries
from forenotice.service.tick import tick
from forenotice.views.fleet import FactsChange, HostChange, PolicyChange, VmChange

ACTIONS = {"host-update", "host-reboot", "live-migration", "degraded-hardware", "hardware-failure"}


def test_its_vms_and_what_can_be_done(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/hosts/host-b")
    assert "It takes VMs that must move. It has 4 VMs." in page.text
    assert "VM State Group UD FD db ✓ fine standalone 0 0 pool_2 ✓ fine pool 1 1" in page.text
    assert set(re.findall(r'href="/act\?kind=([a-z-]+)&amp;name=host-b"', page.html)) == ACTIONS
    assert "Nothing is planned for this host." in page.text
    assert 'href="/history?host=host-b"' in page.html
    assert "Host host-b was added." in page.text
    assert "It has no VM." in unchanged.visitor().get("/hosts/host-d").text


def test_its_labels_lead_to_the_others_that_have_them(portal: Portal) -> None:
    for name in ("host-a", "host-d"):
        fleet.set_host(portal.service, OPERATOR, name, HostChange(labels={"rack": "r1"}))
    visitor = portal.visitor()
    page = visitor.get("/hosts/host-a")
    assert "Labels: rack=r1" in page.text
    assert 'href="/fleet?q=label%3Arack%3Dr1"' in page.html
    found = visitor.get("/fleet?q=label%3Arack%3Dr1")
    assert "Found “label:rack=r1” Hosts host-a 3 VMs host-d 0 VMs" in found.text
    assert "VMs web" not in found.text
    assert "Nothing fits “label:rack=r9”" in visitor.get("/fleet?q=label%3Arack%3Dr9").text
    assert "host-a rack=r1" in visitor.get("/fleet").text
    tenant = portal.visitor_as("tenant", "web").get("/fleet?q=label%3Arack%3Dr1")
    assert "host-a" not in tenant.text


def test_hosts_of_a_label_are_acted_on(portal: Portal) -> None:
    for name in ("host-a", "host-b", "host-d"):
        fleet.set_host(portal.service, OPERATOR, name, HostChange(labels={"rack": "r1"}))
    visitor = portal.visitor()
    path = "/act?kind=host-update&name=label%3Arack%3Dr1%2C!host-b"
    page = visitor.get(path)
    assert "Update host-a So it would be" in page.text
    assert 'name="name" value="host-a"' in page.html, "what was shown is confirmed"
    visitor.post("/act", {"kind": "host-update", "name": "label:rack=r1, !host-b", "notice": ""}, on=path)
    assert [each.host for each in queries.operations(portal.service).items] == ["host-a"]


def test_its_capacity_and_what_is_used_of_it(portal: Portal) -> None:
    assert "capacity" not in portal.visitor().get("/hosts/host-a").text
    fleet.set_host(portal.service, OPERATOR, "host-a", HostChange(capacity=10.5))
    fleet.set_vm(portal.service, OPERATOR, "web-0", VmChange(size=4, facts=FactsChange(size="m2")))
    assert "Of its capacity of 10.5, 6 is used." in portal.visitor().get("/hosts/host-a").text
    fleet.set_host(portal.service, OPERATOR, "host-a", HostChange(capacity=1))
    page = portal.visitor().get("/hosts/host-a")
    assert "Of its capacity of 1, 6 is used: it takes nobody until there is room." in page.text
    assert "Host host-a was changed: capacity." in page.text
    vm = portal.visitor().get("/vms/web-0").text
    assert "Size 4 of its host's capacity" in vm
    assert "vmSize m2" in vm


def test_what_is_live_there_whoever_it_concerns(portal: Portal) -> None:
    maintenance.schedule(portal.service, OPERATOR, kind=Kind.HOST_UPDATE, names=["host-b"])
    maintenance.schedule(portal.service, OPERATOR, kind=Kind.RESTART, names=["web-0"])
    page = portal.visitor().get("/hosts/host-b")
    for names in ("web-1", "pool_2 and pool_3", "db"):
        assert f"Freeze of {names} Scheduled NotBefore in 1" in page.text
    assert "web-0" not in page.text
    assert page.html.count('<input type="hidden" name="from" value="/hosts/host-b">') == 3
    assert "web-1 ◷ scheduled" in page.text


def test_of_many_events_the_most_urgent_are_shown(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST", 2)
    maintenance.schedule(portal.service, OPERATOR, kind=Kind.HOST_UPDATE, names=["host-b"])
    page = portal.visitor().get("/hosts/host-b")
    assert page.html.count('<li id="event-') == 2
    assert "There are more: these 2 are the most urgent." in page.text


def test_cordoning_and_back(portal: Portal) -> None:
    visitor = portal.visitor()
    assert visitor.post("/hosts/host-d/cordon", on="/hosts/host-d").location == "/hosts/host-d"
    page = visitor.get("/hosts/host-d")
    assert "Host host-d is cordoned: it takes no further VMs." in page.text
    assert "cordoned It takes no further VMs." in page.text
    assert queries.host(portal.service, "host-d").cordoned
    assert "/hosts/host-d/cordon" not in page.html
    visitor.post("/hosts/host-d/uncordon", on="/hosts/host-d")
    assert "Host host-d takes VMs again." in visitor.get("/hosts/host-d").text
    assert not queries.host(portal.service, "host-d").cordoned
    by_admin = history.page(portal.service, host="host-d", by="operator:admin").items
    assert [entry.action for entry in by_admin] == ["host.cordoned", "host.uncordoned"]


def test_a_viewer_only_looks(unchanged: Portal) -> None:
    page = unchanged.visitor_as("viewer").get("/hosts/host-b")
    assert "/act" not in page.html[page.html.index("<main") :]
    assert "cordon" not in page.html


def test_hosts_are_not_for_those_who_have_some_scopes(unchanged: Portal) -> None:
    tenant = unchanged.visitor_as("tenant", "web")
    assert "this needs the role" in tenant.get("/hosts/host-a", 403).text.lower()
    tenant.post("/hosts/host-a/cordon", status=403)
    assert not queries.host(unchanged.service, "host-a").cordoned


def test_there_is_no_such_host(unchanged: Portal) -> None:
    visitor = unchanged.visitor()
    for place in ("/hosts/nobody", "/hosts/a%20b"):
        assert "There is no such host" in visitor.get(place, 404).text
    visitor.post("/hosts/nobody/cordon", status=404)


def test_what_a_window_puts_off_is_shown_before_guests_are_told(portal: Portal) -> None:
    visitor = portal.visitor()
    opens = (portal.service.clock.now() + timedelta(hours=6)).hour
    window = f"daily {opens:02}:00-{(opens + 1) % 24:02}:00 UTC"
    fleet.set_policy(portal.service, OPERATOR, "vm:db", PolicyChange(windows=[window]))
    preview = visitor.get("/act?kind=host-update&name=host-b").text
    assert "It is planned; guests are told at 20" in preview
    assert f"because the window of db ({window}) opens at 20" in preview
    assert "Guests are not told before 20" in preview
    assert "and not earlier." in preview
    made = visitor.post("/act", {"kind": "host-update", "name": "host-b"}, on="/act?kind=host-update&name=host-b")
    page = visitor.get(made.location)
    assert "Update host-b: it is planned. Guests are told at 20" in page.text
    assert "None yet: guests do not know of it." in page.text
    assert "Guests are told in" in page.text
    for path in ("/", "/hosts/host-b", "/vms/db", "/vms/pool_2"):
        shown = visitor.get(path).text
        assert "Planned, not announced yet Host update of db, pool_2, pool_3 and web-1 Planned" in shown, path
        assert "Guests will be told in " in shown, path
    assert "Nothing is announced yet for this host." in visitor.get("/hosts/host-b").text
    assert "Nothing is announced yet." in visitor.get("/").text
    assert "not announced yet" not in visitor.get("/hosts/host-a").text
    assert queries.events(portal.service).items == []
    assert "An operation was planned: host update of db, pool_2, pool_3 and web-1 on host-b" in (
        visitor.get("/history").text
    )
    asked_again = visitor.get("/act?kind=host-update&name=host-b").text
    assert "It is planned already" in asked_again
    later = f"daily {(opens + 1) % 24:02}:00-{(opens + 2) % 24:02}:00 UTC"
    fleet.set_policy(portal.service, OPERATOR, "group:web", PolicyChange(windows=[later]))
    tick(portal.service)
    assert "Guests are told not known yet" in visitor.get(made.location).text
    assert "It is not known yet when guests will be told · host host-b" in visitor.get("/").text
    cancelled = visitor.post(f"{made.location}/cancel", on=made.location)
    assert cancelled.location == made.location
    assert "Cancelled: host update of db" in visitor.get(made.location).text
    assert "not announced yet" not in visitor.get("/").text
    visitor.post("/operations/nobody/cancel", on="/", status=404)
