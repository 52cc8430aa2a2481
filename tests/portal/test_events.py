"""The page of one event: why it waits, who approved, what may be done, its life; and operations."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.portal.running import Answer, Portal, Visitor, running
from tests.service.rig import ManualClock

from forenotice.core.driver_calls import Finished
from forenotice.core.lifecycle import StartRequests
from forenotice.core.operations import Kind
from forenotice.core.roles import Role, access
from forenotice.core.timing import Retries, Timing
from forenotice.portal import renderer
from forenotice.portal.pages import events
from forenotice.portal.pages.events import Moments
from forenotice.service import calls, maintenance, overview, queries
from forenotice.service.calls import Call
from forenotice.service.guests import Guests
from forenotice.service.tick import Report, tick

TENANT = Call(actor="tenant:shop", token_id="shop", access=access(Role.TENANT, "group:web"))


def scheduled(portal: Portal, kind: Kind = Kind.RESTART, name: str = "web-0", call: Call = calls.SYSTEM) -> Any:
    [operation] = maintenance.schedule(portal.service, call, kind=kind, names=[name], reason="a test").operations
    return operation


def event_of(portal: Portal, kind: Kind = Kind.RESTART, name: str = "web-0", call: Call = calls.SYSTEM) -> str:
    return str(scheduled(portal, kind, name, call).events[0].id)


def forms_on(page: str) -> set[str]:
    return set(re.findall(r'<form method="post" action="([^"]*)"', page)) - {"/sign-out"}


def test_it_says_why_it_waits_and_what_can_be_done(portal: Portal) -> None:
    operation = scheduled(portal)
    event = operation.events[0].id
    page = portal.visitor().get(f"/events/{event}")
    assert re.search(r"<h1>Reboot of web-0</h1>", page.html)
    state = re.sub(r"<[^>]*>", "", page.html.partition('id="state"')[2].partition("</section>")[0])
    assert state.count("It waits for approval by web (web-0), until") == state.count("for approval") == 1
    assert f"/operations/{operation.id}" not in page.html
    assert forms_on(page.html) == {f"/events/{event}/approve"}
    assert f'href="/events/{event}/cancel"' in page.html
    assert f'-H Metadata:true -d \'{{"StartRequests":[{{"EventId":"{event}"}}]}}\'' in page.text
    assert "Inside web-0, or in any other VM of web, this line" in page.text
    assert "'http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'" in page.text
    assert "a test" in page.text
    assert "Reboot of web-0 was announced" in page.text
    told = re.search(r'id="told".*?<code>(.*?)</code>', page.html, re.S)
    assert told
    document = json.loads(told[1].replace("&#34;", '"'))
    assert (document["EventId"], document["EventType"], document["Resources"]) == (event, "Reboot", ["web-0"])


def test_it_says_how_a_guest_approves(tmp_path: Path) -> None:
    """In a VM at the address that is always the same; on a laptop each VM has an address of its own to speak from."""
    with running(tmp_path, guests_at="http://127.0.0.1:8254") as portal:
        text = portal.visitor().get(f"/events/{event_of(portal)}").text
        assert (
            "On this machine, speaking as web-0, this line tells that it is ready: curl --interface 127.1.0.10" in text
        )
        assert "'http://127.0.0.1:8254/metadata/scheduledevents?api-version=2020-07-01'" in text


def test_its_id_is_read_in_any_case(portal: Portal) -> None:
    event = event_of(portal)
    assert event in portal.visitor().get(f"/events/{event.lower()}").html


def test_it_is_approved_from_the_page(portal: Portal) -> None:
    visitor, event = portal.visitor(), event_of(portal)
    answer = visitor.post(f"/events/{event}/approve", {"from": ""}, on=f"/events/{event}")
    assert answer.location == f"/events/{event}"
    assert queries.event(portal.service, event).approved_by == "operator:admin"
    page = visitor.get(answer.location)
    assert "Approved: Reboot of web-0." in page.text
    assert "It is approved, and waits" in page.text
    assert "by operator admin in its guests' place" in page.text
    assert forms_on(page.html) == set()


def test_approving_what_is_over_is_refused_in_words(portal: Portal) -> None:
    visitor, event = portal.visitor(), event_of(portal)
    maintenance.cancel_event(portal.service, calls.SYSTEM, event)
    answer = visitor.post(f"/events/{event}/approve", on=f"/events/{event}", status=409)
    assert "is over: Canceled" in answer.text


def test_one_goes_back_to_a_page_of_ours_only(portal: Portal) -> None:
    visitor, event = portal.visitor(), event_of(portal)
    page = visitor.get(f"/events/{event}").html
    token = re.search(r'name="form_token" value="([^"]*)"', page)
    assert token
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
        answer = visitor.send(f"/events/{event}/approve", {"form_token": token[1], "from": back})
        assert (answer.status, answer.location) == (303, expected or f"/events/{event}"), back
        asked = visitor.get(f"/events/{event}/cancel?{urlencode({'from': back})}").html
        assert set(re.findall(r'class="button" href="([^"]*)"', asked)) == {expected or f"/events/{event}"}, back


def test_cancelling_asks_first(portal: Portal) -> None:
    visitor = portal.visitor()
    operation = scheduled(portal, Kind.HOST_UPDATE, "host-b")
    assert len(operation.events) == 3
    event = operation.events[0].id
    asked = visitor.get(f"/events/{event}/cancel?from=/")
    assert "The whole operation is cancelled: host update on host-b, with its 3 events." in asked.text
    assert queries.operation(portal.service, operation.id).status == "Scheduled"
    sent = {"from": "/", "reason": "not today"}
    answer = visitor.post(f"/events/{event}/cancel", sent, on=f"/events/{event}/cancel?from=/")
    assert answer.location == "/"
    assert queries.operation(portal.service, operation.id).status == "Canceled"
    page = visitor.get(f"/events/{event}")
    assert "It is over: cancelled" in page.text
    assert "What next?" in page.text
    assert "“not today”" in page.text
    again = visitor.post(f"/events/{event}/cancel", sent, on="/", status=409)
    assert "only what is Planned or Scheduled can be cancelled" in again.text
    assert "only what is Scheduled can be cancelled" in visitor.get(f"/events/{event}/cancel").text
    assert '<button class="danger">' not in visitor.get(f"/events/{event}/cancel").html


def test_an_operation_over_several_scopes_shows_who_has_approved(portal: Portal) -> None:
    operation = scheduled(portal, Kind.HOST_UPDATE, "host-b")
    by_scope = {each.scope: each.id for each in operation.events}
    Guests(portal.service).approve([StartRequests(vm="db", scope="vm:db", event_ids=(by_scope["vm:db"],))])
    page = portal.visitor().get(f"/events/{by_scope['group:web']}")
    approvals = page.html.partition('id="approvals"')[2].partition("</section>")[0]
    assert set(re.findall(r'id="approval-([^"]*)"', approvals)) == set(by_scope.values())
    assert approvals.count("not yet") == 2
    assert "by its guest db" in approvals
    assert "db : The event was approved by its guest db." in page.text
    tenant = portal.visitor_as("tenant", "group:web").get(f"/events/{by_scope['group:web']}")
    for others in ("vm:db", "group:pool"):
        assert by_scope[others] not in tenant.html
    assert "pool" not in tenant.text.lower()
    assert "guest db" not in tenant.text


def test_its_life_to_the_end(tmp_path: Path) -> None:
    clock = ManualClock()
    with running(tmp_path, clock=clock) as portal:
        visitor, event = portal.visitor(), event_of(portal)
        assert _life(visitor.get(f"/events/{event}")) == ["Announced", "Approval", "NotBefore", "Start", "Done"]
        clock.advance(seconds=30)
        Guests(portal.service).approve([StartRequests(vm="web-0", scope="group:web", event_ids=(event,))])
        assert "It is approved, and waits" in visitor.get(f"/events/{event}").text
        clock.advance(seconds=10)
        [task] = tick(portal.service).tasks
        page = visitor.get(f"/events/{event}")
        assert "It is happening now" in page.text
        assert _life(page) == ["Announced", "Approved", "Started", "Done"]
        assert f'href="/events/{event}/cancel"' not in page.html

        clock.advance(minutes=1)
        done = Report(operation=task.operation, attempt=task.attempt, outcome=Finished(done=("web-0",), failures={}))
        tick(portal.service, [done])
        page = visitor.get(f"/events/{event}")
        assert "It is over: done" in page.text
        assert "It took 1 min 40 s from the announcement to the end: 40 s of notice, then 1 min of work." in page.text
        assert "It was approved 30 s after the announcement." in page.text
        assert "What next?" in page.text
        assert "it is gone from their document" in page.text
        assert _life(page) == ["Announced", "Approved", "Started", "Done"]


def test_a_failure_says_what_failed(tmp_path: Path) -> None:
    clock = ManualClock()
    timing = Timing(retries=Retries(tries=1))
    with running(tmp_path, clock=clock, timing=timing) as portal:
        event = event_of(portal)
        maintenance.approve(portal.service, calls.SYSTEM, event)
        [task] = tick(portal.service).tasks
        clock.advance(minutes=1)
        failed = Finished(failures={"web-0": "no <answer>"})
        tick(portal.service, [Report(operation=task.operation, attempt=task.attempt, outcome=failed)])
        page = portal.visitor().get(f"/events/{event}")
        assert "It is over: it failed" in page.text
        assert "Without success: web-0 (no <answer>)." in page.text
        assert "<answer>" not in page.html
        tenant = portal.visitor_as("tenant", "group:web").get(f"/events/{event}")
        assert "Without success: web-0 (the platform could not do it)." in tenant.text


def _life(page: Answer) -> list[str]:
    return re.findall(r'<text class="name[^>]*>([^<]*)', page.html)


def test_those_who_only_look_have_no_buttons(portal: Portal) -> None:
    viewer, event = portal.visitor_as("viewer"), event_of(portal)
    page = viewer.get(f"/events/{event}")
    assert forms_on(page.html) == set()
    assert "/cancel" not in page.html
    assert "your role may not" in page.text
    for path in (f"/events/{event}/approve", f"/events/{event}/cancel"):
        viewer.post(path, on=f"/events/{event}", status=403)
    viewer.get(f"/events/{event}/cancel", status=403)
    assert queries.event(portal.service, event).approved_by is None


class TestTenant:
    @pytest.fixture
    def tenant(self, portal: Portal) -> Visitor:
        return portal.visitor_as("tenant", "group:web")

    def test_anothers_event_is_not_there(self, portal: Portal, tenant: Visitor) -> None:
        operation = scheduled(portal, Kind.RESTART, "db")
        event = operation.events[0].id
        nothing = tenant.get("/events/0B4A7C10-0000-4000-8000-000000000000", status=404).text
        found = tenant.get(f"/events/{event}", status=404)
        assert found.text.replace(event, "") == nothing.replace("0B4A7C10-0000-4000-8000-000000000000", "")
        assert "db" not in found.text.replace(event, "")
        tenant.get(f"/events/{event}/cancel", status=404)
        tenant.get(f"/operations/{operation.id}", status=404)
        for verb in ("approve", "cancel"):
            tenant.post(f"/events/{event}/{verb}", status=404)
        assert queries.event(portal.service, event).status == "Scheduled"
        assert queries.event(portal.service, event).approved_by is None

    def test_cancels_only_what_tenants_asked_for(self, portal: Portal, tenant: Visitor) -> None:
        platforms = event_of(portal, Kind.RESTART, "web-0")
        page = tenant.get(f"/events/{platforms}")
        assert forms_on(page.html) == {f"/events/{platforms}/approve"}
        assert f"/events/{platforms}/cancel" not in page.html
        asked = tenant.get(f"/events/{platforms}/cancel")
        assert "You may not cancel this" in asked.text
        assert forms_on(asked.html) == set()
        tenant.post(f"/events/{platforms}/cancel", on=f"/events/{platforms}", status=403)
        assert queries.event(portal.service, platforms).status == "Scheduled"

        own = event_of(portal, Kind.RESTART, "web-1", TENANT)
        assert f"/events/{own}/cancel" in tenant.get(f"/events/{own}").html
        tenant.post(f"/events/{own}/cancel", on=f"/events/{own}/cancel")
        assert queries.event(portal.service, own).status == "Canceled"

    def test_is_told_nothing_of_the_operator(self, portal: Portal, tenant: Visitor) -> None:
        maintenance.approve(portal.service, Call(actor="operator:carla", token_id="c"), event := event_of(portal))
        page = tenant.get(f"/events/{event}")
        assert "by an operator in its guests' place" in page.text
        assert "carla" not in page.text
        assert "a test" not in page.text
        assert 'href="/hosts/' not in page.html


@pytest.mark.parametrize("wanted", ["nothing", "a" * 65, "..%5c", "0B4A7C10-0000-4000-8000-000000000000"])
@pytest.mark.parametrize("noun", ["events", "operations"])
def test_what_is_not_there_says_where_to_look(unchanged: Portal, noun: str, wanted: str) -> None:
    page = unchanged.visitor().get(f"/{noun}/{wanted}", status=404)
    assert f"There is no such {noun[:-1]}" in page.text
    assert 'href="/history"' in page.html


def test_an_operation_with_one_event_is_that_event(portal: Portal) -> None:
    operation = scheduled(portal)
    answer = portal.visitor().get(f"/operations/{operation.id}", status=303)
    assert answer.location == f"/events/{operation.events[0].id}"


def test_an_operation_with_several_lists_them(portal: Portal) -> None:
    operation = scheduled(portal, Kind.HOST_UPDATE, "host-b")
    visitor = portal.visitor()
    page = visitor.get(f"/operations/{operation.id}")
    assert re.search(r"<h1>Host update of [^<]*db[^<]*</h1>", page.html)
    assert {each.id for each in operation.events} == set(re.findall(r'href="/events/([^"/]*)"', page.html))
    for each in operation.events:
        assert f'href="/operations/{operation.id}"' in visitor.get(f"/events/{each.id}").html
    [cancel] = re.findall(r'href="(/events/[^"]*/cancel[^"]*)"', page.html)
    assert f'name="from" value="/operations/{operation.id}"' in visitor.get(cancel).html
    tenant = portal.visitor_as("tenant", "group:web")
    [own] = [each.id for each in operation.events if each.scope == "group:web"]
    assert tenant.get(f"/operations/{operation.id}", status=303).location == f"/events/{own}"


def test_a_failure_needs_no_approval(portal: Portal) -> None:
    operation = scheduled(portal, Kind.HARDWARE_FAILURE, "host-c")
    page = portal.visitor().get(f"/events/{operation.events[0].id}").text
    assert "needs no approval" in page
    assert "approved by nobody" not in page


def test_a_form_of_somebody_else_is_refused(portal: Portal) -> None:
    visitor, event = portal.visitor(), event_of(portal)
    assert visitor.send(f"/events/{event}/approve", {"form_token": "wrong"}).status == 403
    assert queries.event(portal.service, event).approved_by is None


def test_a_long_life_has_its_beginning_and_its_end(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST_ENTRIES", 2)
    operation = scheduled(portal, Kind.HOST_UPDATE, "host-b")
    event = operation.events[1].id
    maintenance.cancel_operation(portal.service, calls.SYSTEM, operation.id)
    found = overview.of_event(portal.service, event, calls.SYSTEM.access).entries
    assert [entry.action for entry in found] == [
        "operation.scheduled",
        "event.scheduled",
        "event.canceled",
        "operation.canceled",
    ]
    assert [entry.seq for entry in found] == sorted(entry.seq for entry in found)


def test_how_long_it_takes_is_told_when_it_is_over(portal: Portal) -> None:
    event = event_of(portal)
    maintenance.cancel_event(portal.service, calls.SYSTEM, event)
    assert "Nothing was done to web-0" in (text := portal.visitor().get(f"/events/{event}").text)
    assert "from the announcement to the end" in text


def test_the_parts_of_what_it_took_add_up() -> None:
    """As they are shown: 0.8 s and 2.6 s are 3 s in all."""
    at = ManualClock().now()
    moments = Moments(
        status="Completed",
        announced=at,
        not_before=at,
        started=at + timedelta(seconds=0.8),
        ended=at + timedelta(seconds=3.4),
    )
    took = events._took(moments)
    assert [renderer.span(took[part]) for part in ("all", "notice", "work")] == ["3 s", "1 s", "2 s"]
