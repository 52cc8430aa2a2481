"""The command driver, with real programs."""

import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from tests.acceptance.running import until

from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import Kind
from forenotice.drivers import file
from forenotice.drivers.command import CommandDriver
from forenotice.runtime import Runtime
from forenotice.settings.values import Span

START = datetime(2026, 1, 5, tzinfo=UTC)
MOVE = Task(
    operation="o-1",
    kind=Kind.LIVE_MIGRATION,
    host="host-a",
    vms=("web-0",),
    targets={"web-0": "host-b", "db": "host-c"},
    attempt=2,
    started_at=START,
    vm_ids={"web-0": "1234"},
    events={"web-0": "E-1", "db": "E-2"},
    address="10.0.0.1",
    target_addresses={"web-0": "10.0.0.2", "db": None},
    duration=5,
    shutdown_timeouts={"web-0": timedelta(seconds=90)},
)


def driver(*run: str, each: str = "vm", seconds: float = 10) -> CommandDriver:
    config = file.Command(
        actions=file.Actions(default=("/bin/true",), live_migration=file.Action(run=run, each=each)),
        passed=("PASSED",),
        time_limit=Span(seconds=seconds),
    )
    return CommandDriver(config, Runtime(), grace=0.2)


def sh(text: str, task: Task = MOVE, **how: object) -> Outcome:
    return driver("/bin/sh", "-c", text, **how).carry_out(task, START)  # type: ignore[arg-type]


def finished(outcome: Outcome) -> Finished:
    assert isinstance(outcome, Finished), outcome
    assert msgspec.json.encode(outcome.calls), "it fits into the journal"
    return outcome


def output(outcome: Outcome) -> str:
    return str(finished(outcome).calls[0]["output"])


def test_a_program_gets_the_facts_as_words() -> None:
    made = driver("/bin/echo", "{operation}", "{kind}", "{host}", "{vm}/{vm_id}", "{target}", "{event}", "{attempt}")
    found = finished(made.carry_out(MOVE, START))
    assert (found.done, found.failures) == (("web-0",), {})
    assert output(found) == "o-1 live-migration host-a web-0/1234 host-b E-1 2"
    assert {key: found.calls[0][key] for key in ("vms", "exit_code")} == {"vms": ["web-0"], "exit_code": 0}
    # Its standard input is empty, there is no shell, and the program itself may depend on the facts.
    assert output(driver("/bin/cat").carry_out(MOVE, START)) == ""
    assert output(driver("/bin/echo", "$HOME; {vm} > x").carry_out(MOVE, START)) == "$HOME; web-0 > x"
    assert output(driver("/bin/{vm}", "x").carry_out(replace(MOVE, vms=("echo",)), START)) == "x"


def test_and_as_variables_and_little_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FORENOTICE_TOKEN", "secret"), ("SECRET", "secret"), ("PASSED", "too")):
        monkeypatch.setenv(name, value)
    found = dict(word.partition("=")[::2] for word in output(sh("env")).split(" / "))
    ours = {name: value for name, value in found.items() if name.startswith("FORENOTICE_")}
    assert ours == {
        "FORENOTICE_OPERATION": "o-1",
        "FORENOTICE_KIND": "live-migration",
        "FORENOTICE_HOST": "host-a",
        "FORENOTICE_ATTEMPT": "2",
        "FORENOTICE_DURATION": "5",
        "FORENOTICE_SHUTDOWN_TIMEOUT": "90",
        "FORENOTICE_VMS": "web-0",
        "FORENOTICE_HOST_ADDRESS": "10.0.0.1",
        "FORENOTICE_TARGET_ADDRESS": "10.0.0.2",
        "FORENOTICE_TARGETS": "web-0=host-b",
        "FORENOTICE_EVENTS": "E-1",
        "FORENOTICE_VM": "web-0",
        "FORENOTICE_VM_ID": "1234",
        "FORENOTICE_TARGET": "host-b",
        "FORENOTICE_EVENT": "E-1",
    }
    assert found["PASSED"] == "too"
    # The shell adds some of its own.
    assert found.keys() - ours.keys() <= {"PASSED", "PATH", "HOME", "LANG", "PWD", "SHLVL", "_", "OLDPWD"}


def test_once_for_all_vms_of_a_host() -> None:
    text = "echo $FORENOTICE_VMS: $FORENOTICE_TARGETS, $FORENOTICE_EVENTS; env | grep -c '^FORENOTICE_VM='; true"
    outcome = finished(sh(text, replace(MOVE, vms=("web-0", "db")), each="host"))
    assert outcome.done == ("web-0", "db")
    assert output(outcome) == "web-0 db: web-0=host-b db=host-c, E-1 E-2 / 0"


def test_a_program_that_fails_says_why_and_its_output_is_bounded() -> None:
    outcome = finished(sh("echo trying; printf '\\033[31mno such \\007domain\\377\\n' >&2; exit 3"))
    assert (outcome.done, outcome.calls[0]["exit_code"]) == ((), 3)
    assert outcome.failures["web-0"].startswith("exit code 3: trying / no such  domain")
    assert all(letter.isprintable() for letter in output(outcome))
    outcome = finished(sh("yes | head -c 100000; echo the end; exit 1"))
    assert outcome.failures["web-0"].endswith("the end")
    assert len(outcome.failures["web-0"]) < 400
    assert 1000 < len(output(outcome)) < 10_000


def test_when_its_time_is_up_all_that_it_started_is_killed(tmp_path: Path) -> None:
    child = tmp_path / "child"
    outcome = sh(f"trap '' TERM; sleep 60 & echo $! > {child}; wait; wait", seconds=0.3)
    assert "when its time was up, and killed" in finished(outcome).failures["web-0"]
    until(lambda: not alive(int(child.read_text())))


def test_when_the_service_ends_it_is_asked_to_end_and_is_for_later(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    made = driver("/bin/sh", "-c", f"touch {begun}; exec sleep 60", seconds=60)

    def stop() -> None:
        until(begun.exists)
        made.stop()

    threading.Thread(target=stop, daemon=True).start()
    before = time.monotonic()
    assert made.carry_out(MOVE, START) == NotYet(again_at=START)
    assert time.monotonic() - before < 30


def test_a_program_that_is_gone_is_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    made = driver(str(program))
    program.unlink()
    outcome = made.carry_out(MOVE, START)
    assert outcome == Finished(failures={"web-0": f"there is no program {program}"})


def test_a_name_is_no_option() -> None:
    strange = replace(MOVE, vms=("--help",))
    outcome = finished(driver("/bin/echo", "{vm}").carry_out(strange, START))
    assert "a program would take it for an option" in outcome.failures["--help"]
    assert output(driver("/bin/echo", "x={vm}", "-{vm}").carry_out(strange, START)) == "x=--help ---help"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
