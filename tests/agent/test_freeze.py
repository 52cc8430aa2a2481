"""Measuring a pause with real clocks: a process that is really stopped, and clocks that are set ahead."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.acceptance.running import until
from tests.agent.parts import RUNTIME

from forenotice.agent import freeze
from forenotice.agent.freeze import Sampler
from forenotice.agent.rules import pause

CHILD = """
import dataclasses, json, sys
from forenotice.runtime import Runtime
from forenotice.agent.freeze import Sampler
sampler = Sampler(Runtime())
sampler.begin()
print("begun", flush=True)
sys.stdin.readline()
found = sampler.end()
print(json.dumps(found and dataclasses.asdict(found)))
"""
NOON = datetime(2026, 3, 9, 12, 0, 0, tzinfo=UTC)


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sampler"]


def test_a_process_that_was_really_stopped_knows_for_how_long() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        _wait(0.2)
        begun = time.monotonic()
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        stopped = time.monotonic()
        _wait(1.0)
        # All that it has to do is waiting for it when it goes on.
        child.stdin.write("\n")
        child.stdin.flush()
        least = time.monotonic() - stopped
        os.kill(child.pid, signal.SIGCONT)
        found = json.loads(child.stdout.readline())
        most = time.monotonic() - begun
    assert found["by"] == "own clock"
    assert found["resolution"] < 0.1
    assert least - found["resolution"] <= found["seconds"] <= most + found["resolution"]


def _wait(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    until(lambda: time.monotonic() >= deadline)


class World:
    """Clocks outside of this process, which a test may set ahead: so it is when this process alone stood still."""

    def __init__(self) -> None:
        self.ahead = 1000.3
        self.suspended = 0.0
        self.looks = 0

    def hardware(self) -> int | None:
        self.looks += 1
        return math.floor(time.monotonic() + self.ahead)

    def boot(self) -> float:
        return time.monotonic() + self.suspended

    def poll(self, sampler: Sampler, times: int = 1) -> None:
        for _ in range(times):
            asked = time.monotonic()
            date = datetime.fromtimestamp(math.floor(asked + self.ahead), UTC)
            sampler.dated(date, asked, time.monotonic())


def nothing() -> None:
    return None


def test_what_only_the_endpoint_counted_is_found() -> None:
    world = World()
    sampler = Sampler(RUNTIME, boot=time.monotonic, hardware=nothing)
    world.poll(sampler, 200)
    sampler.begin()  # What was before is of use, too.
    world.ahead += 7
    world.poll(sampler, 3)
    found = sampler.end()
    assert found is not None
    assert found.by == "endpoint"
    assert found.seconds == pytest.approx(7, abs=found.resolution)


def test_what_only_the_hardware_clock_counted_is_found() -> None:
    world = World()
    sampler = Sampler(RUNTIME, boot=time.monotonic, hardware=world.hardware)
    sampler.begin()
    until(lambda: world.looks >= 2)
    world.ahead += 7
    found = sampler.end()
    assert found is not None
    assert found.by == "hardware clock"
    assert found.seconds == pytest.approx(7, abs=found.resolution)


def test_time_in_suspension_is_found_on_the_clock_that_counts_it() -> None:
    world = World()
    sampler = Sampler(RUNTIME, boot=world.boot, hardware=nothing)
    sampler.begin()
    _wait(2 * pause.TICK)
    world.suspended += 5
    found = sampler.end()
    assert found is not None
    assert found.by == "own clock"
    assert found.seconds == pytest.approx(5, abs=0.5)


def test_what_was_late_while_the_start_was_waited_for_is_not_counted() -> None:
    world = World()
    sampler = Sampler(RUNTIME, boot=world.boot, hardware=nothing)
    sampler.begin()
    assert sampler._since is None
    sampler.not_yet(time.monotonic())
    assert sampler._since is not None
    _wait(2 * pause.TICK)
    world.suspended += 50
    _wait(3 * pause.TICK)
    sampler.not_yet(time.monotonic())
    world.suspended += 5
    found = sampler.end()
    assert found is not None
    assert found.seconds == pytest.approx(5, abs=0.5)
    assert sampler._since is None


def test_nothing_is_found_where_nothing_was() -> None:
    world = World()
    sampler = Sampler(RUNTIME, boot=world.boot, hardware=world.hardware)
    sampler.begin()
    world.poll(sampler, 10)
    _wait(3 * pause.TICK)
    world.poll(sampler, 10)
    found = sampler.end()
    assert found is None or found.by == "own clock", "this machine may be too busy for us, but no other clock moved on"


def test_it_looks_only_while_a_freeze_is_near() -> None:
    sampler = Sampler(RUNTIME, hardware=nothing)
    sampler.dated(NOON, 1.0, 1.1)
    assert not watching()
    sampler.begin()
    sampler.begin()
    assert len(watching()) == 1
    sampler.end()
    assert not watching()
    assert sampler.end() is None


def test_one_freeze_says_nothing_about_the_next() -> None:
    world = World()
    sampler = Sampler(RUNTIME, boot=time.monotonic, hardware=nothing)
    sampler.begin()
    world.poll(sampler, 3)
    world.ahead += 7
    world.poll(sampler, 3)
    assert sampler.end() is not None
    sampler.begin()
    world.poll(sampler, 3)
    found = sampler.end()
    assert found is None or found.by == "own clock"


def test_the_clock_of_the_boot_is_never_behind_the_monotonic_one() -> None:
    before = time.monotonic()
    assert Sampler(RUNTIME)._boot() >= before


def test_the_hardware_clock_is_read_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "since_epoch"
    path.write_text("1773057600\n")
    assert freeze.hardware_clock(path) == 1773057600


@pytest.mark.parametrize("content", ["", "soon\n"])
def test_one_that_says_nothing_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "since_epoch"
    path.write_text(content)
    assert freeze.hardware_clock(path) is None


def test_one_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert freeze.hardware_clock(tmp_path / "since_epoch") is None


def test_this_machines_own_is_in_seconds_or_not_there() -> None:
    seconds = freeze.hardware_clock()
    assert seconds is None or seconds > 0
