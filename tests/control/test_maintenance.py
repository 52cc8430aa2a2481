"""Operations, events and results of drivers, over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import get_args

import msgspec
import pytest
from tests.control.running import Control

from forenotice.core import roles
from forenotice.core.operations import OF_EVENTS
from forenotice.core.timing import Timing
from forenotice.drivers.call_queue import CallQueue, CallTerms, DriverChoice
from forenotice.drivers.registry import SimulatedDriver
from forenotice.service import results, tick
from forenotice.views.base import EventStatus, Page
from forenotice.views.history import Entry
from forenotice.views.maintenance import Event, EventExplanation, Operation, Operations


def test_a_restart_is_announced_explained_approved_and_journalled(fleet: Control) -> None:
    asked = fleet.ask("POST", "/v1/operations", {"kind": "restart", "names": ["web-0"], "reason": "new kernel"})
    assert asked.status == 201
    msgspec.convert(asked.json, type=Operations)
    [operation] = asked.json["operations"]
    [event] = operation["events"]
    assert (event["type"], event["source"], event["status"]) == ("Reboot", "User", "Scheduled")
    notice = datetime.fromisoformat(event["not_before"]) - datetime.now(UTC)
    assert timedelta(minutes=14) < notice < timedelta(minutes=16)
    assert (operation["by"], operation["reason"]) == ("operator:admin", "new kernel")

    assert fleet.get(f"/v1/operations/{operation['id']}") == operation
    assert fleet.get(f"/v1/operations/{operation['id'].upper()}") == operation
    of_it = [fleet.get(f"/v1/history?operation={each}") for each in (operation["id"], operation["id"].upper())]
    assert of_it[0] == of_it[1]
    assert of_it[0]["items"]
    assert fleet.get(f"/v1/events/{event['id'].lower()}") == event
    assert fleet.get("/v1/events?group=web&live=true")["items"] == [event]
    assert fleet.get("/v1/events?vm=db")["items"] == []
    assert fleet.get("/v1/operations?live=true&host=host-a&kind=restart")["items"] == [operation]
    assert fleet.get("/v1/operations?live=false")["items"] == []

    explanation = msgspec.convert(fleet.get(f"/v1/events/{event['id']}/explanation"), type=EventExplanation)
    assert "web (web-0)" in explanation.sentence
    assert explanation.waiting_for[0]["kind"] == "approval"

    approved = msgspec.convert(fleet.post(f"/v1/events/{event['id']}/approve"), type=Event)
    assert approved.approved_by == "operator:admin"

    history = fleet.get(f"/v1/history?event={event['id'].lower()}")
    msgspec.convert(history, type=Page[Entry])
    assert "event.approved" in {entry["action"] for entry in history["items"]}


def test_cancelling_an_event_cancels_its_operation(fleet: Control) -> None:
    [first] = fleet.post("/v1/operations", {"kind": "host-update", "names": ["host-b"]})["operations"]
    assert len(first["events"]) == 2
    cancelled = fleet.post(f"/v1/events/{first['events'][0]['id']}/cancel")
    assert {event["status"] for event in cancelled["events"]} == {"Canceled"}
    assert fleet.ask("POST", f"/v1/events/{first['events'][1]['id']}/cancel", {}).status == 409
    assert fleet.ask("POST", f"/v1/events/{first['events'][1]['id']}/approve", {}).status == 409
    [second] = fleet.post("/v1/operations", {"kind": "restart", "names": ["db"], "notice_minutes": 60})["operations"]
    assert fleet.post(f"/v1/operations/{second['id']}/cancel")["status"] == "Canceled"
    notice = datetime.fromisoformat(second["not_before"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < notice < timedelta(minutes=61)


def test_all_or_nothing(fleet: Control) -> None:
    refused = fleet.ask("POST", "/v1/operations", {"kind": "restart", "names": ["db", "none"]})
    assert refused.status == 404
    assert fleet.get("/v1/operations")["items"] == []


def test_no_event_is_planned(fleet: Control) -> None:
    assert get_args(EventStatus) == OF_EVENTS
    assert fleet.get("/v1/events?status=Scheduled")["items"] == []
    refused = fleet.ask("GET", "/v1/events?status=Planned")
    assert (refused.status, "Scheduled, Started" in refused.message) == (400, True)


def test_a_role_limits_what_one_command_names_and_how_long_it_takes(
    fleet: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = fleet.post("/v1/tokens", {"name": "shop", "role": "tenant", "scopes": "web"})["token"]
    for secret, role, most in ((fleet.token, "admin", 10_000), (token, "tenant", 1_000)):
        many = {"kind": "restart", "names": [f"web-{number}" for number in range(most + 1)]}
        refused = fleet.ask("POST", "/v1/operations", many, token=secret)
        assert refused.status == 400
        assert refused.message.endswith(f"too many for one command: the role {role} may give {most:,} at a time")
    monkeypatch.setattr(roles, "TENANTS_WRITE_SECONDS", 0.0)
    overdue = fleet.ask("POST", "/v1/operations", {"kind": "restart", "names": ["web-0"]}, token=token)
    assert (overdue.status, overdue.code, overdue.headers["retry-after"]) == (503, "overdue", "1")
    assert "was rolled back: ask for less at once" in overdue.message
    assert fleet.get("/v1/operations")["items"] == []


# Results of drivers


def await_results(fleet: Control) -> None:
    choice = DriverChoice(driver=SimulatedDriver(Timing()), terms=CallTerms(awaits_results=True))
    fleet.service.calls = CallQueue([choice], fleet.service.runtime, fleet.service.nudge.set)


def test_the_token_of_a_call_tells_the_result_of_that_call_and_nothing_else(fleet: Control) -> None:
    [operation] = fleet.post("/v1/operations", {"kind": "hardware-failure", "names": ["host-a"]})["operations"]
    await_results(fleet)
    (task,) = tick.tick(fleet.service).tasks
    key = results.key(fleet.service)
    path = f"/v1/operations/{operation['id']}/result"
    result = {"attempt": 1, "done": list(task.vms), "failures": {}}
    mine = results.token(key, operation["id"], 1)
    for wrong in (results.token("guessed", operation["id"], 1), f"{mine}0", results.PREFIX, "fnc_a.x.b"):
        assert fleet.ask("POST", path, result, token=wrong).status == 401
    for other in ((operation["id"], 2), ("another", 1)):
        assert fleet.ask("POST", path, result, token=results.token(key, *other)).status == 403
    for method, elsewhere in (("GET", f"/v1/operations/{operation['id']}"), ("GET", "/v1/vms"), ("GET", "/v1/tokens")):
        assert fleet.ask(method, elsewhere, token=mine).status == 403
    assert fleet.ask("POST", path, result, token=mine).status == 200
    (told,) = fleet.get("/v1/history?action=driver.answered")["items"]
    assert (told["operation"], told["by"]) == (operation["id"], "driver")


def test_a_result_is_taken_once_and_refused_with_the_state(fleet: Control) -> None:
    [operation] = fleet.post("/v1/operations", {"kind": "hardware-failure", "names": ["host-a"]})["operations"]
    path = f"/v1/operations/{operation['id']}/result"
    result = {"attempt": 1, "done": operation["vms"], "failures": {}}
    refused = fleet.ask("POST", path, result)
    assert (refused.status, refused.json["error"]["facts"]["status"]) == (409, "Started")
    await_results(fleet)
    (task,) = tick.tick(fleet.service).tasks
    result["done"] = list(task.vms)
    msgspec.convert(fleet.post(path, result), type=Operation)
    fleet.post(path, result)
    failed = {"attempt": 1, "failures": dict.fromkeys(task.vms, "no room")}
    refused = fleet.ask("POST", path, failed)
    assert (refused.status, refused.json["error"]["facts"]["done"]) == (409, list(task.vms))
    refused = fleet.ask("POST", path, {**result, "attempt": 2})
    assert (refused.status, refused.json["error"]["facts"]["attempt"]) == (409, 1)
    assert fleet.ask("POST", "/v1/operations/none/result", result).status == 404
    for wrong in ({}, {"attempt": 0}, {"attempt": 1, "done": "all"}, {**result, "when": "now"}):
        assert fleet.ask("POST", path, wrong).status == 400
    (told,) = fleet.get("/v1/history?action=driver.answered")["items"]
    assert (told["operation"], told["by"]) == (operation["id"], "operator:admin")
