"""/act: what comes of it is said before it is confirmed; who may do what; and that it is done once."""

import json
import re
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.portal.running import Answer, Portal, Visitor, running

from forenotice.core.fleet import Listening
from forenotice.core.membership import VmSpec
from forenotice.core.operations import TRAITS, Kind
from forenotice.core.roles import TENANTS_KINDS
from forenotice.core.timing import Timing
from forenotice.portal.pages import act
from forenotice.portal.pages.act import MOST_EVENTS, MOST_OPERATIONS
from forenotice.service import fleet, queries
from forenotice.service.calls import SYSTEM
from forenotice.views.fleet import HostChange, NewHost, PolicyChange

EXACTLY = re.compile(r'(?s)<pre tabindex="0" aria-label="The event as JSON">(.*?)</pre>')
OFFERED = re.compile(r'type="radio" id="kind-[a-z-]+" name="kind" value="([a-z-]+)"')
SUGGESTED = re.compile(r'<option value="([^"]+)">')
CONFIRM = '<form method="post" action="/act"'


def asking(**fields: str) -> str:
    return "/act?" + urlencode(fields)


def preview(visitor: Visitor, **fields: str) -> Answer:
    """What is said of it."""
    page = visitor.get(asking(**fields))
    found = re.search(r'(?s)<section class="card" id="preview".*?</section>', page.html)
    assert found
    return Answer(page.status, page.headers, found[0].encode())


def exactly(page: Answer) -> list[Any]:
    return [json.loads(unescape(found)) for found in EXACTLY.findall(page.html)]


def live(portal: Portal) -> list[Any]:
    found: list[Any] = queries.operations(portal.service, live=True).items
    return found


def confirm(visitor: Visitor, status: int = 303, reason: str = "", **fields: str) -> Answer:
    """Press the button beneath a preview."""
    sent = {"kind": "", "name": "", "notice": "", **fields, "reason": reason}
    return visitor.post("/act", sent, on=asking(**fields), status=status)


