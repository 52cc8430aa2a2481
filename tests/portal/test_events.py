"""The page of one event: why it waits, who approved, what may be done, its life; and operations."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.portal.running import Answer, Portal, running
from tests.service.rig import ManualClock

from forenotice.core import selectors
from forenotice.core.driver_calls import Finished, NotYet
from forenotice.core.lifecycle import StartRequests
from forenotice.core.operations import Kind
from forenotice.core.roles import Role, access
from forenotice.core.timing import Retries, Timing
from forenotice.portal import renderer
from forenotice.portal.pages import events
from forenotice.portal.pages.events import Moments, draw_milestones
from forenotice.service import calls, maintenance, overview, queries
from forenotice.service.calls import Call
from forenotice.service.guests import Guests
from forenotice.service.tick import tick

TENANT = Call(actor="tenant:shop", token_id="shop", access=access(Role.TENANT, "group:web"))
NO_EVENT = "0B4A7C10-0000-4000-8000-000000000000"
ZERO = datetime(2026, 1, 1, tzinfo=UTC)


def scheduled(portal: Portal, kind: Kind = Kind.RESTART, name: str = "web-0", call: Call = calls.SYSTEM) -> Any:
    [operation] = maintenance.schedule(portal.service, call, kind=kind, names=[name], reason="a test").operations
    return operation


def event_of(portal: Portal, kind: Kind = Kind.RESTART, name: str = "web-0", call: Call = calls.SYSTEM) -> str:
    return str(scheduled(portal, kind, name, call).events[0].id)


def forms_on(page: Answer) -> set[str]:
    return set(re.findall(r'<form method="post" action="([^"]*)"', page.html)) - {"/sign-out"}


def milestones(page: Answer) -> list[str]:
    return re.findall(r'<text class="name[^>]*>([^<]*)', page.html)


def test_it_says_why_it_waits_and_what_can_be_done(portal: Portal) -> None:
    operation = scheduled(portal)
    event = operation.events[0].id
    page = portal.visitor().get(f"/events/{event.lower()}")
    page.shows(
        "<h1>Reboot of web-0</h1>",
        f'href="/events/{event}/cancel"',
        "Inside web-0, or in any other VM of web, this line",
        "'http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'",
        "a test",
        "Reboot of web-0 was announced",
    )
    assert f'-H Metadata:true -d \'{{"StartRequests":[{{"EventId":"{event}"}}]}}\'' in page.text
    state = re.sub(r"<[^>]*>", "", page.html.partition('id="state"')[2].partition("</section>")[0])
    assert state.count("It waits for approval by web (web-0), until") == state.count("for approval") == 1
    page.lacks(f"/operations/{operation.id}")
    assert forms_on(page) == {f"/events/{event}/approve"}
    told = re.search(r'id="told".*?<code>(.*?)</code>', page.html, re.S)
    assert told
    document = json.loads(told[1].replace("&#34;", '"'))
    assert (document["EventId"], document["EventType"], document["Resources"]) == (event, "Reboot", ["web-0"])


def test_on_a_laptop_each_vm_approves_from_an_address_of_its_own(tmp_path: Path) -> None:
    with running(tmp_path, guests_at="http://127.0.0.1:8254") as portal:
        portal.visitor().get(f"/events/{event_of(portal)}").shows(
            "On this machine, speaking as web-0, this line tells that it is ready: curl --interface 127.1.0.10",
            "'http://127.0.0.1:8254/metadata/scheduledevents?api-version=2020-07-01'",
        )


def test_it_is_approved_from_the_page(portal: Portal) -> None:
    visitor, event = portal.visitor(), event_of(portal)
    answer = visitor.post(f"/events/{event}/approve", {"from": ""}, on=f"/events/{event}")
    assert answer.location == f"/events/{event}"
    assert queries.event(portal.service, event).approved_by == "operator:admin"
    page = visitor.get(answer.location)
    page.shows("Approved: Reboot of web-0.", "It is approved, and waits", "by operator admin in its guests' place")
    assert forms_on(page) == set()
    over = event_of(portal, Kind.RESTART, "db")
    maintenance.cancel_event(portal.service, calls.SYSTEM, over)
    visitor.post(f"/events/{over}/approve", on=f"/events/{over}", status=409).shows("is over: Canceled")


def test_it_leads_back_to_a_page_of_ours_only(portal: Portal) -> None:
    visitor, event = portal.visitor(), event_of(portal)
    token = visitor.hidden(f"/events/{event}")["form_token"]
    for back, expected in {
        "/": "/",
        "/vms/web-0?version=2019-01-01": "/vms/web-0?version=2019-01-01",
        "//elsewhere.example/": "",
        "/\\elsewhere.example": "",
        "https://elsewhere.example/": "",
        "javascript:alert(1)": "",
        "vms/web-0": "",
        "/\r\nSet-Cookie: a=b": "",
        "": "",
    }.items():
        answer = visitor.send(f"/events/{event}/approve", {"form_token": token, "from": back})
        assert (answer.status, answer.location) == (303, expected or f"/events/{event}"), back
        asked = visitor.get(f"/events/{event}/cancel?{urlencode({'from': back})}").html
        assert set(re.findall(r'class="button" href="([^"]*)"', asked)) == {expected or f"/events/{event}"}, back


def test_cancelling_asks_first(portal: Portal) -> None:
    visitor = portal.visitor()
    operation = scheduled(portal, Kind.HOST_UPDATE, "host-b")
    event = operation.events[0].id
    asked = visitor.get(f"/events/{event}/cancel?from=/")
    asked.shows("The whole operation is cancelled: host update on host-b, with its 3 events.")
    assert queries.operation(portal.service, operation.id).status == "Scheduled"
    sent = {"from": "/", "reason": "not today"}
    assert visitor.post(f"/events/{event}/cancel", sent, on=f"/events/{event}/cancel?from=/").location == "/"
    assert queries.operation(portal.service, operation.id).status == "Canceled"
    visitor.get(f"/events/{event}").shows(
        "It is over: cancelled", "What next?", "“not today”", "Nothing was done to", "from the announcement to the end"
    )
    again = visitor.post(f"/events/{event}/cancel", sent, on="/", status=409)
    again.shows("only what is Planned or Scheduled can be cancelled")
    page = visitor.get(f"/events/{event}/cancel")
    page.shows("only what is Scheduled can be cancelled")
    page.lacks('<button class="danger">')


def test_an_operation_over_several_scopes(portal: Portal) -> None:
    operation = scheduled(portal, Kind.HOST_UPDATE, "host-b")
    by_scope = {each.scope: each.id for each in operation.events}
    both = portal.visitor(portal.token_of("tenant", "group:web,group:pool", "of-both"))
    page = both.get(f"/operations/{operation.id}")
    page.shows("an approval that is not yours")
    assert all(by_scope[key] in page.html for key in ("group:web", "group:pool"))
    page.lacks(by_scope["vm:db"], "/cancel", " db")
    Guests(portal.service).approve([StartRequests(vm="db", scope="vm:db", event_ids=(by_scope["vm:db"],))])
    visitor, tenant = portal.visitor(), portal.visitor_as("tenant", "group:web")
    page = visitor.get(f"/events/{by_scope['group:web']}")
    approvals = page.html.partition('id="approvals"')[2].partition("</section>")[0]
    assert set(re.findall(r'id="approval-([^"]*)"', approvals)) == set(by_scope.values())
    assert approvals.count("not yet") == 2
    assert "by its guest db" in approvals
    page.shows("db : The event was approved by its guest db.")
    own = tenant.get(f"/events/{by_scope['group:web']}")
    own.lacks(by_scope["vm:db"], by_scope["group:pool"], "guest db")
    assert "pool" not in own.text.lower()

    page = visitor.get(f"/operations/{operation.id}")
    assert re.search(r"<h1>Host update of [^<]*db[^<]*</h1>", page.html)
    assert set(by_scope.values()) == set(re.findall(r'href="/events/([^"/]*)"', page.html))
    for event in by_scope.values():
        visitor.get(f"/events/{event}").shows(f'href="/operations/{operation.id}"')
    [cancel] = re.findall(r'href="(/events/[^"]*/cancel[^"]*)"', page.html)
    visitor.get(cancel).shows(f'name="from" value="/operations/{operation.id}"')
    # One with one event is that event.
    location = tenant.get(f"/operations/{operation.id}", status=303).location
    assert location == f"/events/{by_scope['group:web']}"


def test_its_life_to_the_end(tmp_path: Path) -> None:
    clock = ManualClock()
    with running(tmp_path, clock=clock) as portal:
        visitor, event = portal.visitor(), event_of(portal)
        assert milestones(visitor.get(f"/events/{event}")) == ["Announced", "Approval", "NotBefore", "Start", "Done"]
        clock.advance(seconds=30)
        Guests(portal.service).approve([StartRequests(vm="web-0", scope="group:web", event_ids=(event,))])
        clock.advance(seconds=10)
        [task] = tick(portal.service).tasks
        page = visitor.get(f"/events/{event}")
        page.shows("It is happening now")
        assert milestones(page) == ["Announced", "Approved", "Started", "Done"]
        page.lacks(f'href="/events/{event}/cancel"')
        clock.advance(minutes=1)
        done = task, Finished(done=("web-0",), failures={})
        tick(portal.service, [done])
        page = visitor.get(f"/events/{event}")
        page.shows(
            "It is over: done",
            "It took 1 min 40 s from the announcement to the end: 40 s of notice, then 1 min of work.",
            "It was approved 30 s after the announcement.",
            "What next?",
            "it is gone from their document",
        )
        assert milestones(page) == ["Announced", "Approved", "Started", "Done"]


def test_a_failure_says_what_failed(tmp_path: Path) -> None:
    clock = ManualClock()
    with running(tmp_path, clock=clock, timing=Timing(retries=Retries(tries=1))) as portal:
        event = event_of(portal)
        maintenance.approve(portal.service, calls.SYSTEM, event)
        [task] = tick(portal.service).tasks
        clock.advance(minutes=1)
        failed = Finished(failures={"web-0": "no <answer>"})
        tick(portal.service, [(task, failed)])
        page = portal.visitor().get(f"/events/{event}")
        page.shows("It is over: it failed")
        assert "Without success: web-0 (no <answer>)." in page.text
        assert "<answer>" not in page.html
        tenant = portal.visitor_as("tenant", "group:web").get(f"/events/{event}")
        tenant.shows("Without success: web-0 (the platform could not do it).")
        for seen, why in ((None, "no <answer>"), (selectors.of_scopes("group:web"), "the platform could not do it")):
            for said in (
                queries.explain_event(portal.service, event, seen),
                queries.explain_operation(portal.service, task.operation, seen),
            ):
                assert said.sentence.startswith("It is over: Failed at ")
                assert said.sentence.endswith(f" Without success: web-0 ({why}).")


def test_what_the_driver_waits_for(portal: Portal) -> None:
    operation = scheduled(portal, Kind.HARDWARE_FAILURE, "host-c")
    event = operation.events[0]
    [task] = tick(portal.service).tasks
    reason = "host-c does not answer, and no <fence> is set"
    waits = NotYet(again_at=task.started_at + timedelta(hours=1), waiting=dict.fromkeys(task.vms, reason))
    tick(portal.service, [(task, waits)])
    visitor = portal.visitor()
    for path in (f"/operations/{operation.id}", f"/events/{event.id}", f"/history?operation={operation.id}"):
        page = visitor.get(path)
        assert f"The driver waits: {reason} (" in page.text
        assert "<fence>" not in page.html
    tenant = portal.visitor_as("tenant", event.scope).get(f"/events/{event.id}")
    tenant.shows("It waits for the driver to carry it out.")
    tenant.lacks("fence")


def test_a_hardware_failure_needs_no_approval(portal: Portal) -> None:
    operation = scheduled(portal, Kind.HARDWARE_FAILURE, "host-c")
    page = portal.visitor().get(f"/events/{operation.events[0].id}")
    page.shows("needs no approval")
    page.lacks("approved by nobody")


def test_a_viewer_has_no_buttons(portal: Portal) -> None:
    page = portal.visitor_as("viewer").get(f"/events/{event_of(portal)}")
    assert forms_on(page) == set()
    page.lacks("/cancel")
    page.shows("your role may not")


def test_another_tenants_event_is_not_there(portal: Portal) -> None:
    tenant, operation = portal.visitor_as("tenant", "group:web"), scheduled(portal, Kind.RESTART, "db")
    event = operation.events[0].id
    nothing = tenant.get(f"/events/{NO_EVENT}", status=404).text
    found = tenant.get(f"/events/{event}", status=404)
    assert found.text.replace(event, "") == nothing.replace(NO_EVENT, "")
    assert "db" not in found.text.replace(event, "")
    tenant.get(f"/events/{event}/cancel", status=404)
    tenant.get(f"/operations/{operation.id}", status=404)
    for verb in ("approve", "cancel"):
        tenant.post(f"/events/{event}/{verb}", status=404)
    left = queries.event(portal.service, event)
    assert (left.status, left.approved_by) == ("Scheduled", None)


def test_a_tenant_cancels_only_what_tenants_asked_for(portal: Portal) -> None:
    tenant, platforms = portal.visitor_as("tenant", "group:web"), event_of(portal)
    page = tenant.get(f"/events/{platforms}")
    assert forms_on(page) == {f"/events/{platforms}/approve"}
    page.lacks(f"/events/{platforms}/cancel")
    asked = tenant.get(f"/events/{platforms}/cancel")
    asked.shows("You may not cancel this")
    assert forms_on(asked) == set()
    tenant.post(f"/events/{platforms}/cancel", on=f"/events/{platforms}", status=403)
    own = event_of(portal, Kind.RESTART, "web-1", TENANT)
    tenant.get(f"/events/{own}").shows(f'href="/events/{own}/cancel')
    tenant.post(f"/events/{own}/cancel", on=f"/events/{own}/cancel")
    assert [queries.event(portal.service, each).status for each in (platforms, own)] == ["Scheduled", "Canceled"]


def test_a_tenant_is_told_nothing_of_the_operator(portal: Portal) -> None:
    maintenance.approve(portal.service, Call(actor="operator:carla", token_id="c"), event := event_of(portal))
    tenant = portal.visitor_as("tenant", "group:web")
    page = tenant.get(f"/events/{event}")
    page.shows("by an operator in its guests' place")
    page.lacks("carla", "a test", 'href="/hosts/')
    for path in ("/vms/web-0", "/groups/web"):
        page = tenant.get(path)
        page.shows("was approved")
        page.lacks("carla", "a test")


@pytest.mark.parametrize("wanted", ["nothing", "a" * 65, "..%5c", NO_EVENT])
@pytest.mark.parametrize("noun", ["events", "operations"])
def test_what_is_not_there_says_where_to_look(unchanged: Portal, noun: str, wanted: str) -> None:
    page = unchanged.visitor().get(f"/{noun}/{wanted}", status=404)
    page.shows(f"There is no such {noun[:-1]}", 'href="/history"')


def test_a_long_life_has_its_beginning_and_its_end(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST_ENTRIES", 2)
    operation = scheduled(portal, Kind.HOST_UPDATE, "host-b")
    maintenance.cancel_operation(portal.service, calls.SYSTEM, operation.id)
    found = overview.of_event(portal.service, operation.events[1].id, calls.SYSTEM.access).entries
    actions = ["operation.scheduled", "event.scheduled", "event.canceled", "operation.canceled"]
    assert [entry.action for entry in found] == actions
    assert [entry.seq for entry in found] == sorted(entry.seq for entry in found)


def test_the_parts_of_what_it_took_add_up() -> None:
    """As they are shown: 0.8 s and 2.6 s are 3 s in all."""
    took = events._took(_moments("Completed", None, 0.8, 3.4))
    assert [renderer.span(took[part]) for part in ("all", "notice", "work")] == ["3 s", "1 s", "2 s"]


# Milestones, in seconds after the announcement


def _moments(status: str, approved: float | None, started: float | None, ended: float | None) -> Moments:
    times = {"not_before": 900, "approved": approved, "started": started, "ended": ended}
    known: Any = {name: ZERO + timedelta(seconds=at) for name, at in times.items() if at is not None}
    return Moments(status=status, announced=ZERO, **known)


@pytest.mark.parametrize(
    ("moments", "now", "names", "past"),
    [
        (("Scheduled", None, None, None), 10, "Announced Approval NotBefore Start Done", 1),
        (("Scheduled", 5, None, None), 10, "Announced Approved NotBefore Start Done", 2),
        # NotBefore has passed without approval, and something else is in the way.
        (("Scheduled", None, None, None), 1000, "Announced NotBefore Start Done", 2),
        (("Scheduled", 950, None, None), 1000, "Announced NotBefore Approved Start Done", 3),
        # Approved early: NotBefore says nothing any more.
        (("Started", 5, 6, None), 10, "Announced Approved Started Done", 3),
        (("Started", None, 900, None), 901, "Announced NotBefore Started Done", 3),
        (("Completed", 5, 6, 30), 2000, "Announced Approved Started Done", 4),
        (("Completed", None, 905, 930), 2000, "Announced NotBefore Started Done", 4),
        (("Canceled", None, None, 30), 2000, "Announced Cancelled", 2),
        (("Failed", 0, 0, 30), 2000, "Announced Approved Started Failed", 4),
    ],
)
def test_what_was_and_what_is_ahead(moments: tuple[Any, ...], now: float, names: str, past: int) -> None:
    drawn = draw_milestones(_moments(*moments), ZERO + timedelta(seconds=now))
    assert [point.name for point in drawn.points] == names.split()
    assert [point.past for point in drawn.points] == [number < past for number in range(len(drawn.points))]
    places = [point.x for point in drawn.points]
    assert places == sorted(places)
    assert 0 < places[0] < places[-1] < 100
    assert (drawn.now is None) == (past == len(places))
    assert drawn.now is None or places[past - 1] < drawn.now < places[past]


def test_how_long_lies_between_milestones_and_how_near_the_next_is() -> None:
    drawn = draw_milestones(_moments("Completed", 5, 65, 95), ZERO + timedelta(hours=1))
    assert [point.since and point.since.total_seconds() for point in drawn.points] == [None, 5, 60, 30]
    waiting = _moments("Scheduled", 0, None, None)
    early, late = (draw_milestones(waiting, ZERO + timedelta(seconds=seconds)).now for seconds in (100, 800))
    assert early is not None
    assert late is not None
    assert early < late
