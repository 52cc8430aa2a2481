"""The emulator controlled over REST: what each request does, what is refused, and who is not let in."""

from collections.abc import Iterator
from datetime import datetime

import pytest
from tests.acceptance.running import ask
from tests.emulator.controlled import JSON, Controlled, controlled


@pytest.fixture(scope="module")
def shared() -> Iterator[Controlled]:
    with controlled() as found:
        yield found


@pytest.fixture
def emulator(shared: Controlled) -> Controlled:
    """As if new."""
    shared.post("/play", scenario="reboot", resources=["web-0"])
    shared.post("/reset")
    return shared


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_an_event_from_its_announcement_to_its_end(emulator: Controlled) -> None:
    made = emulator.post("/events", kind="reboot", notice="15m", takes="10m", description="By hand.")
    assert (made["type"], made["status"], made["resources"]) == ("Reboot", "Scheduled", ["web-0"])
    (seen,) = emulator.document()["Events"]
    assert (seen["EventId"], seen["Description"]) == (made["id"], "By hand.")
    assert emulator.approve(made["id"]).status == 200
    started = emulator.get(f"/events/{made['id'].lower()}")
    assert (started["status"], started["approved_by"]) == ("Started", "web-0")
    assert emulator.post("/advance", by="10m")["events"] == []
    assert emulator.document()["Events"] == []
    assert emulator.get("/events?live=true")["items"] == []
    assert [event["status"] for event in emulator.get("/events")["items"]] == ["Completed"]


def test_approved_and_cancelled_from_outside(emulator: Controlled) -> None:
    first = emulator.post("/events", kind="host-update", resources=["a", "b"])
    second = emulator.post("/events", kind="deletion", resources=["c"], duration_seconds=7)
    assert second["duration_seconds"] == 7
    assert emulator.post(f"/events/{first['id']}/approve")["approved_by"] == "operator"
    assert emulator.post(f"/events/{second['id']}/cancel")["status"] == "Canceled"
    assert emulator.ask("POST", f"/events/{second['id']}/approve", {}).status == 409
    assert [event["id"] for event in emulator.get("/state")["events"]] == [first["id"]]
    pages = [emulator.get(f"/events?limit=1&after={after}") for after in (0, 1)]
    assert [[event["id"] for event in page["items"]] for page in pages] == [[first["id"]], [second["id"]]]
    assert [page["next"] for page in pages] == [1, None]


def test_a_clock_that_stands_is_moved_on_step_by_step(emulator: Controlled) -> None:
    assert emulator.post("/pause")["paused"]
    began = moment(emulator.post("/play", scenario="two-events")["now"])
    steps = []
    for _ in range(3):
        state = emulator.post("/step")
        steps.append((moment(state["now"]) - began, [event["status"] for event in state["events"]]))
    # NotBefore is a whole second; the clock need not have stood at one.
    assert [(round(past.total_seconds() / 60), statuses) for past, statuses in steps] == [
        (15, ["Started", "Started"]),
        (20, ["Started"]),
        (25, []),
    ]
    refused = emulator.ask("POST", "/step", {})
    assert (refused.status, refused.json["error"]["code"]) == (409, "conflict")
    assert moment(emulator.get("/state")["now"]) == moment(emulator.get("/state")["now"])
    assert not emulator.post("/resume")["paused"]
    assert moment(emulator.get("/state")["now"]) > began + steps[-1][0]


def test_faults_are_switched_on_met_and_switched_off(emulator: Controlled) -> None:
    assert emulator.post("/faults", name="error-503", times=2, on="polls")["times"] == 2
    assert emulator.post("/faults", name="clock-skew", amount="-5m")["amount_seconds"] == -300
    assert [emulator.poll().status for _ in range(3)] == [503, 503, 200]
    faults = {fault["name"]: fault["active"] for fault in emulator.get("/faults")["items"]}
    assert [name for name, active in faults.items() if active] == ["clock-skew"]
    asked = emulator.get("/requests")["items"]
    assert [(request["vm"], request["status"]) for request in asked] == [("web-0", 503), ("web-0", 503), ("web-0", 200)]
    assert asked[0]["fault"] == "error-503+clock-skew"
    assert asked[0]["headers"]["metadata"] == "true"
    assert emulator.get("/requests?after=2")["items"] == asked[2:]
    assert emulator.ask("DELETE", "/faults/none").status == 400
    assert emulator.delete("/faults/clock-skew")["faults"] == []
    emulator.post("/faults", name="reset", lasts="1h")
    assert emulator.delete("/faults")["faults"] == []
    assert emulator.poll().status == 200


