"""The webhook driver, with a real receiver on loopback."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.drivers import receiver
from tests.drivers.receiver import SECRET, Asked, Said, receiving

from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import Kind
from forenotice.drivers.webhook import Receiver as At
from forenotice.drivers.webhook import WebhookDriver
from forenotice.runtime import Runtime
from forenotice.ssrf import EVERYWHERE, OutgoingClient

NOW = START = datetime(2026, 1, 5, 12, 30, tzinfo=UTC)
TASK = Task(
    operation="o-1",
    kind=Kind.LIVE_MIGRATION,
    host="host-a",
    vms=("web-0", "db"),
    targets={"web-0": "host-b", "db": "host-c"},
    attempt=2,
    started_at=START,
    vm_ids={"web-0": "1234", "db": "5678"},
    events={"web-0": "E-1", "db": "E-2"},
    address="10.0.0.1",
    target_addresses={"web-0": "10.0.0.2", "db": None},
    duration=5,
    shutdown_timeouts={"web-0": timedelta(seconds=90), "db": timedelta(0)},
    result_token="fnc_token",
)
DONE = {"done": ["web-0", "db"]}


@pytest.fixture
def outside() -> Iterator[receiver.Receiver]:
    with receiving() as found:
        yield found


def driver(url: str, *, seconds: float = 20, runtime: Runtime | None = None) -> WebhookDriver:
    at = At(url=url, secret=SECRET, completion_seconds=seconds)
    return WebhookDriver(at, OutgoingClient(private=EVERYWHERE, seconds=5), runtime or Runtime())


def carry_out(outside: receiver.Receiver, task: Task = TASK) -> Outcome:
    return driver(outside.url).carry_out(task, NOW)


def reasons(outcome: Outcome) -> set[str]:
    assert isinstance(outcome, Finished), outcome
    assert outcome.failures.keys() == set(TASK.vms)
    return set(outcome.failures.values())


def test_the_task_is_told_signed_and_answered_at_once(outside: receiver.Receiver) -> None:
    outcome = carry_out(outside)
    assert isinstance(outcome, Finished)
    assert (outcome.done, outcome.failures) == (("web-0", "db"), {})
    (told,) = outcome.calls
    assert (told["vms"], told["status"], told["output"]) == (["web-0", "db"], 200, '{"done": ["web-0", "db"]}')
    (asked,) = outside.asked
    assert (asked.method, asked.path, asked.headers["content-type"]) == ("POST", "/act", "application/json")
    told = asked.json
    assert len(told.pop("idempotency_key")) == 32
    assert told.pop("result_token") == "fnc_token"
    assert told == {
        "operation": "o-1",
        "kind": "live-migration",
        "attempt": 2,
        "host": "host-a",
        "host_address": "10.0.0.1",
        "started_at": "2026-01-05T12:30:00Z",
        "duration_seconds": 5,
        "vms": [
            {
                "name": "web-0",
                "vm_id": "1234",
                "event": "E-1",
                "target": "host-b",
                "target_address": "10.0.0.2",
                "shutdown_timeout_seconds": 90,
            },
            {
                "name": "db",
                "vm_id": "5678",
                "event": "E-2",
                "target": "host-c",
                "target_address": None,
                "shutdown_timeout_seconds": 0,
            },
        ],
    }


def test_the_key_is_the_same_for_the_same_try_and_for_no_other(outside: receiver.Receiver) -> None:
    made = driver(outside.url)
    # Signatures are fresh, too, while the service is ahead of the world.
    assert made.carry_out(TASK, NOW + timedelta(days=1)).done == TASK.vms
    outside.asked.clear()
    for task in (TASK, TASK, replace(TASK, attempt=3), replace(TASK, vms=("db",)), replace(TASK, operation="o-2")):
        made.carry_out(task, NOW)
    keys = [asked.json["idempotency_key"] for asked in outside.asked]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_each_vm_has_its_own_result(outside: receiver.Receiver) -> None:
    said = {"done": ["web-0", "db", "stranger"], "failures": {"db": "no \x1b[1mroom" + "!" * 1000, "other": "no"}}
    outside.answer = lambda asked: (200, said)
    outcome = carry_out(outside)
    assert isinstance(outcome, Finished)
    assert outcome.done == ("web-0",)
    assert outcome.failures.keys() == {"db"}
    assert outcome.failures["db"].startswith("no  [1mroom!!")
    assert len(outcome.failures["db"]) == 300


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ((500, {"error": "oh"}), 'answered 500: {"error": "oh"}'),
        ((404, b""), "answered 404"),
        ((302, b""), "answered 302"),
        ((204, b""), "answered 204"),
        ((200, b"well"), "answered 200: well, which is not a driver's response (JSON is malformed"),
        ((200, {"done": "all"}), "which is not a driver's response (Expected `array`, got `str`"),
        ((202, [1]), "which is not a driver's response"),
        ((202, {"poll": "http://169.254.169.254/x"}), "the URL to poll is on another server"),
    ],
)
def test_anything_else_is_a_failure(outside: receiver.Receiver, said: Said, reason: str) -> None:
    outside.answer = lambda asked: said
    (found,) = reasons(carry_out(outside))
    assert reason in found
    assert SECRET not in found


def test_nobody_there_is_a_failure() -> None:
    with receiving() as gone:
        pass
    (found,) = reasons(carry_out(gone))
    assert found == f"no response from {gone.url.removesuffix('/act')}: connection refused"


def polled(*answers: Said) -> Callable[[Asked], Said]:
    left = list(answers)
    return lambda asked: (202, {"poll": "/jobs/7", "after_seconds": 0}) if asked.method == "POST" else left.pop(0)


def pauses(outcomes: list[Outcome]) -> list[float]:
    return [(each.again_at - NOW).total_seconds() for each in outcomes if isinstance(each, NotYet)]


def test_an_accepted_task_is_polled_for_by_the_next_calls(outside: receiver.Receiver) -> None:
    outside.answer = polled((202, b""), (503, b"busy"), (202, {"poll": "jobs/8", "after_seconds": 900}), (200, DONE))
    made = driver(outside.url, seconds=600)
    outcomes = [made.carry_out(TASK, NOW) for _ in range(5)]
    assert pauses(outcomes) == [0.1, 0.1, 0.1, 300]
    assert isinstance(outcomes[-1], Finished)
    assert outcomes[-1].done == ("web-0", "db")
    paths = ["/act", "/jobs/7", "/jobs/7", "/jobs/7", "/jobs/8"]
    assert [asked.path for asked in outside.asked] == paths


def test_a_job_that_is_gone_has_failed(outside: receiver.Receiver) -> None:
    outside.answer = polled((410, b"gone"))
    made = driver(outside.url)
    assert isinstance(made.carry_out(TASK, NOW), NotYet)
    assert "answered 410: gone" in next(iter(reasons(made.carry_out(TASK, NOW))))


@pytest.mark.parametrize("accepted", [b"", {"poll": "/jobs", "after_seconds": 60}])
def test_what_was_accepted_must_be_done_in_time(outside: receiver.Receiver, accepted: Any) -> None:
    outside.answer = lambda asked: (202, accepted)
    seconds = [1000.0]
    made = driver(outside.url, seconds=30, runtime=Runtime(monotonic=lambda: seconds[0]))
    # Without a URL to poll, its result comes by callback, or never.
    assert pauses([made.carry_out(TASK, NOW)]) == [30]
    seconds[0] += 30
    assert reasons(made.carry_out(TASK, NOW)) == {"it was accepted, but not done within 30 s"}
    # Another try begins anew.
    assert isinstance(made.carry_out(TASK, NOW), NotYet)
    assert [asked.method for asked in outside.asked] == ["POST", "POST"]


def test_when_the_service_ends_a_failure_is_for_later(outside: receiver.Receiver) -> None:
    outside.answer = lambda asked: (500, b"")
    made = driver(outside.url)
    made.stop()
    assert made.carry_out(TASK, NOW) == NotYet(again_at=NOW)
