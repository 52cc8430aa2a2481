"""`command`, `file`, and `systemd` by the real systemctl, against a fake of systemd on a bus of its own (bus.py)."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.agent.handlers.bus import Systemd as FakeSystemd
from tests.agent.handlers.bus import fake_systemd
from tests.agent.handlers.work import UNREMEMBERED, Tried, beside, done, failed, full, work
from tests.agent.parts import RUNTIME

from forenotice.agent.handlers import facts, tables
from forenotice.agent.handlers.local import Command, File, Systemd
from forenotice.agent.rules.policy import Phase

# command


def command(**keys: Any) -> Tried:
    return Tried(Command(tables.Command(name="drain", **keys), RUNTIME, grace=0.3))


def test_each_phase_has_a_program_of_its_own() -> None:
    made = command(prepare=("echo", "down"), on_started=("echo", "under way"), recover=("echo", "up"))
    outcomes = [made.run(phase=phase) for phase in Phase]
    assert outcomes == [done("down"), done("under way"), done("up"), done("up")]
    assert command(recover=("false",)).run() == done("nothing to run")


def test_a_program_gets_the_facts_on_standard_input_and_as_variables() -> None:
    assert json.loads(command(prepare=("cat",)).run().message) == json.loads(facts.encoded(work()))
    made = command(prepare=("/bin/sh", "-c", 'echo "$EVENT_ID $EVENT_TYPE"'), environment={"EVENT_TYPE": "mine"})
    assert made.run().message == f"{work().event.id} mine", "what is configured comes on top"


def test_a_shell_is_used_only_where_that_is_configured(tmp_path: Path) -> None:
    assert command(prepare=("echo", "$EVENT_TYPE; `id`", "*")).run().message == "$EVENT_TYPE; `id` *"
    shell = command(prepare=('echo "$EVENT_TYPE" && cat > /dev/null && exit 4',), shell=True)
    assert shell.run() == failed("exit code 4: Reboot")
    event = type(work().event)(id="A", status="Scheduled", type="Reboot", description="$(echo slipped); echo in")
    made = command(prepare=('echo "$EVENT_DESCRIPTION"',), shell=True)
    assert made.run(event=event).message == "$(echo slipped); echo in", "an event cannot slip in words"
    made = command(prepare=('echo "$WHO in $PWD"',), shell=True, environment={"WHO": "me"}, directory=str(tmp_path))
    assert made.run().message == f"me in {tmp_path}"


def test_a_program_is_stopped_when_the_agent_asks_and_when_its_time_is_up() -> None:
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    sleeping = command(prepare=("sleep", "60"))
    begun = time.monotonic()
    assert sleeping.run(seconds_left=60, stop=stop) == failed("stopped after 0 s, as the agent asked")
    assert sleeping.run(seconds_left=0.1) == failed("stopped after 0 s, when its time was up")
    assert time.monotonic() - begun < 30


def script(path: Path, mode: int) -> Path:
    path.write_text("#!/bin/sh\ntouch ran\n")
    path.chmod(mode)
    return path


def test_a_rehearsal_tells_which_programs_would_run_and_runs_none(tmp_path: Path) -> None:
    there = script(tmp_path / "drain", 0o755)
    environment = {"PATH": str(tmp_path)}
    made = command(prepare=("./drain", "secret"), recover=("drain",), directory=str(tmp_path), environment=environment)
    assert made.rehearse() == done(
        f"prepare would run {tmp_path}/./drain; recover would run {there}; undo would run {there}"
    )
    plain = script(tmp_path / "plain", 0o644)
    made = command(prepare=(str(plain),), recover=("/bin/true",), undo=("no-such-program",))
    assert made.rehearse() == failed(
        f"prepare would fail: {plain} is not executable: chmod +x it; recover would run /bin/true;"
        " undo would fail: there is no program no-such-program"
    )
    assert made.run(phase=Phase.UNDO) == failed("there is no program no-such-program")
    nowhere = command(prepare=("/bin/true",), directory="/nowhere")
    assert nowhere.rehearse() == failed("prepare would fail: there is no directory /nowhere")
    script(tmp_path / "true", 0o644)
    made = command(prepare=("true",), environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert made.rehearse().ok, "one that cannot be run is passed over for the next in PATH"
    assert made.run().ok
    for text, start in (
        ("touch ran && true", "prepare would run /bin/sh"),
        ("if true", "prepare would fail: /bin/sh does not understand it: exit code 2: "),
    ):
        assert command(prepare=(text,), shell=True, directory=str(tmp_path)).rehearse().message.startswith(start)
    assert not (tmp_path / "ran").exists()


# file


def flag(path: Path) -> Tried:
    return Tried(File(tables.File(name="flag", path=str(path)), RUNTIME))


@pytest.mark.parametrize("back", [Phase.RECOVER, Phase.UNDO])
def test_a_flag_is_there_until_recovered(tmp_path: Path, back: Phase) -> None:
    path = tmp_path / "flag"
    assert flag(path).rehearse() == done(f"would write {path}, and remove it afterwards")
    assert list(tmp_path.iterdir()) == []
    memos: list[tuple[str, bool]] = []
    before = os.umask(0o077)
    try:
        outcome = flag(path).run(remember=lambda memo: memos.append((memo, path.exists())))
    finally:
        os.umask(before)
    assert outcome == done(f"{path} is written")
    [(memo, was_there)] = memos
    assert not was_there, "whose flag it is, is known before it is there"
    assert json.loads(path.read_bytes()) == json.loads(facts.encoded(work()))
    assert path.stat().st_mode & 0o777 == 0o644
    assert flag(path).run(attempt=2, memo=memo) == done(f"{path} is written"), "by the next agent"
    assert flag(path).run(phase=back, memo=memo) == done(f"{path} is removed")
    assert flag(path).run(phase=back) == done(f"{path} did not exist")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("back", [Phase.RECOVER, Phase.UNDO])
def test_a_flag_that_an_administrator_had_set_stays_as_it_is(tmp_path: Path, back: Phase) -> None:
    path = tmp_path / "flag"
    path.write_text("a broken disk; Anna")
    memos: list[str] = []
    theirs = done(f"{path} existed before, and is left as it is")
    assert flag(path).run(remember=memos.append) == theirs
    assert flag(path).run(attempt=2, memo=memos[-1], remember=memos.append) == theirs
    assert flag(path).run(phase=back, memo=memos[-1]) == theirs
    assert path.read_text() == "a broken disk; Anna"
    path.unlink()
    assert flag(path).run(attempt=3, memo=memos[-1], remember=memos.append).message == f"{path} is written"
    assert flag(path).run(phase=back, memo=memos[-1]).message == f"{path} is removed"


def test_a_reader_sees_the_whole_flag_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "flag"
    ended = threading.Event()
    broken: list[bytes] = []

    def read() -> None:
        while not ended.is_set():
            content = path.read_bytes() if path.exists() else b"{}\n"
            if not content.endswith(b"}\n"):
                broken.append(content)

    with beside(read):
        for attempt in range(100):
            assert flag(path).run(attempt=attempt, memo=f'["{path}"]').ok
        ended.set()
    assert broken == []
    assert json.loads(path.read_bytes())["attempt"] == 99


def test_a_link_that_the_owner_of_the_directory_puts_in_the_way_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who sees the file being written swaps it for a link to one that only root may read."""
    secret = tmp_path / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    directory = tmp_path / "theirs"
    directory.mkdir()
    real, swapped = open, []

    def swap(path: str, mode: str) -> Any:
        file = real(path, mode)
        swapped.append(path)
        os.remove(path)
        os.symlink(secret, path)
        return file

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", swap)
        flag(directory / "flag").run()
    assert swapped
    assert (secret.stat().st_mode & 0o777, secret.read_text()) == (0o600, "root's")


