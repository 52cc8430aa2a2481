"""/act: what comes of it is said before it is confirmed; who may do what; and that it is done once."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.portal.running import HIDDEN, KEY, Answer, Portal, Visitor, running

from forenotice.core.fleet import Listening
from forenotice.core.membership import VmSpec
from forenotice.core.operations import TRAITS, Kind
from forenotice.core.roles import TENANTS_KINDS, Need
from forenotice.core.timing import Timing
from forenotice.portal.pages import act
from forenotice.portal.pages.act import MOST_EVENTS, MOST_OPERATIONS
from forenotice.service import fleet, queries
from forenotice.service.calls import SYSTEM
from forenotice.views.fleet import HostChange, NewHost, PolicyChange

EXACTLY = re.compile(r'(?s)<pre tabindex="0" aria-label="The event as JSON">(.*?)</pre>')
OFFERED = re.compile(r'type="radio" id="kind-[a-z-]+" name="kind" value="([a-z-]+)"')
SUGGESTED = re.compile(r'<option value="([^"]+)">')
CONFIRM = re.compile(r'<form method="post" action="/act"')


def asking(**fields: str) -> str:
    return "/act?" + urlencode(fields)


def name_for(kind: Kind) -> str:
    return "host-b" if kind.traits.of_host else "batch" if kind is Kind.EVICTION else "pool_0"


def outcome(page: Answer) -> str:
    """What is said of it, as somebody reads it."""
    preview = re.search(r'(?s)<section class="card" id="preview".*?</section>', page.html)
    assert preview
    return Answer(page.status, page.headers, preview[0].encode()).text


def exactly(page: Answer) -> list[Any]:
    return [json.loads(unescape(found)) for found in EXACTLY.findall(page.html)]


def live(portal: Portal) -> list[Any]:
    found: list[Any] = queries.operations(portal.service, live=True).items
    return found


def confirm(visitor: Visitor, status: int = 303, reason: str = "", **fields: str) -> Answer:
    """Press the button beneath a preview."""
    sent = {"kind": "", "name": "", "notice": "", **fields, "reason": reason}
    return visitor.post("/act", sent, on=asking(**fields), status=status)


def test_somebody_comes_to_choose(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/act")
    assert OFFERED.findall(page.html) == [str(kind) for kind in act.ACTIONS] == [str(kind) for kind in Kind]
    assert "Nothing is chosen yet." in page.text
    assert not CONFIRM.search(page.html)
    assert {"web-0", "db", "host-a"} <= set(SUGGESTED.findall(page.html))
    assert "Restart a VM, where it is notice: 15 min" in page.text
    assert "Degrade a host whose hardware is expected to fail: its VMs are redeployed in good time notice: 7 d" in (
        page.text
    )


def test_what_restarting_a_vm_comes_to(unchanged: Portal) -> None:
    page = unchanged.visitor().get(asking(kind="restart", name="web-0"))
    said = outcome(page)
    assert "Restart web-0" in said
    assert "web-0 of group web will be told: Reboot NotBefore 2" in said
    assert "Reboot means that the VM restarts, and loses what is in its memory." in said
    assert "at the latest, 15 min from now. Earlier, as soon as web-0 approves." in said
    assert "It waits for approval by web (web-0), until" in said
    assert "Until then nothing happens to web-0: this is the time to prepare." in said
    (told,) = exactly(page)
    assert (told["EventId"], told["EventType"], told["Resources"]) == ("not yet known", "Reboot", ["web-0"])
    assert CONFIRM.search(page.html)
    assert page.html.index('id="preview-title"') < page.html.index('id="choose-title"')
    assert "cannot be undone" not in said
    assert SUGGESTED.findall(page.html)[0] == "batch"
    assert "host-a" not in SUGGESTED.findall(page.html)
    assert live(unchanged) == []


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_says_what_comes_of_it_and_can_be_confirmed(portal: Portal, kind: Kind) -> None:
    visitor, name = portal.visitor(), name_for(kind)
    page = visitor.get(asking(kind=kind, name=name))
    said = outcome(page)
    started = kind is Kind.HARDWARE_FAILURE
    assert said.count("When it can start") == said.count("Whom it waits for") == 1
    assert ("At once, when you confirm." in said) == ("nobody is waited for" in said) == started
    assert ("cannot be undone" in said) == (kind in (Kind.EVICTION, Kind.DELETION, Kind.HARDWARE_FAILURE))
    assert ("is cordoned" in said) == (kind in (Kind.DEGRADED_HARDWARE, Kind.HARDWARE_FAILURE))
    assert live(portal) == []

    answer = confirm(visitor, kind=kind, name=name, reason="to see it")
    (made,) = live(portal)
    assert (made.kind, made.reason, made.by) == (kind, "to see it", "operator:admin")
    assert [event.type for event in made.events] == [told["EventType"] for told in exactly(page)]
    assert [event.resources for event in made.events] == [told["Resources"] for told in exactly(page)]
    events = [event.id for event in made.events]
    assert answer.location == (f"/events/{events[0]}" if len(events) == 1 else f"/operations/{made.id}")
    then = visitor.get(answer.location).text
    verb = act.ACTIONS[kind].verb
    if started:
        assert f"{verb} {name}: it has started. Nobody is waited for." in then
    else:
        assert f"{verb} {name}: it is announced." in then
        assert then.count("It waits for approval by ") == 1


def test_nothing_is_promised_of_what_ends_at_no_known_time(portal: Portal) -> None:
    for host in queries.hosts(portal.service).items:
        fleet.set_host(portal.service, SYSTEM, host.name, HostChange(cordoned=True))
    said = outcome(portal.visitor().get(asking(kind="degraded-hardware", name="host-b")))
    assert "No host can take db, pool_2, pool_3 and web-1: add or uncordon one" in said
    assert "Nobody knows until when it must wait" in said
    assert "at the latest" not in said
    assert "starts all the same" not in said


def test_a_deletion_that_nobody_is_told_of(portal: Portal) -> None:
    visitor = portal.visitor()
    page = visitor.get(asking(kind="deletion", name="db"))
    assert "No guest is told: a deletion is announced only in groups that ask for it" in page.text
    assert exactly(page) == []
    assert "Until it has started it can be cancelled" not in page.text
    then = confirm(visitor, kind="deletion", name="db").location
    (made,) = live(portal)
    assert then == f"/operations/{made.id}"
    said = visitor.get(then).text
    assert "Delete db: it has started. Nobody is waited for." in said
    assert "Deletion of db" in said
    assert "It has none: no guest is told of it" in said


def test_who_does_not_listen_is_not_waited_for(portal: Portal) -> None:
    fleet.set_policy(portal.service, SYSTEM, "vm:db", PolicyChange(listening=Listening.NEVER))
    fleet.set_policy(portal.service, SYSTEM, "group:web", PolicyChange(auto_approve_restart=True))
    visitor = portal.visitor()
    said = outcome(visitor.get(asking(kind="host-update", name="host-b")))
    assert "Earlier, as soon as pool (pool_2 and pool_3) and web-1 approve." in said
    assert "Not waited for: db. Nobody there listens" in said
    said = outcome(visitor.get(asking(kind="restart", name="web-0")))
    assert "web-0 of group web will be told: Reboot Started" in said
    assert "Not waited for: web-0 of group web, by policy: it approves restarts itself." in said
    said = outcome(visitor.get(asking(kind="degraded-hardware", name="host-b")))
    assert "Earlier, as soon as pool (pool_2 and pool_3) and web-1 approve." in said
    for scope in ("group:pool", "group:web"):
        fleet.set_policy(portal.service, SYSTEM, scope, PolicyChange(listening=Listening.NEVER))
    said = outcome(visitor.get(asking(kind="degraded-hardware", name="host-b")))
    assert "No guest is listening, so it keeps its full notice" in said
    assert "7 d from now. Earlier, as soon as somebody approves it." in said


def test_what_is_in_the_way(portal: Portal) -> None:
    visitor = portal.visitor()
    fleet.set_policy(portal.service, SYSTEM, "group:web", PolicyChange(auto_approve_restart=True))
    confirm(visitor, kind="restart", name="web-0")
    page = visitor.get(asking(kind="host-update", name="host-a"))
    assert "Nobody knows until when it must wait: something is in the way that ends at no known time." in page.text
    (operation,) = live(portal)
    assert f'href="/operations/{operation.id}"' in page.html


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "restart", "name": "nonesuch"}, "there is no VM 'nonesuch'"),
        ({"kind": "host-update", "name": "web-0"}, "there is no host 'web-0'"),
        ({"kind": "eviction", "name": "web-0"}, "web-0 is not a spot VM: only those are evicted"),
        ({"kind": "restart", "name": "web-0", "notice": "3"}, "restart needs at least 15 minutes of notice, not 3"),
        ({"kind": "restart", "name": "web-0", "notice": "soon"}, "'soon' is not a number of minutes from 0 to 527040"),
        ({"kind": "restart", "name": "web-0", "notice": "nan"}, "'nan' is not a number of minutes"),
        ({"kind": "deletion", "name": "pool_0", "notice": "9"}, "the notice of a deletion cannot be chosen"),
        ({"kind": "restart", "name": "web-0, web-0"}, "web-0 is named twice: name each once"),
        ({"kind": "restart", "name": "web-0, nonesuch"}, "there is no VM 'nonesuch'"),
        ({"kind": "restart", "name": "<b>"}, "is not a VM or host name"),
        ({"kind": "explosion", "name": "web-0"}, "kind in the form must be one of restart"),
    ],
)
def test_what_is_refused_is_said_and_cannot_be_confirmed(unchanged: Portal, fields: dict[str, str], said: str) -> None:
    visitor = unchanged.visitor()
    page = visitor.get(asking(**fields))
    assert "Refused: " in page.text
    assert said in page.text
    assert "<b>" not in page.html
    assert not CONFIRM.search(page.html)
    assert f'name="name" list="names" value="{fields["name"].replace("<", "&lt;").replace(">", "&gt;")}"' in page.html
    status = 404 if "there is no" in said else 409 if "spot" in said else 400
    again = visitor.post("/act", fields, on="/act", status=status)
    assert said in again.text
    assert not CONFIRM.search(again.html)
    assert live(unchanged) == []


def test_several_at_once(portal: Portal) -> None:
    visitor = portal.visitor()
    page = visitor.get("/act?kind=restart&name=web-0&name=db")
    assert "Restart web-0 and db" in page.text
    assert len(exactly(page)) == 2
    assert confirm(visitor, kind="restart", name="web-0, db", notice="20").location == "/"
    assert "Restart web-0 and db: 2 operations are made." in visitor.get("/").text
    assert sorted(each.vms for each in live(portal)) == [["db"], ["web-0"]]


def test_pressing_twice_does_it_once(portal: Portal) -> None:
    visitor = portal.visitor()
    page = visitor.get(asking(kind="restart", name="web-0")).html
    token, key = HIDDEN.search(page), KEY.search(page)
    assert token
    assert key
    fields = {
        "form_token": token[1],
        "form_key": key[1],
        "kind": "restart",
        "name": "web-0",
        "notice": "",
        "reason": "",
    }
    first, second = visitor.send("/act", fields), visitor.send("/act", fields)
    assert first.status == second.status == 303
    assert first.location == second.location
    assert len(live(portal)) == 1
    again = visitor.get(asking(kind="restart", name="web-0"))
    assert "It is announced already, and is Scheduled" in again.text
    assert f'<a href="{first.location}">see how it stands</a>' in again.html
    assert "Refused" not in again.text
    assert "has a restart that is Scheduled already" in visitor.get(asking(kind="restart", name="db, web-0")).text
    assert "has a restart that is Scheduled already" in confirm(visitor, 409, kind="restart", name="web-0").text
    assert len(live(portal)) == 1


def test_the_fleet_may_change_before_it_is_confirmed(portal: Portal) -> None:
    """What was previewed is not what counts, and the page after tells the truth."""
    visitor = portal.visitor()
    assert "It waits for approval" in visitor.get(asking(kind="restart", name="db")).text
    fleet.set_policy(portal.service, SYSTEM, "vm:db", PolicyChange(listening=Listening.NEVER))
    visitor.post("/act", {"kind": "restart", "name": "db"}, on="/act")
    assert "Restart db: it has started. Nobody is waited for." in visitor.get("/").text


def test_a_tenant_acts_on_its_own_vms_in_two_ways(portal: Portal) -> None:
    visitor = portal.visitor_as("tenant", "web")
    page = visitor.get("/act")
    assert set(OFFERED.findall(page.html)) == {str(kind) for kind in TENANTS_KINDS}
    assert SUGGESTED.findall(page.html) == ["web-0", "web-1", "web-2"]
    said = outcome(visitor.get(asking(kind="restart", name="web-0")))
    assert "It waits for your approval (web) until" in said
    for name in ("db", "pool_0", "nonesuch"):
        page = visitor.get(asking(kind="restart", name=name))
        assert f"there is no VM '{name}'" in page.text
        assert not CONFIRM.search(page.html)
        forged = visitor.post("/act", {"kind": "restart", "name": f"web-0,{name}"}, on="/act", status=404)
        assert f"there is no VM '{name}'" in forged.text
    for kind in set(Kind) - TENANTS_KINDS:
        fields = {"kind": str(kind), "name": "host-a" if kind.traits.of_host else "web-0"}
        assert "needs the role platform or admin" in visitor.get(asking(**fields), 403).text
        assert "needs the role platform or admin" in visitor.post("/act", fields, on="/act", status=403).text
    assert live(portal) == []
    confirm(visitor, kind="redeploy", name="web-1")
    (made,) = live(portal)
    assert (made.kind, made.vms, made.by) == ("redeploy", ["web-1"], "tenant:tenant")


def test_who_only_looks_does_not_act(portal: Portal) -> None:
    assert {(declared.method, declared.needs) for declared in act.pages.declared} == {
        ("GET", Need.OPERATE),
        ("POST", Need.OPERATE),
    }
    visitor = portal.visitor_as("viewer")
    visitor.get(asking(kind="restart", name="web-0"), 403)
    visitor.post("/act", {"kind": "restart", "name": "web-0"}, status=403)
    assert live(portal) == []


def test_a_fast_service_says_how_fast(tmp_path: Path) -> None:
    with running(tmp_path, timing=Timing(speed=60)) as portal:
        page = portal.visitor().get(asking(kind="restart", name="web-0"))
        assert "beside each choice. This service runs 60 times" in portal.visitor().get("/act").text
        assert "runs 60 times as fast as it says: an hour of notice takes 1 min." in page.text
        assert re.search(r"at the latest, 1[56] s from now", page.text)


def test_much_at_once_is_told_in_short(portal: Portal) -> None:
    fleet.add_host(portal.service, SYSTEM, NewHost(name="host-z"))
    names = [f"lone-{number:02}" for number in range(MOST_EVENTS + 3)]
    for name in names:
        fleet.add_vm(portal.service, SYSTEM, VmSpec(name=name, host="host-z"))
    visitor = portal.visitor()
    page = visitor.get(asking(kind="host-update", name="host-z"))
    assert len(exactly(page)) == MOST_EVENTS
    assert "And so are 3 more groups and VMs." in page.text
    page = visitor.get(asking(kind="restart", name=",".join(names)))
    assert len(exactly(page)) == MOST_OPERATIONS
    assert "And so for 3 more." in page.text
    assert len(SUGGESTED.findall(visitor.get("/act").html)) <= act.SUGGESTED


def test_every_kind_has_its_words() -> None:
    assert set(act.ACTIONS) == set(TRAITS)
    assert all(action.verb and action.meaning and action.then.endswith(".") for action in act.ACTIONS.values())
    lost = {kind for kind in Kind if kind.traits.removes or not kind.traits.minimum_notice}
    assert {kind for kind, action in act.ACTIONS.items() if action.warning} == lost
