import json
import subprocess
from datetime import UTC, datetime

import pytest
from tests.agent.handlers.work import EVENT, STARTED, work

from forenotice.agent.handlers import facts
from forenotice.agent.rules.policy import Phase
from forenotice.client.events import Event


def test_variables_tell_all_there_is_to_know() -> None:
    assert facts.environment(work(attempt=2, seconds_left=59.9)) == {
        "FORENOTICE_PHASE": "prepare",
        "FORENOTICE_HANDLER": "drain",
        "FORENOTICE_ATTEMPT": "2",
        "FORENOTICE_NAME": "web-1",
        "FORENOTICE_EVENT_ID": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "FORENOTICE_EVENT_TYPE": "Reboot",
        "FORENOTICE_EVENT_STATUS": "Scheduled",
        "FORENOTICE_EVENT_SOURCE": "Platform",
        "FORENOTICE_EVENT_DESCRIPTION": "Host server is undergoing maintenance.",
        "FORENOTICE_RESOURCES": "web-1 web-2",
        "FORENOTICE_DURATION": "-1",
        "FORENOTICE_NOT_BEFORE": "2022-04-11T22:26:58Z",
        "FORENOTICE_DEADLINE": "2022-04-11T22:26:58Z",
        "FORENOTICE_SECONDS_LEFT": "59",
        "FORENOTICE_PAUSE_SECONDS": "",
        "EVENT_ID": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EVENT_TYPE": "Reboot",
        "EVENT_STATUS": "Scheduled",
        "EVENT_SOURCE": "Platform",
        "EVENT_DESCRIPTION": "Host server is undergoing maintenance.",
        "EVENT_NOTBEFORE": "Mon, 11 Apr 2022 22:26:58 GMT",
        "EVENT_RESOURCES": "web-1 web-2",
        "EVENT_RESOURCETYPE": "VirtualMachine",
        "EVENT_DURATION": "-1",
    }


@pytest.mark.parametrize(("pause", "told"), [(None, ""), (0, "0"), (0.0, "0"), (0.5, "0.500")])
def test_a_freeze_without_a_pause_is_told_from_one_that_was_not_measured(pause: float | None, told: str) -> None:
    assert facts.environment(work(phase=Phase.RECOVER, pause=pause))["FORENOTICE_PAUSE_SECONDS"] == told


def test_a_duration_of_none_is_told_from_one_that_is_not_known() -> None:
    freeze = Event(id="A", status="Scheduled", type="Freeze", resources=("web-1",), duration_seconds=0)
    assert facts.environment(work(event=freeze))["FORENOTICE_DURATION"] == "0"


def test_what_an_older_version_does_not_tell_is_empty_and_not_in_the_json() -> None:
    few = Event(id="A", status="Scheduled", type="Freeze", resources=("web-1",))
    told = facts.environment(work(event=few))
    names = ("EVENT_SOURCE", "EVENT_DESCRIPTION", "EVENT_DURATION", "FORENOTICE_EVENT_SOURCE", "FORENOTICE_DURATION")
    assert {told[name] for name in names} == {""}
    assert json.loads(facts.encoded(work(event=few)))["event"].keys() == {
        "EventId",
        "EventStatus",
        "EventType",
        "ResourceType",
        "Resources",
        "NotBefore",
    }


def test_a_started_event_has_no_not_before_and_a_measured_pause_is_told() -> None:
    told = facts.environment(work(phase=Phase.RECOVER, event=STARTED, pause=4.25))
    assert (told["FORENOTICE_NOT_BEFORE"], told["EVENT_NOTBEFORE"]) == ("", "")
    assert told["FORENOTICE_PHASE"] == "recover"
    assert told["FORENOTICE_PAUSE_SECONDS"] == "4.250"


def test_json_says_the_event_in_the_words_of_the_protocol() -> None:
    deadline = datetime(2022, 4, 11, 22, 20, tzinfo=UTC)
    event = Event(**{**{name: getattr(EVENT, name) for name in EVENT.__struct_fields__}, "ahead": -2.5})
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


def test_a_description_from_outside_cannot_keep_a_program_from_starting() -> None:
    event = Event(
        id="A", status="Scheduled", type="Freeze", description="nul \0, lone \ud800, \x1b[2J, long " + "é" * 200_000
    )
    told = facts.environment(work(event=event))
    assert told["FORENOTICE_EVENT_DESCRIPTION"].startswith("nul  , lone ?,  [2J, long éé")
    printed = subprocess.run(["/usr/bin/env"], env=told, capture_output=True, check=True).stdout.decode()
    assert f"\nEVENT_DESCRIPTION={told['EVENT_DESCRIPTION']}\n" in printed


def test_resources_are_cut_between_names() -> None:
    names = tuple(f"machine-{number}" for number in range(10_000))
    told = facts.environment(work(event=Event(id="A", status="Scheduled", type="Freeze", resources=names)))
    given = told["FORENOTICE_RESOURCES"].split(" ")
    assert 1000 < len(given) < 10_000
    assert given == list(names[: len(given)])
    assert len(told["FORENOTICE_RESOURCES"]) <= facts.LONGEST
