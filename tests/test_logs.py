"""Logs are one JSON object a line, whoever logs."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from forenotice import logs
from forenotice.settings.values import LogFormat, LogLevel

SCRIPT = """
import logging
import structlog
from forenotice import logs
from forenotice.settings.values import LogFormat, LogLevel

logs.configure(LogLevel.INFO, LogFormat.JSON)
log = structlog.get_logger()
log.debug("Not shown", action="test.debug")
log.info("Ours", action="test.ours", number=1)
logging.getLogger("some.library").info("not shown")
logging.getLogger("some.library").warning("careful, %s", "please")
try:
    raise ValueError("no good")
except ValueError:
    logging.getLogger("some.library").exception("it failed")
"""


CONSOLE = """
import structlog
from forenotice import logs
from forenotice.settings.values import LogFormat, LogLevel

logs.configure(LogLevel.INFO, LogFormat.CONSOLE)

def fail(token):
    raise ValueError("no good")

try:
    fail("fn_" + "secret")
except ValueError:
    structlog.get_logger().exception("It failed", action="test.failed")
"""


@pytest.mark.parametrize("closed", ["", "2>&-"])
def test_what_nobody_has_configured_does_not_go_to_standard_output(closed: str) -> None:
    """Where a command's answer goes, such as a token that a script reads."""
    script = "from forenotice.logs import log; log.warning('Careful', action='test'); log.info('Not shown')"
    command = ["bash", "-c", f'exec "$@" {closed}', "-", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ([] if closed else ["Careful"])


def test_tracebacks_tell_no_local_variables() -> None:
    done = subprocess.run([sys.executable, "-c", CONSOLE], capture_output=True, text=True, check=True, timeout=60)
    assert "ValueError: no good" in done.stderr
    assert "fn_secret" not in done.stderr


def test_ours_and_those_of_libraries_look_alike() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    ours, careful, failed = map(json.loads, done.stderr.splitlines())
    assert (ours["action"], ours["event"], ours["number"], ours["level"]) == ("test.ours", "Ours", 1, "info")
    assert (careful["action"], careful["said"], careful["level"]) == ("library", "careful, please", "warning")
    assert (failed["said"], failed["level"]) == ("it failed", "error")
    assert failed["exception"].endswith("ValueError: no good")
    assert all(entry["timestamp"].endswith("Z") for entry in (ours, careful, failed))


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("not a word")


def configured(monkeypatch: pytest.MonkeyPatch, descriptor: int) -> logs.Writer:
    """A writer of the test's own, whose lines go there."""
    made = logs.Writer()
    monkeypatch.setattr(logs, "writer", made)
    logs.configure(LogLevel.INFO, LogFormat.JSON)
    made.descriptor = descriptor
    return made


@pytest.fixture
def as_before() -> Iterator[None]:
    last_resort = logging.lastResort
    yield
    structlog.reset_defaults()
    logging.lastResort = last_resort


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


@pytest.mark.usefixtures("as_before")
def test_a_full_disk_costs_lines_which_are_counted_and_told_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    written = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    writer = configured(monkeypatch, full)
    for number in range(3):
        structlog.get_logger().warning("Lost", action="test.lost", number=number)
    eventually(lambda: writer.dropped == 3)
    writer.descriptor = written
    structlog.get_logger().warning("Kept", action="test.kept")
    eventually(lambda: b"log.dropped" in (tmp_path / "log").read_bytes())
    kept, told = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (kept["action"], told["action"], told["lines"]) == ("test.kept", "log.dropped", 3)
    os.close(full)
    os.close(written)


@pytest.mark.usefixtures("as_before")
def test_a_pipe_that_nobody_reads_makes_nobody_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    writer = configured(monkeypatch, writing)
    monkeypatch.setattr(logs, "LONGEST_QUEUE", 50)
    for _ in range(100):
        structlog.get_logger().warning("Long", action="test.long", text="x" * 8192)
    assert writer.dropped > 0
    told: list[dict[str, object]] = []
    with os.fdopen(reading) as reader:
        while sum(int(str(line.get("lines", 1))) for line in told) < 100:
            told.append(json.loads(reader.readline()))
    assert {line["action"] for line in told} == {"test.long", "log.dropped"}
    os.close(writing)


@pytest.mark.usefixtures("as_before")
def test_what_cannot_be_shown_is_left_out_rather_than_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    writer = configured(monkeypatch, written)
    structlog.get_logger().warning("Odd", action="test.odd", thing=Unspeakable(), half="\ud800")
    assert logging.lastResort is not None
    logging.lastResort.handle(logging.makeLogRecord({"msg": "%s and %s", "args": ("one",), "levelno": logging.WARNING}))
    writer.flush()
    odd, library = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (odd["action"], odd["unshown"]) == ("test.odd", "RuntimeError")
    assert library["said"] == "%s and %s"
    os.close(written)