def test_a_scenario_of_the_catalogue_and_one_of_ones_own(emulator: Controlled) -> None:
    state = emulator.post("/play", scenario="rolling-update", resources=["a", "b", "c"], seed=7)
    assert (state["as"], state["scenario"]["name"], state["scenario"]["seed"]) == ("a", "rolling-update", 7)
    assert state["scenario"]["waiting_for"] == "Freeze of a to be gone"
    assert [vm["update_domain"] for vm in state["vms"]] == [0, 1, 2]
    shown = emulator.get("/scenarios/spot-eviction")
    state = emulator.post("/play", scenario=shown["toml"], source="mine.toml", resources=["app_3"])
    assert (state["as"], state["scenario"]["name"]) == ("app_3", "mine")
    assert emulator.document()["Events"][0]["EventType"] == "Preempt"
    assert "Scheduled" in shown["picture"][0]
    assert {"name": "reboot", "timing": "measured"}.items() <= emulator.get("/scenarios")["items"][7].items()


def test_each_vm_has_an_endpoint_and_reset_leaves_the_vms_and_a_higher_incarnation(emulator: Controlled) -> None:
    there = emulator.post("/endpoints", vm="web-1")["endpoint"]
    assert emulator.post("/endpoints", vm="web-1")["endpoint"] == there
    emulator.document(there.removeprefix("http://"))
    assert [request["vm"] for request in emulator.get("/requests")["items"]] == ["web-1"]
    emulator.post("/play", scenario="two-events")
    emulator.post("/faults", name="reset", on="approvals")
    before = emulator.document()["DocumentIncarnation"]
    state = emulator.post("/reset")
    assert (state["events"], state["faults"], state["scenario"], state["requests"]) == ([], [], None, 0)
    assert len(state["vms"]) == 2
    assert emulator.document()["DocumentIncarnation"] > before


BAD = [
    ("/events", {"kind": "explode"}, "kind in the body must be one of reboot, freeze"),
    ("/events", {"kind": "reboot", "notice": "9999d"}, "is too long"),
    ("/events", {"kind": "reboot", "resources": ["a b"]}, "must be a name"),
    ("/events", {"kind": "reboot", "colour": "red"}, "colour in the body is not known"),
    ("/events/none/approve", {}, "there is no event"),
    ("/events/none/cancel", {}, "there is no event"),
    ("/play", {"scenario": "rebot"}, "there is no scenario 'rebot'; did you mean 'reboot'?"),
    ("/play", {"scenario": "../reboot"}, "there is no scenario '../reboot'"),
    ("/play", {"scenario": 'title = "x"\n[[step]]\nannounce = 5\n', "source": "my.toml"}, "my.toml:"),
    ("/play", {"scenario": "rolling-update", "resources": ["a"]}, "give 3 names, not 1"),
    ("/advance", {"by": "-5m"}, "by in the body must be a duration such as"),
    ("/faults", {"name": "eror-503"}, "did you mean 'error-503'?"),
    ("/faults", {"name": "reset", "amount": "5s"}, "reset has no amount"),
    ("/faults", {"name": "latency", "times": 0}, "times in the body"),
    ("/faults", {"name": "latency", "on": "puts"}, "on in the body"),
    ("/endpoints", {"vm": ""}, "must be a name"),
    ("/reset?please=1", {}, "please in the query is not known"),
]


@pytest.mark.parametrize(("path", "body", "said"), BAD)
def test_bad_input_is_refused_with_what_would_be_right(
    shared: Controlled, path: str, body: dict[str, object], said: str
) -> None:
    found = shared.ask("POST", path, body)
    assert found.status in (400, 404), found
    assert set(found.json["error"]) == {"code", "message", "facts"}
    assert said in found.json["error"]["message"]


def test_what_there_is_and_what_is_not(shared: Controlled) -> None:
    assert shared.ask("GET", "/none").json["error"]["message"].endswith("see /v1/emulator/openapi.json")
    assert "/v1/emulator/play" in shared.get("/openapi.json")["paths"]
    wrong = shared.ask("PUT", "/faults", {})
    assert (wrong.status, wrong.headers["allow"]) == (405, "DELETE, GET, POST")
    assert shared.ask("POST", "/advance", b"[" * 10_000).status == 400
    assert shared.ask("POST", "/play", b'{"scenario": "' + b"x" * 2**20 + b'"}').status == 413
    assert shared.ask("GET", "/events/none").status == 404


def test_only_names_of_this_machine_and_addresses_are_known(shared: Controlled) -> None:
    own = ("127.0.0.1", "localhost", "LocalHost:8255", "[::1]:8255", "10.0.0.1:1")
    others = ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil")
    for host in (*own, *others):
        found = ask(shared.control, "GET", "/v1/emulator/state", None, {"Host": host})
        assert found.status == (200 if host in own else 400), host


def test_what_a_page_of_another_site_can_send_has_no_effect(emulator: Controlled) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        refused = emulator.ask("POST", "/events", {"kind": "reboot"}, {"Content-Type": kind} if kind else {})
        assert refused.status == 400
        assert "Content-Type: application/json" in refused.json["error"]["message"]
    assert emulator.get("/state")["events"] == []
    sent = {**JSON, "Content-Type": "application/json; charset=utf-8"}
    assert emulator.ask("POST", "/events", {"kind": "reboot"}, sent).status == 201
