import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.agent.handlers.work import done, failed, work
from tests.agent.parts import RUNTIME

from forenotice.agent.handlers import Outcome, facts, tables
from forenotice.agent.handlers.command import Command
from forenotice.agent.rules.policy import Phase


def command(**keys: Any) -> Command:
    return Command(tables.Command(name="drain", **keys), RUNTIME, grace=0.3)


def test_each_phase_has_a_program_of_its_own() -> None:
    made = command(prepare=("echo", "down"), on_started=("echo", "under way"), recover=("echo", "up"))
    said = {phase: made.run(work(phase=phase)) for phase in Phase}
    assert said == {
        Phase.PREPARE: done("down"),
        Phase.ON_STARTED: done("under way"),
        Phase.RECOVER: done("up"),
        Phase.UNDO: done("up"),
    }


def test_a_phase_without_a_program_is_done_at_once() -> None:
    assert command(recover=("false",)).run(work()) == done("nothing to run")


def test_the_facts_come_as_json_on_stdin() -> None:
    assert json.loads(command(prepare=("cat",)).run(work()).message) == json.loads(facts.encoded(work()))


def test_the_facts_come_as_variables_and_what_is_configured_comes_on_top() -> None:
    made = command(prepare=("/bin/sh", "-c", 'echo "$EVENT_ID $EVENT_TYPE"'), environment={"EVENT_TYPE": "mine"})
    assert made.run(work()).message == f"{work().event.id} mine"


def test_no_shell_looks_at_it_unless_asked() -> None:
    assert command(prepare=("echo", "$EVENT_TYPE; `id`", "*")).run(work()).message == "$EVENT_TYPE; `id` *"
    asked = command(prepare=('echo "$EVENT_TYPE" && cat > /dev/null && exit 4',), shell=True)
    assert asked.run(work()) == failed("exit code 4: Reboot")


def test_an_event_cannot_slip_words_into_a_shell() -> None:
    event = type(work().event)(id="A", status="Scheduled", type="Reboot", description="$(echo slipped); echo in")
    made = command(prepare=('echo "$EVENT_DESCRIPTION"',), shell=True)
    assert made.run(work(event=event)).message == "$(echo slipped); echo in"


def test_environment_and_directory_are_as_configured(tmp_path: Path) -> None:
    made = command(prepare=('echo "$WHO in $PWD"',), shell=True, environment={"WHO": "me"}, directory=str(tmp_path))
    assert made.run(work()).message == f"me in {tmp_path}"


def test_it_is_stopped_when_the_agent_asks() -> None:
    given = work(seconds_left=60)
    threading.Timer(0.1, given.stop.set).start()
    begun = time.monotonic()
    assert command(prepare=("sleep", "60")).run(given) == failed("stopped after 0 s, as the agent asked")
    assert time.monotonic() - begun < 30


def test_it_is_stopped_when_its_time_is_up() -> None:
    stopped = command(prepare=("sleep", "60")).run(work(seconds_left=0.1))
    assert stopped == failed("stopped after 0 s, when its time was up")


def test_a_program_that_is_missing_is_a_failure() -> None:
    assert command(prepare=("/nowhere/at/all",)).run(work()) == failed("there is no program /nowhere/at/all")


def script(path: Path, mode: int) -> Path:
    path.write_text("#!/bin/sh\ntouch ran\n")
    path.chmod(mode)
    return path


def test_a_rehearsal_tells_what_would_run_and_runs_nothing(tmp_path: Path) -> None:
    script(tmp_path / "drain", 0o755)
    made = command(
        prepare=("./drain", "secret"), recover=("drain",), directory=str(tmp_path), environment={"PATH": str(tmp_path)}
    )
    there = f"{tmp_path}/drain"
    assert made.rehearse() == Outcome(
        ok=True,
        message=f"prepare would run {tmp_path}/./drain; recover would run {there}; undo would run {there}",
    )
    assert not (tmp_path / "ran").exists()


def test_a_rehearsal_tells_what_is_missing(tmp_path: Path) -> None:
    plain = script(tmp_path / "plain", 0o644)
    made = command(prepare=(str(plain),), recover=("/bin/true",), undo=("no-such-program",))
    assert made.rehearse() == Outcome(
        ok=False,
        message=f"prepare would fail: {plain} is not executable: chmod +x it; recover would run /bin/true;"
        " undo would fail: there is no program no-such-program",
    )
    assert command(prepare=("/bin/true",), directory="/nowhere").rehearse() == failed(
        "prepare would fail: there is no directory /nowhere"
    )


def test_a_program_that_cannot_be_run_in_one_place_is_found_in_the_next(tmp_path: Path) -> None:
    script(tmp_path / "true", 0o644)
    made = command(prepare=("true",), environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert made.rehearse().ok
    assert made.run(work()).ok


@pytest.mark.parametrize(("text", "ok"), [("touch ran && true", True), ("if true", False)])
def test_a_rehearsal_reads_what_a_shell_would_run(tmp_path: Path, text: str, ok: bool) -> None:
    outcome = command(prepare=(text,), shell=True, directory=str(tmp_path)).rehearse()
    assert outcome.ok is ok
    assert outcome.message.startswith(
        "prepare would run /bin/sh" if ok else "prepare would fail: /bin/sh does not understand it: exit code 2: "
    )
    assert not (tmp_path / "ran").exists()
