"""Operations, events and the history, over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import get_args

import msgspec
import pytest
from tests.control.running import Control

from forenotice.core import roles
from forenotice.core.operations import OF_EVENTS
from forenotice.views.base import EventStatus, Page
from forenotice.views.history import Entry
from forenotice.views.maintenance import Event, EventExplanation, Operations


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


def test_history_in_both_directions(fleet: Control) -> None:
    oldest = fleet.get("/v1/history?limit=1000")["items"]
    assert [entry["seq"] for entry in oldest] == sorted(entry["seq"] for entry in oldest)
    assert fleet.listed("/v1/history?newest_first=true", 3) == oldest[::-1]
    assert fleet.get(f"/v1/history?after={oldest[-2]['seq']}")["items"] == oldest[-1:]


def test_history_is_filtered(fleet: Control) -> None:
    assert [entry["vm"] for entry in fleet.get("/v1/history?action=vm.added&vm=db")["items"]] == ["db"]
    hosts = fleet.get("/v1/history?action=host.&by=operator:admin")["items"]
    assert {entry["host"] for entry in hosts} == {"host-a", "host-b", "host-c"}
    assert fleet.get("/v1/history?until=2020-01-01T00:00:00Z")["items"] == []
    assert fleet.get("/v1/history?since=2020-01-01T00:00:00%2B02:00")["items"] != []
    naive = fleet.ask("GET", "/v1/history?since=2020-01-01T00:00:00")
    assert naive.status == 400
    assert "since in the query must be a time with its zone" in naive.message


def test_no_event_is_planned(fleet: Control) -> None:
    assert get_args(EventStatus) == OF_EVENTS
    assert fleet.get("/v1/events?status=Scheduled")["items"] == []
    refused = fleet.ask("GET", "/v1/events?status=Planned")
    assert (refused.status, "Scheduled, Started" in refused.message) == (400, True)


def test_nobody_names_more_than_the_role_may_give(fleet: Control) -> None:
    refused = fleet.ask("POST", "/v1/operations", {"kind": "restart", "names": [f"vm-{n}" for n in range(10_001)]})
    assert refused.status == 400
    assert refused.message == "10,001 names are too many for one command: the role admin may give 10,000 at a time"


def test_a_tenant_asks_for_less_at_once_and_in_less_time(fleet: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    token = fleet.post("/v1/tokens", {"name": "shop", "role": "tenant", "scopes": "web"})["token"]
    many = {"kind": "restart", "names": [f"web-{number}" for number in range(1_001)]}
    refused = fleet.ask("POST", "/v1/operations", many, token=token)
    assert refused.status == 400
    assert refused.message == "1,001 names are too many for one command: the role tenant may give 1,000 at a time"
    monkeypatch.setattr(roles, "TENANTS_WRITE_SECONDS", 0.0)
    overdue = fleet.ask("POST", "/v1/operations", {"kind": "restart", "names": ["web-0"]}, token=token)
    assert (overdue.status, overdue.json["error"]["code"], overdue.headers["retry-after"]) == (503, "overdue", "1")
    assert "was rolled back: ask for less at once" in overdue.message
    assert fleet.get("/v1/operations")["items"] == []
