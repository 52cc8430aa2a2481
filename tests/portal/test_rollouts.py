"""Rollouts in the portal: planned, started, watched, paused, resumed, cancelled; and how their progress is told."""

import json
import re
import threading
from collections.abc import Iterator, Sequence
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
from forenotice.portal.pages import rollouts as page_module
from forenotice.portal.pages.rollouts import MOST_WAVES, lines, meter
from forenotice.service import fleet, maintenance, queries, rollouts, tick
from forenotice.service.calls import SYSTEM, Call
from forenotice.views.fleet import PolicyChange
from forenotice.views.rollouts import Progress, WaveProgress

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


def begun(portal: Portal, hosts: str = "host-*") -> str:
    """A rollout with its first host announced."""
    made = rollouts.start(portal.service, OPERATOR, request(hosts=hosts))
    rollouts.advance(portal.service, {})
    return str(made.id)


def plan_url(**fields: object) -> str:
    return f"/rollouts/plan?{urlencode({**NEW, **fields})}"


# The plan


def test_a_plan_is_shown_before_anything_happens(site: Portal, admin: Visitor) -> None:
    page = admin.get(plan_url(batch=1, pause_minutes=10, reason="new kernel"))
    page.shows(
        "Update of 3 hosts with 10 VMs, in 3 waves",
        "Nothing is done yet",
        "Update domain 0 wave 1",
        "Without VMs, and so skipped: host-d",
        "Assumed: no guest approves early",
        'value="new kernel"',
        *(f'id="bar-{host}"' for host in ("host-a", "host-b", "host-c")),
        *(f'href="/hosts/{host}"' for host in ("host-a", "host-b", "host-c")),
    )
    assert page.html.count('class="part expected fill-freeze"') >= 3
    assert re.search(r"pool 5 at most 2 \d+ s update domains", page.text)
    assert rollouts.page(site.service, access=EVERYTHING).items == []
    assert "data-live" not in page.html.partition("<main")[2]


def test_without_fields_there_is_a_form_and_no_plan(admin: Visitor) -> None:
    page = admin.get("/rollouts/new?hosts=host-a&kind=reboot")
    page.shows('action="/rollouts/plan#plan"', 'value="host-a"', 'value="reboot" checked')
    page.lacks("The plan")


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"hosts": ""}, 400, "say which hosts"),
        ({"hosts": "rack*"}, 404, "no host is selected by 'rack*' What, and where"),
        ({"batch": "many"}, 400, "batch in the form must be an integer"),
        ({"batch": "0"}, 400, "batch in the form must be at least 1"),
        ({"notice_minutes": "1"}, 400, "the notice must be at least 15 minutes"),
        ({"duration_seconds": "601"}, 400, "duration_seconds in the form must be at most 600"),
        ({"windows": "at night"}, 400, "'at night' is not a window"),
        ({"gate": "shop"}, 400, "there is no gate 'shop'"),
        ({"kind": "degrade"}, 400, "kind in the form"),
    ],
)
def test_what_is_impossible_is_told_above_the_form(
    site: Portal, admin: Visitor, fields: dict[str, str], status: int, said: str
) -> None:
    planned = admin.get(plan_url(**fields), status=status)
    for page in (planned, admin.post("/rollouts", {**NEW, **fields}, on="/rollouts/new", status=status)):
        page.shows(said)
        page.lacks("Start this rollout")
        assert all(name == "kind" or value in page.html for name, value in fields.items())
    assert rollouts.page(site.service, access=EVERYTHING, live=True).items == []


def test_windows_are_given_line_by_line(admin: Visitor) -> None:
    page = admin.get(plan_url(windows="daily 00:00-12:00 UTC\r\n\r\ndaily 12:00-24:00 UTC", notice_minutes="30"))
    page.shows("in 3 waves", "daily 12:00-24:00 UTC")


def test_how_long_an_update_freezes_the_vms(admin: Visitor) -> None:
    admin.get(plan_url(duration_seconds="60")).shows("each host takes 60 s")


