"""`forenotice emulate` as a process: what it prints and writes, how it is refused, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import process_time
from typing import IO, Any

import pytest
from tests.acceptance.running import DEADLINE, PROGRAMS, environment, run, until
from tests.emulator.controlled import Controlled, controlled

from forenotice.emulator import command, foreground
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.run import ActivityLog
from forenotice.emulator.scenarios import catalogue, preview

PROGRAM = str(PROGRAMS / "forenotice")


def spawn(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PROGRAM, "emulate", *arguments],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def emulating(home: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Controlled, dict[str, Any]]]:
    """One with a ready file, at ports that the system chose."""
    file = home / "ready.json"
    with spawn(home, *arguments, "--port", "0", "--ready-file", str(file)) as process:
        try:
            until(lambda: file.exists() or process.poll() is not None)
            assert process.poll() is None, process.communicate()
            ready = json.loads(file.read_text())
            yield process, Controlled(*(ready[key].removeprefix("http://") for key in ("endpoint", "control"))), ready
        finally:
            process.kill()


def lines(output: IO[str] | None) -> Iterator[dict[str, Any]]:
    assert output is not None
    return map(json.loads, output)


def up_to(log: Iterator[dict[str, Any]], action: str) -> Iterator[dict[str, Any]]:
    for each in log:
        yield each
        if each["action"] == action:
            return


def test_a_scenario_from_its_first_answer_to_its_end(tmp_path: Path) -> None:
    with emulating(tmp_path, "reboot", "--resources", "app_3", "--speed", "900") as (process, emulator, ready):
        assert ready["url"] == f"{ready['endpoint']}/metadata/scheduledevents?api-version=2020-07-01"
        assert ready["pid"] == process.pid
        assert list(tmp_path.iterdir()) == [tmp_path / "ready.json"]
        (event,) = emulator.document()["Events"]
        assert (event["Resources"], event["EventType"]) == (["app_3"], "Reboot")
        assert emulator.approve(event["EventId"]).status == 200
        log = lines(process.stdout)
        assert next(log) == ready
        actions = [each["action"] for each in up_to(log, "scenario.ended")]
        assert actions == [
            *("scenario.started", "event.scheduled", "event.approved", "event.started", "event.completed"),
            "scenario.ended",
        ]
        assert emulator.document()["Events"] == [], "its end does not end the emulator"
        process.terminate()
        _, err = process.communicate(timeout=DEADLINE)
        assert (process.returncode, err, list(tmp_path.iterdir())) == (0, "", [])


def test_no_run_is_taken_for_another(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("of a run that was killed")
    with foreground.ReadyFile(path) as file:
        assert not path.exists()
        file.write({"pid": 1})
        assert path.read_text() == '{"pid": 1}\n'
        path.write_text("of one that began meanwhile")
    assert path.exists()


def test_an_idle_emulator_is_driven_and_ends_at_once_while_a_response_is_held_and_nobody_reads(tmp_path: Path) -> None:
    with emulating(tmp_path, "--as", "db", "--resources", "web-0,web-1") as (process, emulator, _):
        assert [vm["name"] for vm in emulator.get("/state")["vms"]] == ["db", "web-0", "web-1"]
        event = emulator.post("/events", kind="terminate", resources=["web-0"])
        emulator.post("/faults", name="error-500", times=1)
        assert emulator.poll().status == 500
        emulator.post(f"/events/{event['id']}/cancel")
        log = lines(process.stdout)
        next(log)
        messages = [each["message"] for each in up_to(log, "event.canceled")]
        assert messages[0].startswith("Terminate of web-0 was announced, not before ")
        assert "GET of db met error-500, answered 500" in messages
        assert emulator.post("/play", scenario="rolling-update")["as"] == "web-0"
        (*_, last) = up_to(log, "scenario.waits")
        assert last["message"] == "the scenario waits for Freeze of web-0 to be gone"
        emulator.post("/reset")
        (*_, last) = up_to(log, "emulator.reset")
        assert process.stdout is not None
        process.stdout.close()
        emulator.post("/faults", name="latency", amount="5m")
        url = f"http://{emulator.guests}/metadata/versions"
        with subprocess.Popen(["curl", "-s", "-o", "/dev/null", "-H", "Metadata: true", url]) as held:
            until(lambda: emulator.get("/state")["faults"])
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE) == 0
            held.wait(DEADLINE)


def test_people_read_what_to_do_and_requests_to_its_control_are_answered_before_it_ends(tmp_path: Path) -> None:
    with spawn(tmp_path, "two-events", "--as", "web-1", "--speed", "2", "--port", "0") as process:
        assert process.stdout is not None
        read = ""
        while "was announced" not in read:
            read += process.stdout.readline()
        control = re.search(r"in a browser at http://127\.0\.0\.1:(\d+)/ or with:", read)
        assert control is not None
        with socket.create_connection(("127.0.0.1", int(control[1])), timeout=DEADLINE) as driving:
            driving.sendall(b"GET /v1/emulator/state HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # The control's application is only being loaded now.
            process.terminate()
            _, err = process.communicate(timeout=DEADLINE)
            assert driving.recv(15) == b"HTTP/1.1 200 OK"
    assert (process.returncode, err) == (0, "")
    for shown in (
        "You are web-1; the other VMs are web-0.",
        "2 times as fast",
        "├",
        "curl -H Metadata:true 'http://127.0.0.1:",
        " forenotice emulator event reboot",
        "Ctrl-C ends it.",
    ):
        assert shown in read


MISTAKE = """\
title = "A mistake"
resources = ["web-0"]

