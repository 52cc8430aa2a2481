"""What the outside of a webhook driver tells, over HTTP."""

import msgspec
from tests.control.running import Control

from forenotice.core.timing import Timing
from forenotice.drivers.call_queue import CallQueue, CallTerms, DriverChoice
from forenotice.drivers.registry import SimulatedDriver
from forenotice.service import results, tick
from forenotice.views.maintenance import Operation


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
