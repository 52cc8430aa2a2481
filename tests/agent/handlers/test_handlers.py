"""What handlers share: calls with a limit, and the facts about an event."""

import json
import subprocess
import threading
import time
from datetime import UTC, datetime

import msgspec
import pytest
from tests.agent.handlers.work import EVENT, work
from tests.agent.parts import RUNTIME

from forenotice.agent import handlers
from forenotice.agent.handlers import facts
from forenotice.agent.rules.policy import Phase
from forenotice.client.events import Event


def test_a_call_gives_its_result_or_exception() -> None:
    def fail() -> None:
        raise ConnectionResetError("gone")

    limit = time.monotonic() + 10
    assert handlers.within(lambda: 5, RUNTIME, until=limit, stop=threading.Event(), interrupt=pytest.fail) == 5
    with pytest.raises(ConnectionResetError, match="gone"):
        handlers.within(fail, RUNTIME, until=limit, stop=threading.Event(), interrupt=pytest.fail)


@pytest.mark.parametrize("asked", [True, False])
def test_a_call_that_does_not_end_is_interrupted_and_left_behind(asked: bool) -> None:
    never, interrupted, stop = threading.Event(), threading.Event(), threading.Event()
    if asked:
        stop.set()
    begun = time.monotonic()
    until = begun + (60 if asked else 0.1)
    with pytest.raises(handlers.StoppedError if asked else TimeoutError):
        handlers.within(never.wait, RUNTIME, until=until, stop=stop, interrupt=interrupted.set)
    assert time.monotonic() - begun < 30
    assert interrupted.is_set()
    never.set()


FEW = Event(id="A", status="Scheduled", type="Freeze", resources=("web-1",))
"""As an older version lists it."""


def test_variables_have_all_facts() -> None:
    event = {
        "EVENT_ID": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EVENT_TYPE": "Reboot",
        "EVENT_STATUS": "Scheduled",
        "EVENT_SOURCE": "Platform",
        "EVENT_DESCRIPTION": "Host server is undergoing maintenance.",
    }
    assert facts.environment(work(attempt=2, seconds_left=59.9)) == {
        **event,
        **{f"FORENOTICE_{name}": value for name, value in event.items()},
        "FORENOTICE_PHASE": "prepare",
        "FORENOTICE_HANDLER": "drain",
        "FORENOTICE_ATTEMPT": "2",
        "FORENOTICE_NAME": "web-1",
        "FORENOTICE_RESOURCES": "web-1 web-2",
        "FORENOTICE_DURATION": "-1",
        "FORENOTICE_NOT_BEFORE": "2022-04-11T22:26:58Z",
        "FORENOTICE_DEADLINE": "2022-04-11T22:26:58Z",
        "FORENOTICE_SECONDS_LEFT": "59",
        "FORENOTICE_PAUSE_SECONDS": "",
        "EVENT_NOTBEFORE": "Mon, 11 Apr 2022 22:26:58 GMT",
        "EVENT_RESOURCES": "web-1 web-2",
        "EVENT_RESOURCETYPE": "VirtualMachine",
        "EVENT_DURATION": "-1",
    }


@pytest.mark.parametrize(("pause", "shown"), [(None, ""), (0, "0"), (0.0, "0"), (4.25, "4.250")])
def test_no_pause_differs_from_one_that_was_not_measured(pause: float | None, shown: str) -> None:
    assert facts.environment(work(phase=Phase.RECOVER, pause=pause))["FORENOTICE_PAUSE_SECONDS"] == shown


def test_facts_that_are_not_known_are_empty_and_not_in_the_json() -> None:
    few = facts.environment(work(event=FEW))
    names = ("EVENT_SOURCE", "EVENT_DESCRIPTION", "EVENT_DURATION", "FORENOTICE_EVENT_SOURCE", "FORENOTICE_DURATION")
    assert {few[name] for name in names} == {""}
    keys = {"EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore"}
    assert json.loads(facts.encoded(work(event=FEW)))["event"].keys() == keys
    no_time = msgspec.structs.replace(FEW, duration_seconds=0)
    assert facts.environment(work(event=no_time))["FORENOTICE_DURATION"] == "0"
    started = facts.environment(work(event=msgspec.structs.replace(EVENT, status="Started", not_before_text="")))
    assert (started["FORENOTICE_NOT_BEFORE"], started["EVENT_NOTBEFORE"]) == ("", "")


def test_json_has_the_event_in_the_words_of_the_protocol() -> None:
    deadline = datetime(2022, 4, 11, 22, 20, tzinfo=UTC)
    event = msgspec.structs.replace(EVENT, ahead=-2.5)
    assert json.loads(facts.encoded(work(event=event, deadline=deadline))) == {
        "phase": "prepare",
        "handler": "drain",
        "attempt": 1,
        "name": "web-1",
        "event": {
            "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
            "EventStatus": "Scheduled",
            "EventType": "Reboot",
            "ResourceType": "VirtualMachine",
            "Resources": ["web-1", "web-2"],
            "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
            "Description": "Host server is undergoing maintenance.",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        },
        "not_before": "2022-04-11T22:26:58Z",
        "deadline": "2022-04-11T22:20:00Z",
        "seconds_left": 10.0,
        "pause_seconds": None,
        "clock_ahead": -2.5,
    }


def test_an_event_cannot_keep_a_program_from_starting() -> None:
    names = tuple(f"machine-{number}" for number in range(10_000))
    text = "nul \0, lone \ud800, \x1b[2J, long " + "é" * 200_000
    given = facts.environment(work(event=msgspec.structs.replace(FEW, description=text, resources=names)))
    assert given["FORENOTICE_EVENT_DESCRIPTION"].startswith("nul  , lone ?,  [2J, long éé")
    printed = subprocess.run(["/usr/bin/env"], env=given, capture_output=True, check=True).stdout.decode()
    assert f"\nEVENT_DESCRIPTION={given['EVENT_DESCRIPTION']}\n" in printed
    shown = given["FORENOTICE_RESOURCES"].split(" ")
    assert 1000 < len(shown) < 10_000
    assert shown == list(names[: len(shown)]), "cut between names"
    assert len(given["FORENOTICE_RESOURCES"]) <= facts.LONGEST