def test_what_can_be_chosen(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/act")
    assert OFFERED.findall(page.html) == [str(kind) for kind in act.ACTIONS] == [str(kind) for kind in Kind]
    assert {"web-0", "db", "host-a"} <= set(SUGGESTED.findall(page.html))
    page.shows(
        "Nothing is chosen yet.",
        "Restart a VM, where it is notice: 15 min",
        "Degrade a host whose hardware is expected to fail: its VMs are redeployed in good time notice: 7 d",
    )
    page.lacks(CONFIRM)


def test_what_restarting_a_vm_comes_to(unchanged: Portal) -> None:
    page = unchanged.visitor().get(asking(kind="restart", name="web-0"))
    said = preview(unchanged.visitor(), kind="restart", name="web-0")
    said.shows(
        "Restart web-0",
        "web-0 of group web will be told: Reboot NotBefore 2",
        "Reboot means that the VM restarts, and loses what is in its memory.",
        "at the latest, 15 min from now. Earlier, as soon as web-0 approves.",
        "It waits for approval by web (web-0), until",
        "Until then nothing happens to web-0: this is the time to prepare.",
        CONFIRM,
    )
    said.lacks("cannot be undone")
    (told,) = exactly(page)
    assert (told["EventId"], told["EventType"], told["Resources"]) == ("not yet known", "Reboot", ["web-0"])
    assert page.html.index('id="preview-title"') < page.html.index('id="choose-title"')
    assert SUGGESTED.findall(page.html)[0] == "batch"
    assert "host-a" not in SUGGESTED.findall(page.html)
    assert live(unchanged) == []


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_says_what_comes_of_it_and_can_be_confirmed(portal: Portal, kind: Kind) -> None:
    visitor = portal.visitor()
    name = "host-b" if kind.traits.of_host else "batch" if kind is Kind.EVICTION else "pool_0"
    page = preview(visitor, kind=kind, name=name)
    started = kind is Kind.HARDWARE_FAILURE
    assert page.text.count("When it can start") == page.text.count("Whom it waits for") == 1
    assert ("At once, when you confirm." in page.text) == ("it waits for no approval" in page.text) == started
    assert ("cannot be undone" in page.text) == (kind in (Kind.EVICTION, Kind.DELETION, Kind.HARDWARE_FAILURE))
    assert ("is cordoned" in page.text) == (kind in (Kind.DEGRADED_HARDWARE, Kind.HARDWARE_FAILURE))
    assert live(portal) == []

    answer = confirm(visitor, kind=kind, name=name, reason="to see it")
    (made,) = live(portal)
    assert (made.kind, made.reason, made.by) == (kind, "to see it", "operator:admin")
    previewed = [(told["EventType"], told["Resources"]) for told in exactly(page)]
    assert [(event.type, event.resources) for event in made.events] == previewed
    events = [event.id for event in made.events]
    assert answer.location == (f"/events/{events[0]}" if len(events) == 1 else f"/operations/{made.id}")
    then = visitor.get(answer.location)
    done = "it has started. Nobody is waited for." if started else "it is announced."
    then.shows(f"{act.ACTIONS[kind].verb} {name}: {done}")
    assert then.text.count("It waits for approval by ") == (0 if started else 1)


def test_nothing_is_promised_where_a_blocker_has_no_known_end(portal: Portal) -> None:
    visitor = portal.visitor()
    fleet.set_policy(portal.service, SYSTEM, "group:web", PolicyChange(auto_approve_restart=True))
    confirm(visitor, kind="restart", name="web-0")
    (operation,) = live(portal)
    blocked = preview(visitor, kind="host-update", name="host-a")
    blocked.shows("something is in the way that ends at no known time.", f'href="/operations/{operation.id}"')
    for host in queries.hosts(portal.service).items:
        fleet.set_host(portal.service, SYSTEM, host.name, HostChange(cordoned=True))
    said = preview(visitor, kind="degraded-hardware", name="host-b")
    said.shows("No host can take db, pool_2, pool_3 and web-1: add or uncordon one", "ends at no known time")
    said.lacks("at the latest", "starts all the same")


def test_a_deletion_that_is_not_announced(portal: Portal) -> None:
    visitor = portal.visitor()
    page = preview(visitor, kind="deletion", name="db")
    page.shows("No guest is told: a deletion is announced only in groups that ask for it")
    page.lacks("Until it has started it can be cancelled")
    assert exactly(page) == []
    then = confirm(visitor, kind="deletion", name="db").location
    (made,) = live(portal)
    assert then == f"/operations/{made.id}"
    visitor.get(then).shows(
        "Delete db: it has started. Nobody is waited for.", "Deletion of db", "It has none: no guest is told of it"
    )


def test_a_guest_that_does_not_listen_is_not_waited_for(portal: Portal) -> None:
    fleet.set_policy(portal.service, SYSTEM, "vm:db", PolicyChange(listening=Listening.NEVER))
    fleet.set_policy(portal.service, SYSTEM, "group:web", PolicyChange(auto_approve_restart=True))
    visitor = portal.visitor()
    earlier = "Earlier, as soon as pool (pool_2 and pool_3) and web-1 approve."
    said = preview(visitor, kind="host-update", name="host-b")
    said.shows(earlier, "Not waited for: db. Nobody there listens")
    preview(visitor, kind="degraded-hardware", name="host-b").shows(earlier)
    preview(visitor, kind="restart", name="web-0").shows(
        "web-0 of group web will be told: Reboot Started",
        "Not waited for: web-0 of group web, by policy: it approves restarts itself.",
    )
    for scope in ("group:pool", "group:web"):
        fleet.set_policy(portal.service, SYSTEM, scope, PolicyChange(listening=Listening.NEVER))
    preview(visitor, kind="degraded-hardware", name="host-b").shows(
        "No guest is listening, so it keeps its full notice",
        "7 d from now. Earlier, as soon as somebody approves it.",
    )


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"kind": "restart", "name": "nonesuch"}, 404, "there is no VM 'nonesuch'"),
        ({"kind": "host-update", "name": "web-0"}, 404, "there is no host 'web-0'"),
        ({"kind": "eviction", "name": "web-0"}, 409, "web-0 is not a spot VM: only those are evicted"),
        ({"kind": "restart", "name": "web-0", "notice": "3"}, 400, "restart needs at least 15 minutes of notice"),
        ({"kind": "restart", "name": "web-0", "notice": "soon"}, 400, "is not a number of minutes from 0 to 527040"),
        ({"kind": "restart", "name": "web-0", "notice": "nan"}, 400, "'nan' is not a number of minutes"),
        ({"kind": "restart", "name": "web-0", "duration": "2"}, 400, "the duration of a restart cannot be chosen"),
        ({"kind": "host-update", "name": "host-a", "duration": "0"}, 400, "must be at least 1"),
        ({"kind": "deletion", "name": "pool_0", "notice": "9"}, 400, "the notice of a deletion cannot be chosen"),
        ({"kind": "restart", "name": "web-0, web-0"}, 400, "web-0 is named twice: name each once"),
        ({"kind": "restart", "name": "web-0, nonesuch"}, 404, "there is no VM 'nonesuch'"),
        ({"kind": "restart", "name": "<b>"}, 400, "is not a VM or host name"),
        ({"kind": "explosion", "name": "web-0"}, 400, "kind in the form must be one of restart"),
    ],
)
def test_what_is_refused_cannot_be_confirmed(unchanged: Portal, fields: dict[str, str], status: int, said: str) -> None:
    visitor = unchanged.visitor()
    page = visitor.get(asking(**fields))
    page.shows("Refused: ", f'name="name" list="names" value="{escape(fields["name"])}"')
    for each in (page, visitor.post("/act", fields, on="/act", status=status)):
        each.shows(said)
        assert "<b>" not in each.html
        each.lacks(CONFIRM)
    assert live(unchanged) == []


def test_several_at_once(portal: Portal) -> None:
    visitor = portal.visitor()
    page = visitor.get("/act?kind=restart&name=web-0&name=db")
    page.shows("Restart web-0 and db")
    assert len(exactly(page)) == 2
    assert confirm(visitor, kind="restart", name="web-0, db", notice="20").location == "/"
    visitor.get("/").shows("Restart web-0 and db: 2 operations are made.")
    assert sorted(each.vms for each in live(portal)) == [["db"], ["web-0"]]


