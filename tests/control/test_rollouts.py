"""/v1/rollouts: asked for, planned, listed, explained, paused, resumed, cancelled."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.control.conftest import settled
from tests.control.running import Control

from forenotice.service import rollouts
from forenotice.views.base import Page
from forenotice.views.maintenance import RolloutExplanation
from forenotice.views.rollouts import ListedRollout, Rollout, RolloutHost, RolloutPlan

NEW = {"kind": "update", "hosts": "host-*"}
OPTIONS = {
    "kind": "reboot",
    "hosts": "host-*,!host-c",
    "notice_minutes": 30,
    "batch": 2,
    "pause_minutes": 10,
    "gate": "https://shop.example.com/healthy",
    "max_failures": 3,
    "windows": ["Mon-Fri 22:00-00:00 Europe/Berlin"],
    "reason": "new kernel",
}


@pytest.fixture(scope="module")
def fleet(unchanged: Control) -> Control:
    return settled(unchanged)


@pytest.fixture
def started(fleet: Control) -> Iterator[Any]:
    rollout = fleet.post("/v1/rollouts", NEW)
    yield rollout
    fleet.ask("POST", f"/v1/rollouts/{rollout['id']}/cancel")
    rollouts.advance(fleet.service, {})


def test_a_rollout_is_started_and_shown(fleet: Control) -> None:
    made = fleet.ask("POST", "/v1/rollouts", OPTIONS)
    assert made.status == 201
    rollout = made.json
    msgspec.json.decode(made.body, type=Rollout)
    assert rollout | OPTIONS | {"windows": ["mon-fri 22:00-24:00 Europe/Berlin"]} == rollout
    assert (rollout["status"], rollout["wave"], rollout["waves"]) == ("Running", 0, 2)
    assert rollout["progress"] == {"waiting": 2, "under_way": 0, "done": 0, "failed": 0, "skipped": 0}
    assert fleet.get(f"/v1/rollouts/{rollout['id']}") == rollout
    (entry,) = fleet.get(f"/v1/history?rollout={rollout['id']}")["items"]
    assert (entry["action"], entry["reason"]) == ("rollout.started", "new kernel")
    fleet.post(f"/v1/rollouts/{rollout['id']}/cancel")


def test_lists_page_and_filter(fleet: Control) -> None:
    ids = {fleet.post("/v1/rollouts", {"kind": "update", "hosts": host})["id"] for host in ("host-a", "host-b")}
    assert ids < {each["id"] for each in fleet.listed("/v1/rollouts", 1)}
    over, live = ids
    fleet.post(f"/v1/rollouts/{over}/cancel")
    rollouts.advance(fleet.service, {})
    ended = fleet.get("/v1/rollouts?live=false")
    msgspec.convert(ended, type=Page[ListedRollout])
    assert ids & {each["id"] for each in ended["items"]} == {over}
    assert ids & {each["id"] for each in fleet.get("/v1/rollouts?live=true")["items"]} == {live}
    fleet.post(f"/v1/rollouts/{live}/cancel")


def test_hosts_of_a_rollout_and_why_it_waits(fleet: Control, started: Any) -> None:
    rollouts.advance(fleet.service, {})
    at = f"/v1/rollouts/{started['id']}/hosts"
    page = fleet.get(at)
    msgspec.convert(page, type=Page[RolloutHost])
    assert {host["host"]: host["status"] for host in page["items"]} == {
        "host-a": "Under way",
        "host-b": "Waiting",
        "host-c": "Skipped",
    }
    assert [host["host"] for host in fleet.get(f"{at}?status=Under%20way")["items"]] == ["host-a"]
    first = fleet.get(f"{at}?limit=2")
    assert [host["host"] for host in fleet.get(f"{at}?limit=2&after={first['next']}")["items"]] == ["host-c"]
    assert "status in the query must be one of Waiting" in fleet.ask("GET", f"{at}?status=lost").message
    explanation = fleet.get(f"/v1/rollouts/{started['id']}/explanation")
    msgspec.convert(explanation, type=RolloutExplanation)
    assert explanation["rollout"] == started["id"]
    assert "host-a is Scheduled: it waits for approval by" in explanation["sentence"]
    assert explanation["waiting_for"][0]["kind"] == "operation"


def test_a_rollout_pauses_goes_on_and_is_cancelled(fleet: Control, started: Any) -> None:
    at = f"/v1/rollouts/{started['id']}"
    paused = fleet.post(f"{at}/pause", {"reason": "lunch"})
    assert (paused["status"], paused["why"]) == ("Paused", "paused by operator:admin: lunch")
    refused = fleet.ask("POST", f"{at}/pause")
    assert refused.status == 409
    assert refused.json["error"]["facts"] == {"rollout": started["id"], "status": "Paused"}
    assert fleet.ask("POST", f"{at}/resume").json["status"] == "Running"
    fleet.post(f"{at}/pause")
    assert fleet.post(f"{at}/resume", {"retry": True, "reason": "lunch is over"})["status"] == "Running"
    assert fleet.post(f"{at}/cancel", {"reason": "enough"})["status"] == "Canceling"
    reasons = [entry["reason"] for entry in fleet.get(f"/v1/history?rollout={started['id']}")["items"]]
    assert reasons[-1] == "enough"


def test_a_plan_does_nothing(fleet: Control) -> None:
    before = fleet.get("/v1/history?newest_first=true&limit=1")
    said = fleet.ask("POST", "/v1/rollouts/plan", OPTIONS)
    assert said.status == 200
    msgspec.json.decode(said.body, type=RolloutPlan)
    plan = said.json
    assert [(host["host"], host["wave"], host["vms"]) for host in plan["planned_hosts"]] == [
        ("host-a", 1, ["batch", "web-0"]),
        ("host-b", 2, ["db", "web-1"]),
    ]
    assert [wave["hosts"] for wave in plan["waves"]] == [1, 1]
    (web,) = [scope for scope in plan["groups"] if scope["group"] == "web"]
    assert (web["members"], web["most_down"], web["budget"]) == (2, 1, None)
    assert fleet.get("/v1/history?newest_first=true&limit=1") == before


def test_a_budget_that_cannot_be_met_names_its_group(fleet: Control) -> None:
    fleet.ask("PATCH", "/v1/groups/web/policy", {"min_available": 2})
    for path in ("/v1/rollouts", "/v1/rollouts/plan"):
        refused = fleet.ask("POST", path, NEW)
        assert refused.status == 409
        assert "the budget of group web can never be met" in refused.message
        assert refused.json["error"]["facts"]["group"] == "web"
    fleet.ask("PATCH", "/v1/groups/web/policy", {"min_available": None})


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"kind": "degrade"}, 400, "kind in the body must be one of update, migrate, reboot"),
        ({"hosts": ""}, 400, "hosts in the body must have at least 1"),
        ({"hosts": "rack 1"}, 400, "'rack 1' is not a name or pattern"),
        ({"hosts": "rack*"}, 404, "no host is selected by 'rack*'"),
        ({"batch": 0}, 400, "batch in the body must be at least 1"),
        ({"max_failures": 0}, 400, "max_failures in the body must be at least 1"),
        ({"pause_minutes": 60 * 24 * 31}, 400, "pause_minutes in the body must be at most 43200"),
        ({"notice_minutes": 1}, 400, "the notice must be at least 15 minutes"),
        ({"windows": ["at night"]}, 400, "'at night' is not a window"),
        ({"gate": "shop"}, 400, "there is no gate 'shop': there are none; give a URL"),
        ({"gate": "http://127.0.0.1/"}, 400, "may not send requests to http://127.0.0.1"),
        ({"gates": "shop"}, 400, "gates in the body is not known"),
    ],
)
def test_what_cannot_be(fleet: Control, changes: dict[str, object], status: int, said: str) -> None:
    for path in ("/v1/rollouts", "/v1/rollouts/plan"):
        refused = fleet.ask("POST", path, NEW | changes)
        assert refused.status == status
        assert said in refused.message


def test_what_is_not_there(unchanged: Control) -> None:
    asked = [("GET", ""), ("GET", "/hosts"), ("GET", "/explanation")]
    for method, path in (*asked, *(("POST", f"/{verb}") for verb in ("pause", "resume", "cancel"))):
        said = unchanged.ask(method, f"/v1/rollouts/none{path}")
        assert said.status == 404, path
        assert said.message.startswith("there is no rollout 'none'")