[[step]]
announce = "restart"
id = "it"

[[step]]
approve = "them"
"""

REFUSED = [
    (("rebot",), 2, "there is no scenario 'rebot'; did you mean 'reboot'?"),
    (("mistake.toml",), 2, "mistake.toml:9:1: there is no event 'them'; there are it"),
    (("missing.toml",), 2, "missing.toml cannot be read: No such file or directory"),
    (("reboot", "--as", "db"), 2, "there is no VM 'db'; there are WestNO_0"),
    (("rolling-update", "--resources", "a"), 2, "give 3 names, not 1"),
    (("--resources", "a b"), 2, "--resources: 'a b' is not a VM name"),
    (("--port", "70000"), 2, "--port: '70000' is not a port"),
    (("--port", "0", "--metadata", "127.0.0.1:1"), 2, "--port and --metadata both set"),
    (("--seed", "x"), 2, "--seed: 'x' is not a seed"),
    (("--speed", "0"), 2, "--speed: '0' is not a speed"),
    (("--show", "rebot"), 2, "there is no scenario 'rebot'"),
    (("--port", "0", "--ready-file", "none/ready.json"), 1, "the ready file none/ready.json cannot be written"),
    (("--port", "0", "--ready-file", "."), 1, "the ready file . cannot be written: Is a directory"),
    (("--port", "0", "--control", "0.0.0.0:0"), 1, "asks for no token"),
    (("--metadata", "192.0.2.1:0"), 1, "Guests cannot be served at 192.0.2.1:0"),
]


@pytest.fixture
def main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """The command in this process: its exit code, and the one line that says why."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FORENOTICE_")]:
        monkeypatch.delenv(name)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*arguments: str) -> tuple[int, str]:
        code, printed = command.main(arguments), capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert printed.err.startswith("forenotice: ")
        return code, printed.err

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("arguments", "code", "message"), REFUSED, ids=[" ".join(row[0]) for row in REFUSED])
def test_what_cannot_be_is_refused_before_anything_starts(
    arguments: tuple[str, ...], code: int, message: str, tmp_path: Path, main: Callable[..., tuple[int, str]]
) -> None:
    (tmp_path / "mistake.toml").write_text(MISTAKE)
    found, error = main(*arguments)
    assert (found, message in error) == (code, True), error