def test_how_long_an_update_freezes_the_vms(portal: Portal) -> None:
    visitor = portal.visitor()
    told = exactly(visitor.get("/act?kind=host-update&name=host-a&duration=2"))
    assert {each["DurationInSeconds"] for each in told} == {2}
    confirm(visitor, kind="host-update", name="host-a", duration="2")
    assert [each.duration_seconds for each in live(portal)] == [2]


def test_pressing_twice_does_it_once(portal: Portal) -> None:
    visitor, path = portal.visitor(), asking(kind="restart", name="web-0")
    fields = {**visitor.hidden(path), "kind": "restart", "name": "web-0", "notice": "", "reason": ""}
    first, second = visitor.send("/act", fields), visitor.send("/act", fields)
    assert first.status == second.status == 303
    assert first.location == second.location
    again = visitor.get(path)
    again.shows("It is announced already, and is Scheduled", f'<a href="{first.location}">see how it stands</a>')
    again.lacks("Refused")
    visitor.get(asking(kind="restart", name="db, web-0")).shows("has a restart that is Scheduled already")
    confirm(visitor, 409, kind="restart", name="web-0").shows("has a restart that is Scheduled already")
    assert len(live(portal)) == 1


def test_the_fleet_may_change_before_it_is_confirmed(portal: Portal) -> None:
    """What was previewed is not what counts, and the page after tells the truth."""
    visitor = portal.visitor()
    preview(visitor, kind="restart", name="db").shows("It waits for approval")
    fleet.set_policy(portal.service, SYSTEM, "vm:db", PolicyChange(listening=Listening.NEVER))
    visitor.post("/act", {"kind": "restart", "name": "db"}, on="/act")
    visitor.get("/").shows("Restart db: it has started. Nobody is waited for.")


def test_a_tenant_acts_on_its_own_vms_in_two_ways(portal: Portal) -> None:
    visitor = portal.visitor_as("tenant", "web")
    page = visitor.get("/act")
    assert set(OFFERED.findall(page.html)) == {str(kind) for kind in TENANTS_KINDS}
    assert SUGGESTED.findall(page.html) == ["web-0", "web-1", "web-2"]
    preview(visitor, kind="restart", name="web-0").shows("It waits for your approval (web) until")
    for name in ("db", "pool_0", "nonesuch"):
        page = visitor.get(asking(kind="restart", name=name))
        page.lacks(CONFIRM)
        forged = visitor.post("/act", {"kind": "restart", "name": f"web-0,{name}"}, on="/act", status=404)
        for each in (page, forged):
            each.shows(f"there is no VM '{name}'")
    for kind in set(Kind) - TENANTS_KINDS:
        fields = {"kind": str(kind), "name": "host-a" if kind.traits.of_host else "web-0"}
        for each in (visitor.get(asking(**fields), 403), visitor.post("/act", fields, on="/act", status=403)):
            each.shows("needs the role platform or admin")
    assert live(portal) == []
    confirm(visitor, kind="redeploy", name="web-1")
    (made,) = live(portal)
    assert (made.kind, made.vms, made.by) == ("redeploy", ["web-1"], "tenant:tenant")


def test_a_fast_service_says_how_fast(tmp_path: Path) -> None:
    with running(tmp_path, timing=Timing(speed=60)) as portal:
        visitor = portal.visitor()
        visitor.get("/act").shows("beside each choice. This service runs 60 times")
        page = visitor.get(asking(kind="restart", name="web-0"))
        page.shows("runs 60 times as fast as it says: an hour of notice takes 1 min.")
        assert re.search(r"at the latest, 1[56] s from now", page.text)


def test_much_at_once_is_told_in_short(portal: Portal) -> None:
    fleet.add_host(portal.service, SYSTEM, NewHost(name="host-z"))
    names = [f"lone-{number:02}" for number in range(MOST_EVENTS + 3)]
    for name in names:
        fleet.add_vm(portal.service, SYSTEM, VmSpec(name=name, host="host-z"))
    visitor = portal.visitor()
    page = visitor.get(asking(kind="host-update", name="host-z"))
    page.shows("And so are 3 more groups and VMs.")
    assert len(exactly(page)) == MOST_EVENTS
    page = visitor.get(asking(kind="restart", name=",".join(names)))
    page.shows("And so for 3 more.")
    assert len(exactly(page)) == MOST_OPERATIONS
    assert len(SUGGESTED.findall(visitor.get("/act").html)) <= act.SUGGESTED


def test_every_kind_has_its_words() -> None:
    assert set(act.ACTIONS) == set(TRAITS)
    assert all(action.verb and action.meaning and action.then.endswith(".") for action in act.ACTIONS.values())
    lost = {kind for kind in Kind if kind.traits.removes or not kind.traits.minimum_notice}
    assert {kind for kind, action in act.ACTIONS.items() if action.warning} == lost