def test_there_is_no_plan_where_start_would_refuse_or_do_nothing(admin: Visitor, started: str) -> None:
    refused = admin.get(plan_url(hosts="host-c"), status=409)
    refused.shows("is going to update host host-c already", f'href="/rollouts/{started}"')
    empty = admin.get(plan_url(hosts="host-d"))
    empty.shows("Nothing would be done")
    for page in (refused, empty):
        page.lacks("Start this rollout")


def test_a_budget_is_told_in_words(portal: Portal) -> None:
    visitor = portal.visitor()
    for budget, said in {
        "2": "at most 2 of its VMs down at once",
        "50%": "at most 50% of its VMs down at once: 2 down at once",
    }.items():
        fleet.set_group(portal.service, OPERATOR, "pool", PolicyChange(max_unavailable=budget))
        page = visitor.get(plan_url())
        page.shows(said)
        assert "max_unavailable" not in page.text.partition("The plan")[2]
    fleet.set_group(portal.service, OPERATOR, "pool", PolicyChange(min_available=5))
    visitor.get(plan_url(), status=409).shows("the budget of group pool can never be met")


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
    page.shows('id="planned-Wave-1"', 'href="#wave-2"', 'id="wave-2"')
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
    headers = {"Authorization": f"Bearer {site.token}"}
    with ThreadPoolExecutor(1) as other:
        body = json.dumps(NEW).encode()
        first = other.submit(Visitor(site.port).ask, "POST", "/v1/rollouts/plan", body, headers)
        assert busy.wait(60)
        admin.get(plan_url(), status=503).shows("Others are planning or comparing just now")
        admin.get("/rollouts/new?hosts=host-a")
        go_on.set()
        assert first.result(20).status == 200
    admin.get(plan_url()).shows("The plan")


# Started, and watched


def test_a_rollout_is_started_from_its_plan(site: Portal, admin: Visitor) -> None:
    page = admin.get(plan_url(batch=2, reason="new kernel"))
    form = page.html[page.html.index('action="/rollouts"') :]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
    first, again = (admin.send("/rollouts", fields) for _ in range(2))
    assert first.status == again.status == 303
    assert first.location == again.location
    admin.get(first.location).shows("The rollout is started.", "Update of host-*")
    (made,) = rollouts.page(site.service, access=EVERYTHING, live=True).items
    assert (made.batch, made.reason, made.by) == (2, "new kernel", "operator:admin")
    admin.post(f"{first.location}/cancel", on=first.location)
    rollouts.advance(site.service, {})


def test_it_is_watched_by_update_domain(portal: Portal) -> None:
    admin, started = portal.visitor(), begun(portal)
    page = admin.get(f"/rollouts/{started}")
    (operation,) = queries.operations(portal.service, live=True, rollout=started).items
    page.shows(
        "Progress by update domain",
        "Update domain 0 wave 1 0 of 2 done, 1 under way, 1 skipped",
        "Update domain 1 wave 2 0 of 1 done",
        "host-a is Scheduled: it waits for approval by",
        *(f'href="/events/{event.id}"' for event in operation.events),
    )
    for event in operation.events:
        maintenance.approve(portal.service, OPERATOR, event.id)
    tick.tick(portal.service)
    admin.get(f"/rollouts/{started}").shows("host-a is Started")


