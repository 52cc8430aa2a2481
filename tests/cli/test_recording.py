"""`forenotice record` and `forenotice replay` as people and programs use them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.acceptance.running import until
from tests.cli.conftest import Run
from tests.cli.test_main import on_a_terminal

from forenotice.cli.main import main
from forenotice.core.operations import Kind
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.simulation import Announcement

QUICKLY = ("--every", "10ms")


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    made = Emulator(as_vm="web-0", virtual=True)
    made.start()
    made.announce(Announcement(kind=Kind.RESTART, resources=("web-0",)))
    yield made
    made.stop()


@pytest.fixture
def recording(emulator: Emulator, tmp_path: Path) -> Path:
    file = tmp_path / "recording"
    assert main(["record", f"http://{emulator.address}", str(file), *QUICKLY, "--for", "50ms"]) == 0
    return file


def test_it_ends_when_its_time_is_up_and_sums_up(run: Run, emulator: Emulator, tmp_path: Path) -> None:
    url, file = f"http://{emulator.address}", str(tmp_path / "file")
    ran = run("record", url, file, *QUICKLY, "--for", "50ms", "--json")
    assert ran.json.keys() == {"file", "url", "api_version", "seconds", "changes", "errors", "events"}
    assert (ran.json["url"], ran.json["changes"], ran.json["errors"]) == (url, 1, 0)
    assert ran.json["events"] == [event.id for event in emulator.simulation.live]
    assert 0.05 <= ran.json["seconds"] < 5
    emulator.switch_on("error-500")
    ran = run("record", url, file, *QUICKLY, "--for", "50ms", "--append", "--api-version", "2020-07-01")
    assert ran.out == f"Recorded 1 change (1 error) and 0 events in 0 s to {file}.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_by_a_signal(run: Run, emulator: Emulator, tmp_path: Path, number: int) -> None:
    def interrupt() -> None:
        emulator.requests.wait_for(lambda requests: len(requests) >= 2, 5)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    thread = threading.Thread(target=interrupt)
    thread.start()
    ran = run("record", f"http://{emulator.address}", str(tmp_path / "file"), *QUICKLY)
    thread.join()
    assert ran.code == 0
    assert json.loads((tmp_path / "file").read_text().splitlines()[-1])["line"] == "end"
    assert signal.getsignal(number) is before


WRONG = [
    (("https://x",), 2, "'https://x' (URL) is not a metadata endpoint"),
    (("http://user:secret@x",), 2, "is not a metadata endpoint"),
    (("http://127.0.0.1", "--api-version", "newest"), 2, "'newest' is not an api-version: give one such as 2020"),
    (("http://127.0.0.1", "--for", "long"), 2, "'--for': 'long' is not a duration"),
    (("http://127.0.0.1", "--every", "1ms"), 2, "'--every': '1ms' is too short: give at least 10ms"),
    (("http://192.0.2.1",), 2, "switches Scheduled Events on for this VM for a day"),
    (("http://127.0.0.1",), 1, "exists: name another file, or give --append to continue it"),
]


@pytest.mark.parametrize(("arguments", "code", "sentence"), WRONG)
def test_what_cannot_be_recorded(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    (tmp_path / "file").touch()
    url, *more = arguments
    ran = run("record", url, str(tmp_path / "file"), *more)
    assert (ran.code, sentence in ran.err) == (code, True)


def test_people_see_each_change(emulator: Emulator, tmp_path: Path) -> None:
    url, file = f"http://{emulator.address}", tmp_path / "file"
    code, said = on_a_terminal(b"", "record", url, str(file), "--for", "200ms")
    assert code == 0
    assert f"Recording {url} to {file}; Ctrl-C ends it." in said
    assert "0:00:00 incarnation 2: Reboot of web-0 Scheduled" in said


@contextmanager
def replaying(file: Path, *more: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    """Its first line says where it is."""
    started = subprocess.Popen(
        [sys.executable, "-m", "forenotice", "replay", str(file), "--port", "0", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        yield started, json.loads(started.stdout.readline())
    finally:
        started.kill()
        started.communicate()


def test_a_recording_is_served_until_a_signal(recording: Path, emulator: Emulator, tmp_path: Path) -> None:
    [event] = emulator.simulation.live
    ready_file = tmp_path / "ready"
    with recording.open("ab") as opened:
        opened.write(b'{"line":"ans')
    with replaying(recording, "--ready-file", str(ready_file), "--as", "db", "--loop") as (started, ready):
        assert json.loads(ready_file.read_text()) == ready
        assert ready["pid"] == started.pid
        [shown] = requests.get(ready["url"], headers={"Metadata": "true"}, timeout=60).json()["Events"]
        assert shown["EventId"] == event.id
        approval = {"StartRequests": [{"EventId": event.id}]}
        assert requests.post(ready["url"], json=approval, headers={"Metadata": "true"}, timeout=60).status_code == 200
        assert started.stdout is not None
        happenings = [json.loads(started.stdout.readline()) for _ in range(2)]
        assert [happening["action"] for happening in happenings] == ["replay.shown", "replay.approved"]
        assert happenings[0]["message"] == "incarnation 2: Reboot of web-0 Scheduled"
        assert happenings[1]["event_ids"] == [event.id]
        started.send_signal(signal.SIGTERM)
        _, err = started.communicate(timeout=60)
        assert started.returncode == 0
        assert not ready_file.exists()
        assert err == f"The last line of {recording} was cut off: it is left out.\n"


def test_people_are_told_what_to_try(recording: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    said: list[str] = []

    def look() -> bool:
        said.append(capfd.readouterr().out)
        return "incarnation" in "".join(said)

    def interrupt() -> None:
        try:
            until(look)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert main(["replay", str(recording), "--port", str(port), "--speed", "60"]) == 0
    thread.join()
    text = "".join(said)
    assert text.startswith(
        f"forenotice replays {recording} at http://127.0.0.1:{port}, 60 times as fast. You are web-0.\n"
    )
    assert text.endswith("incarnation 2: Reboot of web-0 Scheduled\n")


def test_what_cannot_be_replayed(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert "cannot read" in run("replay", str(file)).err
    file.write_text("garbage\n")
    ran = run("replay", str(file))
    assert ran.code == 1
    assert f"{file}, line 1: expected a JSON object" in ran.err
    assert run("replay", str(file), "--speed", "fast").code == 2
    assert run("replay", str(file), "--port", "0", "--metadata", "127.0.0.1:1").code == 2