def test_a_flag_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    assert flag(tmp_path / "flag").run(remember=full) == UNREMEMBERED
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "none" / "flag"
    assert flag(path).run() == failed(f"{path}: no such file or directory")
    assert flag(path).rehearse() == failed(f"there is no directory {tmp_path}/none to write in: make it")
    assert flag(path).run(phase=Phase.RECOVER).ok
    path = tmp_path / "flag"
    path.mkdir()
    assert flag(path).run() == failed(f"{path}: is a directory")
    assert flag(path).rehearse() == failed(f"{path} is a directory: give the path of a file")
    assert not flag(path).run(phase=Phase.RECOVER).ok
    assert list(tmp_path.iterdir()) == [path]


def test_a_rehearsal_looks_whether_it_may_write() -> None:
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode and not os.environ.get("CI"):
        pytest.skip("no mount namespaces here")
    program = """
from forenotice.agent.handlers import Outcome, tables
from forenotice.agent.handlers.local import File
from forenotice.runtime import Runtime
print(Outcome.of(File(tables.File(name="flag", path="/mnt/flag"), Runtime()).rehearse).message)
"""
    # Read-only also for root.
    mount = ["sh", "-c", 'mount -t tmpfs -o ro tmpfs /mnt && exec "$@"', "sh"]
    ended = subprocess.run(
        [*unshare, *mount, sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert ended.stdout == "this user cannot write in /mnt\n"


# systemd

UNITS = ("nginx.service", "db.service", "batch.timer")


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSystemd]:
    states = {"nginx.service": "active", "db.service": "inactive", "batch.timer": "active"}
    with fake_systemd(tmp_path, states, monkeypatch) as served:
        yield served


def units(*names: str) -> Tried:
    return Tried(Systemd(tables.Systemd(name="units", units=names or UNITS), RUNTIME, grace=0.3))


def test_active_units_are_remembered_first_then_stopped_then_started_again(systemd: FakeSystemd) -> None:
    assert "would stop nginx.service (active), db.service (inactive), batch" in units().rehearse().message
    assert units().run(remember=full) == UNREMEMBERED
    assert systemd.told == []
    memos: list[tuple[str, int]] = []
    outcome = units().run(remember=lambda memo: memos.append((memo, len(systemd.told))))
    assert outcome == done("stopped nginx.service, batch.timer")
    assert memos == [('["nginx.service","batch.timer"]', 0)]
    assert systemd.told == [("stop", "nginx.service"), ("stop", "batch.timer")]
    assert set(systemd.active.values()) == {"inactive"}
    again: list[str] = []
    assert units().run(attempt=2, memo=memos[0][0], remember=again.append).ok
    assert again == [memos[0][0]], "a second attempt keeps what the first found"
    outcome = units().run(phase=Phase.RECOVER, memo=memos[0][0])
    assert outcome == done("started nginx.service, batch.timer")
    assert systemd.active == {"nginx.service": "active", "db.service": "inactive", "batch.timer": "active"}


def test_units_by_pattern_and_without_a_memo(systemd: FakeSystemd) -> None:
    nothing = done("none of the units was active")
    memos: list[str] = []
    assert units("db.service").run(remember=memos.append) == nothing
    assert units("db.service").run(phase=Phase.UNDO, memo=memos[0]) == nothing
    systemd.active.update({"worker@1.service": "active", "worker@2.service": "inactive"})
    assert units("worker@*").run() == done("stopped worker@1.service")
    systemd.told.clear()
    for memo in ("", "no longer readable"):
        assert units().run(phase=Phase.RECOVER, memo=memo).ok
    assert systemd.told == [("start", unit) for unit in UNITS * 2], "all of them"


def test_units_that_systemd_does_not_know_or_cannot_stop(systemd: FakeSystemd) -> None:
    assert units("--force").run(phase=Phase.RECOVER) == failed(
        "systemctl start: exit code 5: Failed to start --force.service: Unit --force.service not found."
    )
    assert units("--force").rehearse() == failed("systemd has not loaded --force.service (not-found)")
    assert units("nginx", "ngnix").rehearse() == failed("systemd has not loaded ngnix.service (not-found)")
    assert units("none@*").rehearse() == failed("systemd knows no unit none@*")
    systemd.refused.add("nginx.service")
    outcome = units().run()
    assert not outcome.ok
    assert outcome.message.startswith("systemctl stop: exit code 1: Job for nginx.service failed")


@pytest.mark.parametrize("asked", [True, False])
def test_a_job_that_does_not_end_is_not_waited_for_too_long(systemd: FakeSystemd, asked: bool) -> None:
    systemd.hanging.add("nginx.service")
    stop = threading.Event()

    def ask() -> None:
        until(lambda: systemd.told)
        if asked:
            stop.set()

    begun = time.monotonic()
    with beside(ask):
        outcome = units().run(seconds_left=60 if asked else 1.0, stop=stop)
    assert time.monotonic() - begun < 30
    assert not outcome.ok
    assert outcome.message.startswith("systemctl stop: stopped after ")


def test_without_systemd_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    monkeypatch.setenv("SYSTEMCTL_FORCE_BUS", "1")
    assert units().run().message.startswith("systemctl show: exit code 1: ")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert units().rehearse() == units().run() == failed("there is no program systemctl")