def test_hosts_are_filtered_and_paged(admin: Visitor, started: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def hosts(path: str) -> list[str]:
        return re.findall(r'<tr id="host-(host-\w)">', admin.get(path).html)

    at = f"/rollouts/{started}"
    assert hosts(at) == ["host-a", "host-b", "host-c", "host-d"]
    assert hosts(f"{at}?status=Under+way") == ["host-a"]
    assert hosts(f"{at}?status=Failed") == []
    admin.get(f"{at}?status=Skipped").shows("it has no VMs")
    admin.get(f"{at}?status=lost", status=400).shows("No host can be 'lost'")
    monkeypatch.setattr(page_module, "HOSTS_SHOWN", 3)
    (following,) = re.findall(rf'href="({re.escape(at)}\?host=[^"]*)"', admin.get(at).html)
    assert hosts(following.partition("#")[0]) == ["host-d"]


def test_it_is_paused_resumed_and_cancelled(site: Portal, admin: Visitor, started: str) -> None:
    at = f"/rollouts/{started}"
    assert admin.post(f"{at}/pause", {"reason": "lunch"}, on=f"{at}/pause").location == at
    page = admin.get(at)
    page.shows("The rollout is paused", "It was paused by admin: lunch.", "How it goes about it")
    assert page.text.count("paused by") == 1
    page.lacks(f'action="{at}/pause"')
    admin.post(f"{at}/pause", on=at, status=409).shows("only a running rollout can be paused")
    admin.get(f"{at}/pause").shows("this cannot be done with it now")
    admin.post(f"{at}/resume", on=at)
    assert rollouts.show(site.service, started, EVERYTHING).status == "Running"
    admin.get(f"{at}/cancel").shows("What is only Scheduled is cancelled")
    admin.post(f"{at}/cancel", {"reason": "enough"}, on=f"{at}/cancel")
    rollouts.advance(site.service, {})
    over = admin.get(at)
    over.shows("How it ended It is over: Canceled")
    over.lacks("What is in the way", 'id="operations"')
    assert "not yet" not in over.html[over.html.index('id="facts" data-live') :]
    assert "Pause" not in re.sub(r"Pauses? (between|after)", "", over.text)


def test_hosts_that_failed_have_another_try(portal: Portal) -> None:
    admin, started = portal.visitor(), begun(portal)
    at = f"/rollouts/{started}"
    maintenance.schedule(portal.service, OPERATOR, kind=Kind.HARDWARE_FAILURE, names=["host-a"])
    rollouts.advance(portal.service, {})
    admin.get(at).shows("Paused", "1 failed", "Retry failed hosts…")
    admin.get(f"{at}/resume").shows('name="retry" value="yes" checked')
    admin.post(f"{at}/resume", {"retry": "yes"}, on=f"{at}/resume")
    assert rollouts.show(portal.service, started, EVERYTHING).progress.failed == 0


def test_a_red_gate_is_shown_with_its_output(site: Portal, admin: Visitor) -> None:
    url = "https://shop.example.com/healthy"
    made = rollouts.start(site.service, OPERATOR, request(hosts="host-a", gate=url))
    (asked,) = rollouts.advance(site.service, {})
    result = GateResult(green=False, status="503", output="<b>closed</b>", at=site.service.clock.now())
    assert rollouts.advance(site.service, {asked: result}) == []
    site.visitor(site.token_of("viewer", name="onlooker")).get(f"/rollouts/{made.id}").lacks("closed")
    admin.get(f"/rollouts/{made.id}").shows(
        f"The gate {url} is red since",
        "<code>&lt;b&gt;closed&lt;/b&gt;</code>",
        "Wave 1 waits for its gate https://shop.example.com/…",
        "Nothing of it is announced or started just now.",
    )
    rollouts.cancel(site.service, OPERATOR, made.id)
    rollouts.advance(site.service, {})


# The list


def test_live_rollouts_come_first_and_the_others_newest_first(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = portal.visitor()
    visitor.get("/rollouts").shows("No rollout is under way.", 'href="/rollouts/new"')
    made = [begun(portal, host) for host in ("host-a", "host-b", "host-c")]
    monkeypatch.setattr(page_module, "EXPLAINED", 1)
    page = visitor.get("/rollouts")
    page.shows("host-c waits: another update domain is announced", "0 of 1 done, 1 under way")
    live, _, ended = page.html.partition('id="ended"')
    assert [set(re.findall(r'id="rollout-([^"]*)"', part)) for part in (live, ended)] == [set(made), set()]
    assert page.html.count('<p class="why">') == 1
    for rollout in made:
        rollouts.cancel(portal.service, OPERATOR, rollout)
    rollouts.advance(portal.service, {})
    monkeypatch.setattr(page_module, "SHOWN", 2)
    found, path = [], "/rollouts"
    while path:
        html = visitor.get(path).html
        found.append(re.findall(r'<tr id="rollout-([^"]*)"', html))
        path = "".join(re.findall(r'href="(/rollouts\?after=[^"]*)"', html))
    assert found == [made[:0:-1], made[:1]]
    visitor.get(f"/rollouts?after={made[0]}").shows("There are no older rollouts.")


def test_what_is_not_there(admin: Visitor) -> None:
    for path in ("/rollouts/none", "/rollouts/none/cancel"):
        admin.get(path, status=404).shows("There is no rollout 'none'")
    admin.get("/rollouts/none/explode", status=404).shows("There is no page")
    admin.post("/rollouts/none/explode", on="/rollouts", status=404)


def test_a_viewer_is_offered_nothing_to_change(site: Portal, started: str) -> None:
    viewer, at = site.visitor_as("viewer"), f"/rollouts/{started}"
    page = viewer.get(at)
    page.shows("What is in the way")
    page.lacks(f'action="{at}', f'href="{at}/cancel"')
    planned = viewer.get(plan_url(hosts="host-a", kind="reboot"))
    planned.shows("To start it you need a token of the platform")
    planned.lacks("Start this rollout")
    assert site.visitor_as("tenant", "web").get("/").html.count('href="/rollouts"') == 0


# Progress, wave by wave


def wave(number: int, *domains: int, **known: int) -> WaveProgress:
    return WaveProgress(wave=number, update_domains=list(domains), progress=Progress(**known or {"waiting": 1}))


def test_a_bar_has_what_is_over_first() -> None:
    found = meter(Progress(waiting=1, under_way=1, done=4, failed=1, skipped=1))
    assert found.parts == [(0, 50, "done"), (50, 12.5, "failed"), (62.5, 12.5, "under_way"), (87.5, 12.5, "skipped")]
    assert found.text == "4 of 8 done, 1 under way, 1 failed, 1 skipped"
    assert meter(Progress()).parts == meter(Progress(waiting=3)).parts == []
    thirds = meter(Progress(done=1, failed=1, skipped=1)).parts
    assert sum(width for _, width, _ in thirds) == pytest.approx(100, abs=0.02)


@pytest.mark.parametrize(
    ("waves", "titles"),
    [
        ([wave(1, 0), wave(2, 1)], [("Update domain 0", "wave 1"), ("Update domain 1", "wave 2")]),
        ([wave(1, 0, 2), wave(2, 1)], [("Wave 1", "update domains 0 and 2"), ("Wave 2", "update domain 1")]),
        ([wave(1, 0), wave(2, 0)], [("Wave 1", "update domain 0"), ("Wave 2", "update domain 0")]),
        ([wave(1, *range(5), 7)], [("Wave 1", "update domains 0 to 4 and 7")]),
        ([wave(1)], [("Wave 1", "")]),
    ],
)
def test_waves_are_named_by_their_update_domains(waves: Sequence[WaveProgress], titles: list[tuple[str, str]]) -> None:
    assert [(line.title, line.detail) for line in lines(waves)] == titles


def test_of_many_waves_those_are_shown_that_matter_now() -> None:
    over = [wave(number, done=3) for number in range(1, 41)]
    later = [wave(number, waiting=2) for number in range(42, 101)]
    found = lines([*over, wave(41, failed=1), *later])
    assert [line.title for line in (*found[:2], found[-1])] == ["Waves 1 to 40", "Wave 41", "Waves 61 to 100"]
    assert (found[0].meter.text, found[-1].meter.text) == ("120 of 120 done", "0 of 80 done")
    assert len(found) == MOST_WAVES + 2
    assert sum(line.hosts for line in found) == 120 + 1 + 59 * 2
    assert [line.title for line in lines(over)] == ["Waves 1 to 40"]
