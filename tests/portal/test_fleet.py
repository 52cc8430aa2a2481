"""The page Fleet: the grid by host and by group, finding, and whose it is."""

import re

import pytest
from tests.portal.running import Portal, running
from tests.service.rig import OPERATOR

from forenotice.core.fleet import Listening
from forenotice.core.operations import Kind
from forenotice.service import fleet, fleet_map, maintenance
from forenotice.views.fleet import HostChange, NewHost, PolicyChange


def test_hosts_by_update_domain_with_the_states_of_their_vms(portal: Portal) -> None:
    maintenance.schedule(portal.service, OPERATOR, kind=Kind.RESTART, names=["web-0"])
    fleet.set_policy(portal.service, OPERATOR, "vm:db", PolicyChange(listening=Listening.NEVER))
    fleet.set_host(portal.service, OPERATOR, "host-d", HostChange(cordoned=True))
    page = portal.visitor().get("/fleet")
    assert "host-a ✓ pool_0 , fine ✓ pool_1 , fine ◷ web-0 , scheduled" in page.text
    assert "⊘ db , not listening" in page.text
    assert "host-d cordoned no VM" in page.text
    assert "✓ fine 8 VMs · nothing is planned ◷ scheduled 1 VM" in page.text
    assert '<a class="vm vm-scheduled" href="/vms/web-0">' in page.html
    assert 'href="/hosts/host-a"' in page.html


def test_groups_by_update_domain_and_the_others_in_one_row(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/fleet?by=group")
    assert "pool placement group ✓ pool_0 , fine ✓ pool_1 , fine" in page.text
    assert "Standalone VMs ✓ batch , fine ✓ db , fine" in page.text
    assert 'href="/groups/web"' in page.html
    assert "host-a" not in page.text


@pytest.mark.parametrize("role", ["tenant", "viewer"])
def test_whoever_has_some_scopes_sees_those_alone(unchanged: Portal, role: str) -> None:
    visitor = unchanged.visitor_as(role, "web")
    for path in ("/fleet", "/fleet?by=host", "/fleet?by=group", "/fleet?q=*", "/fleet?q=o"):
        page = visitor.get(path)
        main = page.html[page.html.index("<main") :]
        assert not re.search(r"pool|\bdb\b|batch|host-", main), path
        assert "by host" not in page.text
        assert ("web-1" in page.text) == ("q=o" not in path)


def test_pages_of_hosts_follow_each_other(portal: Portal) -> None:
    for number in range(fleet_map.ROWS):
        fleet.add_host(portal.service, OPERATOR, NewHost(name=f"rack-{number:02}"))
    visitor = portal.visitor()
    first = visitor.get("/fleet")
    [onward] = re.findall(r'href="(/fleet\?by=host&amp;after=[^"]+)"', first.html)
    second = visitor.get(onward.replace("&amp;", "&"))
    rows = [re.findall(r'<tr id="host-([^"]+)"', page.html) for page in (first, second)]
    assert (len(rows[0]), rows[0][0], rows[1]) == (25, "host-a", ["rack-21", "rack-22", "rack-23", "rack-24"])
    assert "To the first page" in second.text
    assert "There are no more. To the first page" in visitor.get("/fleet?after=zzz").text
    # What can be no name is behind nothing.
    for place in ("/fleet", "/fleet?by=group", "/hosts/host-a", "/groups/web"):
        assert "To the first page" not in visitor.get(f"{place}{'&' if '?' in place else '?'}after=a%20b").text


@pytest.mark.parametrize(
    ("wanted", "status", "said"),
    [
        ("web", 200, "Found “web” VMs ✓ web-0 , fine ✓ web-1 , fine ✓ web-2 , fine Groups web 3 VMs"),
        ("host-a", 200, "Found “host-a” Hosts host-a 3 VMs"),
        ("zebra", 200, "Nothing is named “zebra”"),
        ("%5B", 400, "Refused: '[' is not a name or pattern: give one such as a-1, a-* or !a-1"),
        ("%3Cb%3E", 400, "Refused: '<b>' is not a name or pattern"),
    ],
)
def test_finding(unchanged: Portal, wanted: str, status: int, said: str) -> None:
    page = unchanged.visitor().get(f"/fleet?q={wanted}", status)
    assert said in page.text
    assert "<b>" not in page.html


def test_an_empty_fleet_says_what_to_do_next(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tmp_path_factory.mktemp("empty"), fleet=False) as portal:
        assert "The fleet is empty. Say which hosts and VMs there are" in portal.visitor().get("/fleet").text
        tenant = portal.visitor_as("tenant", "web-*")
        assert "As soon as there are VMs in web-*, they are shown here." in tenant.get("/fleet").text


@pytest.mark.parametrize("path", ["/fleet", "/groups/web", "/hosts/host-a", "/tokens"])
def test_a_table_that_scrolls_is_no_second_landmark_of_the_same_name(unchanged: Portal, path: str) -> None:
    html = unchanged.visitor().get(path).html
    assert 'class="wide"' in html
    landmarks = re.findall(r'<(?:section|div)\b[^>]*aria-labelledby="[^"]+"[^>]*>', html)
    named = [re.findall(r'aria-labelledby="([^"]+)"', tag)[0] for tag in landmarks if 'role="group"' not in tag]
    assert len(named) == len(set(named))


def test_one_that_is_larger_than_a_page_says_so(unchanged: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_map, "MOST_VMS", 3)
    page = unchanged.visitor().get("/fleet?by=group").text
    assert "pool placement group 5 VMs, of which the first 3 are looked at here" in page
