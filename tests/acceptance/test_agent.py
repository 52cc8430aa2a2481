"""The agent as a real process against the real server: what it is there for, and what is none of its business."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.acceptance.agents import agent, command, diary, tell
from tests.acceptance.guests import Fleet
from tests.acceptance.meddling import DroppedError, HeldError, meddler, said
from tests.acceptance.running import until

AT_ONCE = '[[approve.at_once]]\nsources = ["User"]\n'
SHORT = '[[approve.at_once]]\ntypes = ["Freeze"]\nshorter_than = "10s"\n'
NEVER = '[approve]\nwhen = "never"\n'


def the_whole_way(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary()) as guest:
        assert guest.until_logged("agent.named")["name"] == vm.name
        guest.hold("prepare")
        event_id = vm.restart()
        guest.until_begun("prepare drain 1")
        # Not before it is prepared.
        assert vm.event(event_id)["approved_at"] is None
        guest.release("prepare")
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")
        guest.until_state("done")
        # The start may be seen before the answer to the approval is.
        expected = ["preparing", "prepared", "started", "recovering", "done"]
        assert [move for move in guest.moves if move != "approved"] == expected
        assert [entry["event_id"] for entry in guest.logged("approval.done")] == [event_id]
        assert vm.event(event_id)["approved_by"] == vm.name
        # It goes on polling.
        vm.restart()
        until(lambda: len(guest.done) == 6)
        until(lambda: guest.moves.count("done") == 2)


def what_handlers_are_told(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    scripts = {phase: f'cat > "$DIARY.{phase}.json"; env > "$DIARY.{phase}"' for phase in ("prepare", "recover")}
    with agent(home, vm.endpoint, command("facts", scripts, timeout="20s")) as guest:
        event_id = vm.restart()
        guest.until_state("done")
        event = vm.event(event_id)

    def told(phase: str) -> tuple[dict[str, str], dict[str, Any]]:
        lines = (guest.home / f"diary.{phase}").read_text().splitlines()
        document = json.loads((guest.home / f"diary.{phase}.json").read_text())
        return dict(line.split("=", 1) for line in lines if line.startswith(("FORENOTICE_", "EVENT_"))), document

    variables, document = told("prepare")
    not_before = datetime.fromisoformat(event["not_before"])
    expected = {
        "FORENOTICE_PHASE": "prepare",
        "FORENOTICE_HANDLER": "facts",
        "FORENOTICE_ATTEMPT": "1",
        "FORENOTICE_NAME": vm.name,
        "FORENOTICE_EVENT_ID": event_id,
        "FORENOTICE_EVENT_TYPE": "Reboot",
        "FORENOTICE_EVENT_STATUS": "Scheduled",
        "FORENOTICE_EVENT_SOURCE": "User",
        "FORENOTICE_EVENT_DESCRIPTION": event["description"],
        "FORENOTICE_RESOURCES": vm.name,
        "FORENOTICE_DURATION": "-1",
        "FORENOTICE_NOT_BEFORE": not_before.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "EVENT_ID": event_id,
        "EVENT_TYPE": "Reboot",
        "EVENT_NOTBEFORE": not_before.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "EVENT_RESOURCES": vm.name,
    }
    assert {name: variables[name] for name in expected} == expected
    # Its own time is up before the event's is.
    assert 15 <= int(variables["FORENOTICE_SECONDS_LEFT"]) <= 20
    assert datetime.fromisoformat(variables["FORENOTICE_DEADLINE"]) < not_before
    assert (document["phase"], document["event"]["EventId"], document["name"]) == ("prepare", event_id, vm.name)
    variables, document = told("recover")
    assert (variables["FORENOTICE_PHASE"], variables["FORENOTICE_EVENT_STATUS"]) == ("recover", "Started")
    assert (variables["FORENOTICE_EVENT_ID"], variables["FORENOTICE_NOT_BEFORE"]) == (event_id, "")
    assert document["phase"] == "recover"


def of_two_events_one_is_ours(home: Path, fleet: Fleet) -> None:
    vm, other = fleet.pair()
    with meddler(vm.place) as between, agent(home, between.url, diary()) as guest:
        guest.until_logged("agent.named")
        others = other.restart()
        own = vm.restart()
        # Both are in its document.
        assert set(vm.listed) == {own, others}
        guest.until_state("done")
        assert guest.done == ["prepare drain 1", "on_started drain 1", "recover drain 1"]
        assert between.approved == [[own]]
        assert other.event(others)["status"] == "Scheduled"
        assert other.event(others)["approved_at"] is None
        assert [entry["event_id"] for entry in guest.logged("saga.seen")] == [own]
        other.cancel(others)
        # Its end is none of this agent's business either.
        vm.restart()
        until(lambda: guest.moves.count("done") == 2)
        assert len(guest.done) == 6


def acting_for_others(home: Path, fleet: Fleet) -> None:
    vm, other = fleet.pair()
    config = f'act_for = ["{other.name}"]\n' + diary()
    with agent(home, vm.endpoint, config) as guest:
        event_id = other.restart()
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")
        assert other.event(event_id)["approved_by"] == vm.name


def two_events_for_one_handler(home: Path, fleet: Fleet) -> None:
    """It is prepared for both, and comes back when neither needs it any more."""
    vm = fleet.alone()
    with agent(home, vm.endpoint, NEVER + diary()) as guest:
        first, second = vm.restart(), vm.maintain_host("host-update")
        until(lambda: guest.moves.count("prepared") == 2)
        assert guest.done == ["prepare drain 1", "prepare drain 1"]
        vm.cancel(first)
        guest.until_logged("saga.moved", event_id=first, state="done")
        assert len(guest.begun) == 2
        vm.cancel(second)
        guest.until_logged("saga.moved", event_id=second, state="done")
        assert guest.done[2:] == ["undo drain 1"]


def without_notice(home: Path, fleet: Fleet) -> None:
    """There is nothing to prepare and nothing to approve; what only wants to know is told."""
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary() + diary("look", ["recover"])) as guest:
        guest.until_logged("agent.named")
        vm.fail_host()
        guest.until_done("on_started drain 1", "recover look 1")
        assert guest.moves[0] == "started"
        assert guest.logged("approval.done") == []


def a_clock_that_is_wrong(home: Path, fleet: Fleet) -> None:
    """Deadlines are the endpoint's: this VM's own clock is an hour late."""
    vm = fleet.alone()
    script = 'echo "$FORENOTICE_SECONDS_LEFT" > "$DIARY"'
    with meddler(vm.place) as between:
        between.ahead = timedelta(hours=1)
        with agent(home, between.url, command("tell", {"prepare": script})) as guest:
            guest.until_logged("agent.named")
            vm.restart_soon()
            guest.until_logged("approval.done")
            assert 0 < int(guest.done[0]) <= 5


# When it approves


def refused_at_first(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, diary()) as guest:
        between.fail_first(said(503, b'{"error":"later"}', Retry_After="1"), said(400, b'{"error":"no such event"}'))
        event_id = vm.restart()
        guest.until_logged("approval.done", event_id=event_id)
        first, second, _ = guest.logged("approval.failed")
        assert "answered 503: later" in first["reason"]
        assert "answered 400: no such event" in second["reason"]
        assert between.approved == [[event_id]] * 3
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")


def dropped_at_first(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, diary()) as guest:
        between.fail_first(DroppedError)
        event_id = vm.restart()
        guest.until_logged("approval.failed")
        guest.until_logged("approval.done", event_id=event_id)
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")


def never_answered_at_first(home: Path, fleet: Fleet) -> None:
    """It is asked again soon enough for a Preempt's thirty seconds."""
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, diary()) as guest:
        guest.until_logged("agent.named")
        between.fail_first(HeldError)
        vm.restart()
        until(lambda: between.approved)
        guest.until_logged("approval.done", seconds=25)


def at_once(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, AT_ONCE + diary()) as guest:
        event_id = vm.restart()
        guest.until_logged("approval.done", event_id=event_id)
        guest.until_state("done")
        # What was not prepared is not recovered from.
        assert guest.begun == ["on_started drain 1"]


def observed_first(home: Path, fleet: Fleet) -> None:
    """Then told to act, in the middle of the event."""
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary(), FORENOTICE_OBSERVE="true") as guest:
        event_id = vm.restart()
        until(lambda: "would have approved at" in guest.why)
        guest.terminate()
        assert guest.begun == []
        assert vm.event(event_id)["approved_at"] is None
        assert not (guest.state / "journal.db").exists()
        del guest.env["FORENOTICE_OBSERVE"]
        guest.start()
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")
        assert vm.event(event_id)["approved_by"] == vm.name


def test_the_whole_way(fleet: Fleet, tmp_path: Path) -> None:
    tell(
        tmp_path,
        fleet,
        the_whole_way,
        what_handlers_are_told,
        of_two_events_one_is_ours,
        acting_for_others,
        two_events_for_one_handler,
        without_notice,
        a_clock_that_is_wrong,
        refused_at_first,
        dropped_at_first,
        never_answered_at_first,
        at_once,
        observed_first,
    )
