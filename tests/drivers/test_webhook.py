"""The webhook driver, with a real receiver on loopback."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.drivers import receiver
from tests.drivers.receiver import SECRET, Asked, Said, receiving

from forenotice.clock import SystemClock
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import Kind
from forenotice.drivers.letterbox import Letterbox
from forenotice.drivers.webhook import Receiver as At
from forenotice.drivers.webhook import WebhookDriver
from forenotice.outgoing import EVERYWHERE, Outgoing

START = datetime(2026, 1, 5, 12, 30, tzinfo=UTC)
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
)
DONE = {"done": ["web-0", "db"]}


@pytest.fixture
def outside() -> Iterator[receiver.Receiver]:
    with receiving() as found:
        yield found


def driver(url: str, *, seconds: float = 20, letterbox: Letterbox | None = None) -> WebhookDriver:
    sender = Outgoing(private=EVERYWHERE, seconds=5)
    at = At(url=url, secret=SECRET, completion_seconds=seconds)
    return WebhookDriver(at, sender, letterbox or Letterbox(), SystemClock().outside)


def carry_out(outside: receiver.Receiver, **how: Any) -> Outcome:
    return driver(outside.url, **how).carry_out(TASK, SystemClock().now())


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
    assert told.pop("result_token").startswith("fnc_o-1.2.")
    assert told == {
        "operation": "o-1",
        "kind": "live-migration",
        "attempt": 2,
        "host": "host-a",
        "started_at": "2026-01-05T12:30:00Z",
        "vms": [
            {"name": "web-0", "vm_id": "1234", "event": "E-1", "target": "host-b"},
            {"name": "db", "vm_id": "5678", "event": "E-2", "target": "host-c"},
        ],
    }


def test_signatures_are_fresh_while_the_service_is_ahead_of_the_world(outside: receiver.Receiver) -> None:
    outcome = driver(outside.url).carry_out(TASK, SystemClock().now() + timedelta(days=1))
    assert isinstance(outcome, Finished)
    assert outcome.failures == {}


def test_the_key_is_the_same_for_the_same_try_and_for_no_other(outside: receiver.Receiver) -> None:
    made = driver(outside.url)
    for task in (TASK, TASK, replace(TASK, attempt=3), replace(TASK, vms=("db",)), replace(TASK, operation="o-2")):
        made.carry_out(task, SystemClock().now())
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
        ((200, b"well"), "answered 200: well, which is not what a driver answers (JSON is malformed"),
        ((200, {"done": "all"}), "which is not what a driver answers (Expected `array`, got `str`"),
        ((202, [1]), "which is not what a driver answers"),
        ((202, {"poll": "http://169.254.169.254/x"}), "the URL to poll leads to another place"),
    ],
)
def test_anything_else_is_a_failure(outside: receiver.Receiver, said: Said, reason: str) -> None:
    if isinstance(said[1], dict) and "poll" in said[1]:
        said = (202, {**said[1], "after_seconds": 0})
    outside.answer = lambda asked: said
    (found,) = reasons(carry_out(outside))
    assert reason in found
    assert SECRET not in found


def test_nobody_there_is_a_failure() -> None:
    with receiving() as gone:
        pass
    (found,) = reasons(carry_out(gone))
    assert found == f"no answer from {gone.url.removesuffix('/act')}: connection refused"


def polled(*answers: Said) -> Callable[[Asked], Said]:
    left = list(answers)
    return lambda asked: (202, {"poll": "/jobs/7", "after_seconds": 0}) if asked.method == "POST" else left.pop(0)


def test_what_takes_longer_is_polled_until_it_is_done(outside: receiver.Receiver) -> None:
    outside.answer = polled((202, b""), (503, b"busy"), (202, {"poll": "jobs/8", "after_seconds": -1}), (200, DONE))
    outcome = carry_out(outside)
    assert isinstance(outcome, Finished)
    assert outcome.done == ("web-0", "db")
    assert [(asked.method, asked.path) for asked in outside.asked] == [
        ("POST", "/act"),
        ("GET", "/jobs/7"),
        ("GET", "/jobs/7"),
        ("GET", "/jobs/7"),
        ("GET", "/jobs/8"),
    ]


def test_a_job_that_is_gone_has_failed(outside: receiver.Receiver) -> None:
    outside.answer = polled((410, b"gone"))
    assert "answered 410: gone" in next(iter(reasons(carry_out(outside))))


def test_it_must_be_done_in_time(outside: receiver.Receiver) -> None:
    outside.answer = lambda asked: (202, b"")
    (found,) = reasons(carry_out(outside, seconds=0.1))
    assert found == "it was accepted, but not done within 0.1 s"
    outside.answer = lambda asked: (202, {"poll": "/jobs", "after_seconds": 0})
    assert reasons(carry_out(outside, seconds=0.15)) == {"it was accepted, but not done within 0.15 s"}


def in_thread(outside: receiver.Receiver, letterbox: Letterbox) -> tuple[threading.Thread, list[Outcome]]:
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.append(carry_out(outside, letterbox=letterbox)), daemon=True)
    thread.start()
    until(lambda: outside.asked)
    return thread, found


def test_or_it_is_told_by_itself(outside: receiver.Receiver) -> None:
    outside.answer = lambda asked: (202, b"")
    letterbox = Letterbox()
    thread, found = in_thread(outside, letterbox)
    letterbox.show({("o-1", 1): Finished(done=TASK.vms, failures={}), ("o-2", 2): Finished(failures={})})
    letterbox.show({("o-1", 2): Finished(done=("db",), failures={"web-0": "no"})})
    thread.join(60)
    assert isinstance(found[0], Finished)
    assert (found[0].done, found[0].failures) == (("db",), {"web-0": "no"})


def test_when_the_service_ends_it_is_for_later(outside: receiver.Receiver) -> None:
    outside.answer = lambda asked: (202, b"")
    letterbox = Letterbox()
    thread, found = in_thread(outside, letterbox)
    letterbox.close()
    thread.join(60)
    assert isinstance(found[0], NotYet)
    # And so is what fails because of that.
    outside.answer = lambda asked: (500, b"")
    before = time.monotonic()
    assert isinstance(carry_out(outside, letterbox=letterbox), NotYet)
    assert time.monotonic() - before < 10
