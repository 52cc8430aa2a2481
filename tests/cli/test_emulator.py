"""`forenotice emulator`: each command against an emulator with its control."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.control.running import Control
from tests.emulator.driven import Driven, driven


@pytest.fixture(scope="module")
def shared() -> Iterator[Driven]:
    with driven() as found:
        yield found


@pytest.fixture
def emulator(shared: Driven, run: Run, monkeypatch: pytest.MonkeyPatch) -> Driven:
    monkeypatch.setenv("FORENOTICE_CONTROL", shared.control_url)
    shared.post("/play", scenario="reboot", resources=["web-0"])
    shared.post("/reset")
    return shared


def test_an_event_that_a_guest_approves(emulator: Driven, run: Run) -> None:
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


def test_events_in_words(emulator: Driven, run: Run) -> None:
    assert run("emulator", "event", "preempt").out.startswith("Preempt of web-0 is Scheduled, not before 20")
    (event,) = run("emulator", "events", "--json").json
    assert run("emulator", "cancel", event["id"]).out.startswith("Preempt of web-0 is Canceled.")
    run("emulator", "event", "live-migration", "--takes", "1m", "--description", "Moving.")
    (event,) = emulator.document()["Events"]
    assert (event["EventType"], event["Description"]) == ("Freeze", "Moving.")
    assert "is Started." in run("emulator", "approve", event["EventId"]).out


def test_a_clock_that_is_paused(emulator: Driven, run: Run) -> None:
    assert ", paused\n" in run("emulator", "pause").out
    run("emulator", "event", "reboot", "--notice", "5m")
    assert "Started" in run("emulator", "step").out
    assert "There are no live events." in run("emulator", "step").out
    refused = run("emulator", "step")
    assert refused.code == 1
    assert "nothing happens by itself now" in refused.err
    assert ", paused" not in run("emulator", "resume").out


def test_faults_and_requests(emulator: Driven, run: Run) -> None:
    assert run("emulator", "requests").out == "Nobody has asked yet.\n"
    said = run("emulator", "fault", "error-503", "--times", "2", "--on", "polls", "--lasts", "1h").out
    assert said.startswith("error-503 is switched on for polls, amount 5 s, 2 times, until ")
    assert [emulator.poll().status for _ in range(3)] == [503, 503, 200]
    assert run("emulator", "requests", "--last", "2", "--json").json[0]["fault"] == "error-503"
    assert "503     error-503\n" in run("emulator", "requests").out
    said = run("emulator", "fault", "clock-skew", "--amount=-5m").out
    assert said == "clock-skew is switched on for all requests, amount -300 s.\n"
    assert "for all requests, amount -300 s" in run("emulator", "faults").out
    assert run("emulator", "faults", "--json").json[11]["active"]["amount_seconds"] == -300
    assert "clock-skew for all requests, amount -300 s" in run("emulator", "state").out
    assert run("emulator", "fault", "clock-skew", "--off", "--json").json["faults"] == []
    assert run("emulator", "fault", "--off", "--json").json["faults"] == []


def test_scenarios(emulator: Driven, run: Run, tmp_path: Path) -> None:
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
    (
        ("event", "explode"),
        1,
        "forenotice: EVENT: 'explode' is no event: give reboot, freeze, preempt",
    ),
    (("event", "reboot", "--notice", "soon"), 1, "forenotice: --notice: 'soon' is not a duration"),
    (("advance", "soon"), 1, "forenotice: TIME: 'soon' is not a duration"),
    (("fault", "latency", "--on", "puts"), 1, "forenotice: --on: "),
    (("fault", "eror-503"), 1, "did you mean error-503?"),
    (("fault",), 2, "which fault?"),
    (("play", "rebot"), 1, "did you mean 'reboot'?"),
    (("play", "none.toml"), 2, "none.toml cannot be read: No such file or directory"),
    (("play", "latin.toml"), 2, "latin.toml cannot be read: it is not UTF-8"),
    (("play", "mistake.toml"), 1, "mistake.toml:1:1: "),
    (("approve", "none"), 1, "there is no event"),
    (("requests", "--last", "0"), 2, "Invalid value for '--last'"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), BAD, ids=[" ".join(row[0]) for row in BAD])
def test_mistakes_are_one_sentence(
    emulator: Driven,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mistake.toml").write_text("titel = 'x'\n")
    (tmp_path / "latin.toml").write_bytes(b"title = '\xe9'\n")
    ran = run("emulator", *arguments)
    assert ran.code == code
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_no_emulator_is_there(run: Run, module_control: Control) -> None:
    ran = run("emulator", "state", "--control-url", "127.0.0.1:9")
    assert ran.code == 1
    assert "is `forenotice emulate` running?" in ran.err
    ran = run("emulator", "state", "--control-url", module_control.url)
    assert ran.code == 1
    assert "is --control-url right, and `forenotice emulate` running there?" in ran.err
