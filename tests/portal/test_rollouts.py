"""Rollouts in the portal: planned, started, watched, paused, resumed, cancelled."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.portal.running import Portal, Visitor, running
from tests.service.rolling import request

from forenotice.control import limits
from forenotice.core.operations import Kind
from forenotice.core.roles import EVERYTHING
from forenotice.core.rollouts import GateResult
from forenotice.portal.pages import rollouts as watching
from forenotice.service import fleet, maintenance, queries, rollouts, tick
from forenotice.service.calls import SYSTEM, Call
from forenotice.views.fleet import PolicyChange

NEW = {"kind": "update", "hosts": "host-*"}
OPERATOR = Call(actor="operator:admin")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    """The demo fleet, for tests that leave nothing under way."""
    with running(tmp_path_factory.mktemp("rollouts")) as found:
        yield found


@pytest.fixture(scope="module")
def admin(site: Portal) -> Visitor:
    return site.visitor()


@pytest.fixture
def started(site: Portal) -> Iterator[str]:
    made = begun(site)
    yield made
    if rollouts.show(site.service, made, EVERYTHING).status in ("Running", "Paused"):
        rollouts.cancel(site.service, OPERATOR, made)
    rollouts.advance(site.service, {})


def begun(portal: Portal, hosts: str = "host-*", **options: Any) -> str:
    """A rollout with its first host announced."""
    made = rollouts.start(portal.service, OPERATOR, request(hosts=hosts, **options))
    rollouts.advance(portal.service, {})
    return str(made.id)


def plan_url(**fields: object) -> str:
    return f"/rollouts/plan?{urlencode({**NEW, **fields})}"


# The plan


def test_a_plan_is_shown_before_anything_happens(site: Portal, admin: Visitor) -> None:
    page = admin.get(plan_url(batch=1, pause_minutes=10, reason="new kernel"))
    assert "Update of 3 hosts with 10 VMs, in 3 waves" in page.text
    assert "Nothing is done yet" in page.text
    for host in ("host-a", "host-b", "host-c"):
        assert f'id="bar-{host}"' in page.html
        assert f'href="/hosts/{host}"' in page.html
    assert page.html.count('class="part expected fill-freeze"') >= 3
    assert "Update domain 0 wave 1" in page.text
    assert "Without VMs, and so skipped: host-d" in page.text
    assert re.search(r"pool 5 at most 2 \d+ s update domains", page.text)
    assert "Assumed: nobody approves early" in page.text
    assert 'value="new kernel"' in page.html
    assert rollouts.page(site.service, access=EVERYTHING).items == []
    assert "data-live" not in page.html.partition("<main")[2]


def test_without_fields_there_is_a_form_and_no_plan(admin: Visitor) -> None:
    page = admin.get("/rollouts/new?hosts=host-a&kind=reboot")
    assert 'action="/rollouts/plan#plan"' in page.html
    assert 'value="host-a"' in page.html
    assert re.search(r'value="reboot" checked', page.html)
    assert "The plan" not in page.text


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"hosts": ""}, 400, "say which hosts"),
        ({"hosts": "rack*"}, 404, "no host is selected by 'rack*' What, and where"),
        ({"batch": "many"}, 400, "batch in the form must be an integer"),
        ({"batch": "0"}, 400, "batch in the form must be at least 1"),
        ({"notice_minutes": "1"}, 400, "the notice must be at least 15 minutes"),
        ({"windows": "at night"}, 400, "'at night' is not a window"),
        ({"gate": "shop"}, 400, "there is no gate 'shop'"),
        ({"kind": "degrade"}, 400, "kind in the form"),
    ],
)
def test_what_cannot_be_is_told_above_the_form(
    site: Portal, admin: Visitor, fields: dict[str, str], status: int, said: str
) -> None:
    planned = admin.get(plan_url(**fields), status=status)
    begun = admin.post("/rollouts", {**NEW, **fields}, on="/rollouts/new", status=status)
    for page in (planned, begun):
        assert said in page.text
        assert "Start this rollout" not in page.text
        for name, value in fields.items():
            assert name == "kind" or value in page.html
    assert rollouts.page(site.service, access=EVERYTHING, live=True).items == []


def test_windows_are_given_line_by_line(admin: Visitor) -> None:
    page = admin.get(plan_url(windows="daily 00:00-12:00 UTC\r\n\r\ndaily 12:00-24:00 UTC", notice_minutes="30"))
    assert "in 3 waves" in page.text
    assert "daily 12:00-24:00 UTC" in page.html


def test_hosts_without_vms_come_to_nothing(admin: Visitor) -> None:
    page = admin.get(plan_url(hosts="host-d"))
    assert "Nothing would be done" in page.text
    assert "Start this rollout" not in page.text


def test_a_budget_that_cannot_be_met_is_told(portal: Portal) -> None:
    fleet.set_group(portal.service, OPERATOR, "pool", PolicyChange(min_available=5))
    refused = portal.visitor().get(plan_url(), status=409)
    assert "the budget of group pool can never be met" in refused.text


def test_what_start_would_refuse_has_no_plan(admin: Visitor, started: str) -> None:
    refused = admin.get(plan_url(hosts="host-c"), status=409)
    assert "is going to update host host-c already" in refused.text
    assert f'href="/rollouts/{started}"' in refused.html
    assert "Start this rollout" not in refused.text


def test_a_budget_is_told_in_words(portal: Portal) -> None:
    visitor = portal.visitor()
    for budget, said in {
        "2": "at most 2 of its VMs down at once",
        "50%": "at most 50% of its VMs down at once: 2 down at once",
    }.items():
        fleet.set_group(portal.service, OPERATOR, "pool", PolicyChange(max_unavailable=budget))
        assert said in visitor.get(plan_url()).text
    assert "max_unavailable" not in visitor.get(plan_url()).text.partition("The plan")[2]


def test_many_hosts_are_drawn_wave_by_wave(tmp_path: Path) -> None:
    hosts = [f"rack-{number:02}" for number in range(20)]
    document = {
        "hosts": {name: {} for name in hosts},
        "groups": {"web": {"kind": "availability-set"}},
        "vms": {
            f"web-{name}": {"host": name, "group": "web", "update_domain": number % 2, "fault_domain": number % 2}
            for number, name in enumerate(hosts)
        },
    }
    with running(tmp_path, fleet=False) as portal:
        found = fleet.parse(json.dumps(document).encode(), "json")
        fleet.apply(portal.service, SYSTEM, found, prune=False, dry_run=False)
        page = portal.visitor().get(plan_url(hosts="rack-*", batch=3))
    assert 'id="planned-Wave-1"' in page.html
    assert 'href="#wave-2"' in page.html
    assert 'id="wave-2"' in page.html
    assert "rack-00, rack-02, rack-04, rack-06 and 6 more" in re.sub(r" +,", ",", page.text)


def test_plans_of_pages_and_of_the_api_are_made_one_at_a_time(
    site: Portal, admin: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EXPENSIVE_PATIENCE_SECONDS", 0.1)
    busy, go_on = threading.Event(), threading.Event()
    plan = rollouts.plan

    def slow(*arguments: Any) -> Any:
        busy.set()
        assert go_on.wait(60)
        return plan(*arguments)

    monkeypatch.setattr(rollouts, "plan", slow)
    api = Visitor(site.port)
    told = {"Authorization": f"Bearer {site.token}"}
    with ThreadPoolExecutor(1) as other:
        first = other.submit(api.ask, "POST", "/v1/rollouts/plan", json.dumps(NEW).encode(), told)
        assert busy.wait(60)
        assert "Others are planning or comparing just now" in admin.get(plan_url(), status=503).text
        assert admin.get("/rollouts/new?hosts=host-a").status == 200
        go_on.set()
        assert first.result(20).status == 200
    assert "The plan" in admin.get(plan_url()).text


# Started, and watched


def test_a_rollout_is_started_from_its_plan(site: Portal, admin: Visitor) -> None:
    page = admin.get(plan_url(batch=2, reason="new kernel"))
    form = page.html[page.html.index('action="/rollouts"') :]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
    first, again = (admin.send("/rollouts", fields) for _ in range(2))
    assert first.status == again.status == 303
    assert first.location == again.location
    shown = admin.get(first.location)
    assert "The rollout is started." in shown.text
    assert "Update of host-*" in shown.text
    (made,) = rollouts.page(site.service, access=EVERYTHING, live=True).items
    assert (made.batch, made.reason, made.by) == (2, "new kernel", "operator:admin")
    admin.post(f"{first.location}/cancel", on=first.location)
    rollouts.advance(site.service, {})


def test_it_is_watched_by_update_domain(portal: Portal) -> None:
    site, admin, started = portal, portal.visitor(), begun(portal)
    page = admin.get(f"/rollouts/{started}")
    assert "Progress by update domain" in page.text
    assert "Update domain 0 wave 1 0 of 2 done, 1 under way, 1 skipped" in page.text
    assert "Update domain 1 wave 2 0 of 1 done" in page.text
    assert "host-a is Scheduled: it waits for approval by" in page.text
    (operation,) = queries.operations(site.service, live=True, rollout=started).items
    for event in operation.events:
        assert f'href="/events/{event.id}"' in page.html
    for event in operation.events:
        maintenance.approve(site.service, OPERATOR, event.id)
    tick.tick(site.service)
    assert "host-a is Started" in admin.get(f"/rollouts/{started}").text


def test_hosts_are_filtered_and_paged(admin: Visitor, started: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def hosts(path: str) -> list[str]:
        return re.findall(r'<tr id="host-(host-\w)">', admin.get(path).html)

    at = f"/rollouts/{started}"
    assert hosts(at) == ["host-a", "host-b", "host-c", "host-d"]
    assert hosts(f"{at}?status=Under+way") == ["host-a"]
    assert hosts(f"{at}?status=Failed") == []
    assert "it has no VMs" in admin.get(f"{at}?status=Skipped").text
    assert "No host can be 'lost'" in admin.get(f"{at}?status=lost", status=400).text
    monkeypatch.setattr(watching, "HOSTS_SHOWN", 3)
    (following,) = re.findall(rf'href="({re.escape(at)}\?host=[^"]*)"', admin.get(at).html)
    assert hosts(following.partition("#")[0]) == ["host-d"]


def test_it_is_paused_resumed_and_cancelled(site: Portal, admin: Visitor, started: str) -> None:
    at = f"/rollouts/{started}"
    assert admin.post(f"{at}/pause", {"reason": "lunch"}, on=f"{at}/pause").location == at
    page = admin.get(at)
    assert "The rollout is paused" in page.text
    assert "It was paused by admin: lunch." in page.text
    assert page.text.count("paused by") == 1
    assert "How it goes about it" in page.text
    assert f'action="{at}/pause"' not in page.html
    twice = admin.post(f"{at}/pause", on=at, status=409)
    assert "only a running rollout can be paused" in twice.text
    assert "this cannot be done with it now" in admin.get(f"{at}/pause").text
    admin.post(f"{at}/resume", on=at)
    assert rollouts.show(site.service, started, EVERYTHING).status == "Running"
    assert "What is only Scheduled is cancelled" in admin.get(f"{at}/cancel").text
    admin.post(f"{at}/cancel", {"reason": "enough"}, on=f"{at}/cancel")
    rollouts.advance(site.service, {})
    over = admin.get(at)
    assert "How it ended It is over: Canceled" in over.text
    assert "What is in the way" not in over.text
    facts = over.html[over.html.index('id="facts" data-live') :]
    assert "not yet" not in facts
    assert "Pause" not in re.sub(r"Pauses? (between|after)", "", over.text)
    assert 'id="operations"' not in over.html


def test_hosts_that_failed_have_another_try(portal: Portal) -> None:
    site, admin, started = portal, portal.visitor(), begun(portal)
    at = f"/rollouts/{started}"
    maintenance.schedule(site.service, OPERATOR, kind=Kind.HARDWARE_FAILURE, names=["host-a"])
    rollouts.advance(site.service, {})
    page = admin.get(at)
    assert "Paused" in page.text
    assert "1 failed" in page.text
    assert "Retry failed hosts…" in page.text
    assert 'name="retry" value="yes" checked' in admin.get(f"{at}/resume").html
    admin.post(f"{at}/resume", {"retry": "yes"}, on=f"{at}/resume")
    assert rollouts.show(site.service, started, EVERYTHING).progress.failed == 0


def test_a_red_gate_is_shown_with_what_it_said(site: Portal, admin: Visitor) -> None:
    url = "https://shop.example.com/healthy"
    made = rollouts.start(site.service, OPERATOR, request(hosts="host-a", gate=url))
    (asked,) = rollouts.advance(site.service, {})
    answer = GateResult(green=False, status="503", output="<b>closed</b>", at=site.service.clock.now())
    assert rollouts.advance(site.service, {asked: answer}) == []
    assert "closed" not in site.visitor(site.token_of("viewer", name="onlooker")).get(f"/rollouts/{made.id}").text
    page = admin.get(f"/rollouts/{made.id}")
    assert f"The gate {url} is red since" in page.text
    assert "<code>&lt;b&gt;closed&lt;/b&gt;</code>" in page.html
    assert "Wave 1 waits for its gate https://shop.example.com/…" in page.text
    assert "Nothing of it is announced or started just now." in page.text
    rollouts.cancel(site.service, OPERATOR, made.id)
    rollouts.advance(site.service, {})


# The list


def test_the_list_has_the_live_ones_first(admin: Visitor, started: str) -> None:
    page = admin.get("/rollouts")
    live, _, ended = page.html.partition('id="ended"')
    assert f'id="rollout-{started}"' in live
    assert "it waits for approval by" in page.text
    assert "0 of 4 done, 1 under way, 1 skipped" in page.text
    assert started not in ended


def test_few_of_the_list_say_why_they_wait(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "EXPLAINED", 1)
    for host in ("host-a", "host-b"):
        begun(portal, host)
    page = portal.visitor().get("/rollouts")
    assert page.html.count('<li id="rollout-') == 2
    assert page.html.count('<p class="why">') == 1


def test_those_that_are_over_are_paged_newest_first(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [begun(portal, host) for host in ("host-a", "host-b", "host-c")]
    for rollout in made:
        rollouts.cancel(portal.service, OPERATOR, rollout)
    rollouts.advance(portal.service, {})
    monkeypatch.setattr(watching, "SHOWN", 2)
    visitor, found, path = portal.visitor(), [], "/rollouts"
    while path:
        page = visitor.get(path).html
        found.append(re.findall(r'<tr id="rollout-([^"]*)"', page))
        path = "".join(re.findall(r'href="(/rollouts\?after=[^"]*)"', page))
    assert found == [made[:0:-1], made[:1]]
    assert "There are no older rollouts." in visitor.get(f"/rollouts?after={made[0]}").text


def test_an_empty_list_says_what_to_do_next(portal: Portal) -> None:
    page = portal.visitor().get("/rollouts")
    assert "No rollout is under way." in page.text
    assert 'href="/rollouts/new"' in page.html


def test_what_is_not_there(admin: Visitor) -> None:
    assert "There is no rollout 'none'" in admin.get("/rollouts/none", status=404).text
    assert "There is no rollout 'none'" in admin.get("/rollouts/none/cancel", status=404).text
    assert "There is no page" in admin.get("/rollouts/none/explode", status=404).text
    admin.post("/rollouts/none/explode", on="/rollouts", status=404)


# Roles


def test_viewers_look_and_change_nothing(site: Portal, started: str) -> None:
    viewer = site.visitor_as("viewer")
    at = f"/rollouts/{started}"
    page = viewer.get(at)
    assert "What is in the way" in page.text
    assert f'action="{at}' not in page.html
    assert f'href="{at}/cancel"' not in page.html
    planned = viewer.get(plan_url(hosts="host-a", kind="reboot"))
    assert "Start this rollout" not in planned.text
    assert "To start it you need a token of the platform" in planned.text
    viewer.get(f"{at}/cancel", status=403)
    for path in ("/rollouts", f"{at}/pause", f"{at}/resume", f"{at}/cancel"):
        refused = viewer.post(path, NEW, status=403)
        assert "This needs the role platform or admin" in refused.text
    assert rollouts.show(site.service, started, EVERYTHING).status == "Running"


def test_tenants_see_no_rollouts(site: Portal, started: str) -> None:
    tenant = site.visitor_as("tenant", "web")
    for path in ("/rollouts", "/rollouts/new", plan_url(), f"/rollouts/{started}"):
        assert started not in tenant.get(path, status=403).text
    assert 'href="/rollouts"' not in tenant.get("/").html
    tenant.post(f"/rollouts/{started}/cancel", status=403)


def test_a_form_from_elsewhere_is_refused(site: Portal, admin: Visitor, started: str) -> None:
    assert admin.send(f"/rollouts/{started}/cancel", {"form_token": "guessed"}).status == 403
    assert rollouts.show(site.service, started, EVERYTHING).status == "Running"