def test_two_cannot_have_one_port(main: Callable[..., tuple[int, str]]) -> None:
    with controlled() as emulator:
        code, error = main("--metadata", emulator.guests, "--control", "127.0.0.1:0")
        assert (code, f"Guests cannot be served at {emulator.guests}: Address already in use" in error) == (1, True)
        assert "choose another with --port or --metadata" in error
        code, error = main("--port", "0", "--control", emulator.control)
        assert (code, f"cannot listen on {emulator.control} (address already in use)" in error) == (1, True)


def test_the_scenarios_are_listed_and_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    began = process_time()
    assert command.main(["--list"]) == 0
    assert process_time() - began < 0.5
    listed = capsys.readouterr().out
    assert [line.split(" ")[0] for line in listed.splitlines() if line[:1].isalpha()][1:] == catalogue.names()
    assert all(len(line) <= preview.WIDTH for line in listed.splitlines())
    assert command.main(["--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == catalogue.names()
    assert rows[0]["picture"]
    assert command.main(["--show", "reboot"]) == 0
    copy = tmp_path / "copy.toml"
    copy.write_text(capsys.readouterr().out)
    assert catalogue.load_any(str(copy)).title == "Restart by a user"
    assert command.main(["--show", "reboot", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "reboot", "toml": copy.read_text()}


def test_little_is_loaded_before_the_first_answer() -> None:
    code = """
import sys
from forenotice.emulator import command, run
from forenotice.emulator.scenarios import catalogue
catalogue.load_any("reboot")
heavy = {"click", "rich", "pydantic", "starlette", "uvicorn", "structlog", "sqlalchemy", "urllib.request",
         "http.client", "email", "difflib", "forenotice.store"}
print(sorted(heavy & set(sys.modules)))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert said.stdout == "[]\n"


def test_a_port_that_only_root_may_have(tmp_path: Path) -> None:
    as_others = () if os.geteuid() else ("setpriv", "--bounding-set=-net_bind_service")
    ran = run(*as_others, PROGRAM, "emulate", "--port", "80", "--control", "127.0.0.1:0", env=environment(tmp_path))
    assert ran.returncode == 1
    assert "127.0.0.1:80: Permission denied; ports below 1024 are root's (or CAP_NET_BIND_SERVICE)" in ran.stderr


# The log of what happens


def actions(log: ActivityLog) -> list[str]:
    return [each.action for each in log.wait()]


def test_each_thing_is_reported_once_with_deviations() -> None:
    emulator = Emulator(as_vm="web-0", virtual=True)
    emulator.start()
    log = ActivityLog(emulator)
    assert log.wait() == []
    emulator.play(catalogue.load_any("maintenance-cancelled"))
    assert actions(log) == ["scenario.started", "event.scheduled", "scenario.waits"]
    emulator.approve(emulator.simulation.live[0].id, "operator")
    approved, started = log.wait()
    assert (approved.action, started.action) == ("event.approved", "event.started")
    assert approved.message.endswith(" was approved by an operator in its guests' place.")
    emulator.advance(timedelta(minutes=8))
    (late,) = log.wait()
    assert (late.action, "it is too late to cancel it" in late.message) == ("scenario.differs", True)
    emulator.advance(timedelta(minutes=30))
    assert actions(log) == ["event.completed", "scenario.ended"]
    emulator.switch_on("stale-document")
    emulator.switch_on("latency", lasts=timedelta(minutes=1))
    assert [each.message for each in log.wait()] == ["latency is switched on", "stale-document is switched on"]
    emulator.advance(timedelta(minutes=2))
    assert [each.message for each in log.wait()] == ["latency is over", "stale-document is over"]
    emulator.reset()
    assert actions(log) == ["emulator.reset"]
    assert log.wait() == []
    emulator.stop()


def test_a_clock_that_is_paused_and_resumed_is_reported() -> None:
    emulator = Emulator(as_vm="web-0")
    emulator.start()
    log = ActivityLog(emulator)
    log.wait()
    emulator.pause()
    assert [(each.action, each.message) for each in log.wait()] == [("clock.paused", "the clock stands still")]
    emulator.resume()
    assert [(each.action, each.message) for each in log.wait()] == [("clock.resumed", "the clock goes on")]
    emulator.stop()
