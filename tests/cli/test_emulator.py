"""`forenotice emulator`: each command against an emulator with its control."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.running import ask
from tests.cli.conftest import Run
from tests.control.running import Control
from tests.emulator.controlled import Controlled, controlled

from forenotice.wire.errors import MISSING_HEADER


@pytest.fixture(scope="module")
def shared() -> Iterator[Controlled]:
    with controlled() as found:
        yield found


@pytest.fixture
def emulator(shared: Controlled, run: Run, monkeypatch: pytest.MonkeyPatch) -> Controlled:
    monkeypatch.setenv("FORENOTICE_CONTROL", shared.control_url)
    shared.post("/play", scenario="reboot", resources=["web-0"])
    shared.post("/reset")
    return shared


def test_an_event_that_a_guest_approves(emulator: Controlled, run: Run) -> None:
    made = run("emulator", "event", "reboot", "--resources", "web-0, b", "--notice", "5m", "--json").json
    assert (made["type"], made["resources"], made["status"]) == ("Reboot", ["b", "web-0"], "Scheduled")
    listed = run("emulator", "events").out
    assert made["id"] in listed
    assert "Scheduled" in listed
    assert emulator.approve(made["id"]).status == 200
    (found,) = run("emulator", "events", "--json").json
    assert (found["status"], found["approved_by"]) == ("Started", "web-0")
    assert "There are no live events." in run("emulator", "advance", "15m").out
    assert "Completed" in run("emulator", "events", "--all").out
    run("emulator", "reset")
    assert run("emulator", "events", "--all").out == "There are no events.\n"


def test_events_in_words(emulator: Controlled, run: Run) -> None:
    assert run("emulator", "event", "preempt").out.startswith("Preempt of web-0 is Scheduled, not before 20")
    (event,) = run("emulator", "events", "--json").json
    assert run("emulator", "cancel", event["id"]).out.startswith("Preempt of web-0 is Canceled.")
    run("emulator", "event", "live-migration", "--takes", "1m", "--description", "Moving.")
    (event,) = emulator.document()["Events"]
    assert (event["EventType"], event["Description"]) == ("Freeze", "Moving.")
    assert "is Started." in run("emulator", "approve", event["EventId"]).out


def test_why_an_event_waits(emulator: Controlled, run: Run) -> None:
    first = run("emulator", "event", "reboot", "--notice", "5m", "--takes", "2m", "--json").json
    said = run("emulator", "explain", first["id"]).out.splitlines()
    assert said[0].startswith("It waits for approval by emulated (web-0), until 20")
    assert re.match(r"That leaves [345] min", said[1])
    found = run("emulator", "explain", first["id"].lower(), "--json").json
    assert (found["event"], found["sentence"], found["until"]) == (first["id"], said[0], first["not_before"])
    assert [facts["kind"] for facts in found["waiting_for"]] == ["approval"]
    ask(emulator.guests, "GET", "/metadata/scheduledevents?api-version=2020-07-01")
    said = run("emulator", "explain", first["id"]).out.splitlines()
    refused = "1 request was refused: web-0 GET /metadata/scheduledevents?api-version=2020-07-01: 400, Bad request."
    assert f"UTC at the latest. {refused} Required metadata header not specified." in said[0]
    second = run("emulator", "event", "live-migration", "--json").json
    run("emulator", "approve", first["id"])
    assert re.search(r"\nThat leaves ([12] min|\d+ s)", run("emulator", "explain", first["id"]).out)
    run("emulator", "approve", second["id"])
    assert "acts on web-0: it waits until that has ended" in run("emulator", "explain", second["id"]).out
    run("emulator", "advance", "1h")
    assert run("emulator", "explain", first["id"]).out.startswith("It is over: Completed at ")
    assert "there is no event" in run("emulator", "explain", "none").err


def test_waiting_for_an_event(emulator: Controlled, run: Run) -> None:
    event = run("emulator", "event", "reboot", "--notice", "1h", "--takes", "1h", "--json").json
    ran = run("emulator", "wait", event["id"], "--approved", "--timeout", "0.2s")
    assert ran.code == 1
    sentence = "Reboot of web-0 is not approved after 0.2 s. It waits for approval by emulated (web-0), until 20"
    assert ran.err.startswith(f"forenotice: {sentence}")
    other = threading.Timer(0.1, emulator.approve, [event["id"]])
    other.start()
    found = run("emulator", "wait", event["id"], "--approved", "--timeout", "1m", "--json").json
    assert found["approved_by"] == "web-0"
    other.join(60)
    assert run("emulator", "wait", event["id"], "--started").out.startswith("Reboot of web-0 is Started.\n")
    # A program gets the event as it is then, too.
    ran = run("emulator", "wait", event["id"], "--timeout", "0s", "--json", failing=1)
    assert ran.json["status"] == "Started"
    assert "Reboot of web-0 is not over after 0 s. It started at 20" in ran.err
    run("emulator", "advance", "1h")
    for flag in ("--gone", "--started", "--approved"):
        assert run("emulator", "wait", event["id"], flag).out.startswith("Reboot of web-0 is Completed.\n")


def test_what_silence_has_approved_still_waits_for_an_approval(emulator: Controlled, run: Run) -> None:
    emulator.post("/play", scenario="first-call", resources=["web-0"])
    (event,) = run("emulator", "events", "--json").json
    assert (event["status"], event["approved_by"], event["implied"]) == ("Scheduled", "silence", True)
    ran = run("emulator", "wait", event["id"], "--approved", "--timeout", "0s")
    assert (ran.code, ran.err.startswith("forenotice: ")) == (1, True)
    assert "web-0 is not approved after 0 s. " in ran.err
    run("emulator", "approve", event["id"])
    found = run("emulator", "wait", event["id"], "--approved", "--timeout", "0s", "--json").json
    assert (found["approved_by"], found["implied"]) == ("operator", False)


def test_what_can_no_longer_happen_is_not_waited_for(emulator: Controlled, run: Run) -> None:
    for verb, flag, why in (
        ("cancel", "--approved", "Canceled: it was not approved in time"),
        ("cancel", "--started", "Canceled: it never started"),
        ("advance", "--approved", "Started: it was not approved in time"),
    ):
        event = run("emulator", "event", "reboot", "--notice", "5m", "--takes", "1h", "--json").json
        run("emulator", verb, event["id"] if verb == "cancel" else "5m")
        ran = run("emulator", "wait", event["id"], flag)
        assert (ran.code, ran.err) == (1, f"forenotice: Reboot of web-0 is {why}\n")


def test_a_clock_that_is_paused(emulator: Controlled, run: Run) -> None:
    assert ", paused\n" in run("emulator", "pause").out
    run("emulator", "event", "reboot", "--notice", "5m")
    assert "Started" in run("emulator", "step").out
    assert "There are no live events." in run("emulator", "step").out
    refused = run("emulator", "step")
    assert refused.code == 1
    assert "nothing happens by itself now" in refused.err
    assert ", paused" not in run("emulator", "resume").out


def test_faults_and_requests(emulator: Controlled, run: Run) -> None:
    assert run("emulator", "requests").out == "There are no requests yet.\n"
    said = run("emulator", "fault", "error-503", "--times", "2", "--on", "polls", "--lasts", "1h").out
    assert said.startswith("error-503 is on for polls, amount 5 s, 2 times, until ")
    assert [emulator.poll().status for _ in range(3)] == [503, 503, 200]
    assert run("emulator", "requests", "--last", "2", "--json").json[0]["fault"] == "error-503"
    assert "503       error-503\n" in run("emulator", "requests").out
    ask(emulator.guests, "GET", "/metadata/scheduledevents?api-version=2020-07-01")
    assert run("emulator", "requests", "--last", "1", "--json").json[0]["reason"] == MISSING_HEADER
    assert f"400       {MISSING_HEADER}\n" in run("emulator", "requests").out
    said = run("emulator", "fault", "clock-skew", "--amount=-5m").out
    assert said == "clock-skew is on for all requests, amount -300 s.\n"
    assert "for all requests, amount -300 s" in run("emulator", "faults").out
    assert run("emulator", "faults", "--json").json[11]["active"]["amount_seconds"] == -300
    assert "clock-skew for all requests, amount -300 s" in run("emulator", "state").out
    assert run("emulator", "fault", "clock-skew", "--off", "--json").json["faults"] == []
    assert run("emulator", "fault", "--off", "--json").json["faults"] == []


def test_scenarios(emulator: Controlled, run: Run, tmp_path: Path) -> None:
    played = run("emulator", "play", "rolling-update").out
    assert "scenario     rolling-update, waits for Freeze of web-0 to be gone" in played
    run("emulator", "play", "two-events")
    assert "scenario     two-events, all is played\n" in run("emulator", "advance", "1h").out
    file = tmp_path / "mine.toml"
    file.write_text(emulator.get("/scenarios/spot-eviction")["toml"])
    state = run("emulator", "play", str(file), "--resources", "app_3", "--seed", "4", "--json").json
    assert (state["as"], state["scenario"]["name"], state["scenario"]["seed"]) == ("app_3", "mine", 4)
    assert run("emulator", "reset", "--json").json["scenario"] is None
    there = run("emulator", "endpoint", "db").out.strip()
    assert emulator.document(there.removeprefix("http://"))["Events"] == []
    assert run("emulator", "endpoint", "db", "--json").json == {"vm": "db", "endpoint": there}


BAD = [
    (("event", "explode"), 1, "forenotice: EVENT must be one of reboot, freeze, preempt"),
    (("event", "reboot", "--notice", "soon"), 1, "forenotice: --notice must be a duration"),
    (("advance", "soon"), 1, "forenotice: TIME must be a duration"),
    (("fault", "latency", "--on", "puts"), 1, "forenotice: --on "),
    (("fault", "eror-503"), 1, "did you mean 'error-503'?"),
    (("fault",), 2, "which fault?"),
    (("play", "rebot"), 1, "did you mean 'reboot'?"),
    (("play", "none.toml"), 2, "none.toml cannot be read: No such file or directory"),
    (("play", "latin.toml"), 2, "latin.toml cannot be read: it is not UTF-8"),
    (("play", "mistake.toml"), 1, "mistake.toml:1:1: "),
    (("approve", "none"), 1, "there is no event"),
    (("wait", "none"), 1, "there is no event"),
    (("wait", "it", "--approved", "--gone"), 2, "wait for one thing: give one of --approved, --started and --gone"),
    (("wait", "it", "--timeout", "30"), 2, "'--timeout': '30' is not a duration"),
    (("requests", "--last", "0"), 2, "Invalid value for '--last'"),
]


def test_mistakes_are_one_sentence(
    emulator: Controlled, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mistake.toml").write_text("titel = 'x'\n")
    (tmp_path / "latin.toml").write_bytes(b"title = '\xe9'\n")
    for arguments, code, sentence in BAD:
        ran = run("emulator", *arguments)
        assert (ran.code, ran.err.count("\n"), sentence in ran.err) == (code, 1, True), ran


def test_no_emulator_is_there(run: Run, module_control: Control) -> None:
    for url, question in (
        ("127.0.0.1:9", "is `forenotice emulate` running?"),
        (module_control.url, "is --control-url right, and `forenotice emulate` running there?"),
    ):
        ran = run("emulator", "state", "--control-url", url)
        assert (ran.code, question in ran.err) == (1, True)
