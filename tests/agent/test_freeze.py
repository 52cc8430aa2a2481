"""Measuring a pause: clocks that a test sets, and a process that is really stopped."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.agent.parts import RUNTIME, context
from tests.agent.rules.builders import ME, after, event, started

from forenotice.agent import freeze
from forenotice.agent.freeze import Sampler
from forenotice.agent.rules import pause, transitions
from forenotice.agent.rules.saga import Pause, Saga
from forenotice.runtime import Runtime, Started

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


def test_a_process_that_was_really_stopped_knows_for_how_long() -> None:
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        stopped = time.monotonic()
        until(lambda: time.monotonic() >= stopped + 1)
        # All that it has to do is waiting for it when it goes on.
        child.stdin.write("\n")
        child.stdin.flush()
        least = time.monotonic() - stopped
        os.kill(child.pid, signal.SIGCONT)
        found = json.loads(child.stdout.readline())
        most = time.monotonic() - begun
    assert found["by"] == "own clock"
    assert least - found["resolution"] <= found["seconds"] <= most + found["resolution"]


class World:
    """Clocks that a test sets; time passes for the sampler only in `run`."""

    def __init__(self, *, hardware: bool = False) -> None:
        self.now, self.suspended, self.ahead = 100.0, 0.0, 1000.3
        runtime = Runtime(monotonic=lambda: self.now, start_thread=self._start_thread)
        self.sampler = Sampler(runtime, boot=lambda: self.now + self.suspended, hardware=self._hardware)
        self._has_hardware = hardware

    def _start_thread(self, _run: object, _name: str) -> Started:
        return _Idle()

    def _hardware(self) -> int | None:
        return math.floor(self.now + self.ahead) if self._has_hardware else None

    def run(self, seconds: float, *, polls: bool = False) -> None:
        for number in range(round(seconds / pause.TICK)):
            self.now += pause.TICK
            self.sampler.step()
            if polls and number % 19 == 0:
                date = datetime.fromtimestamp(math.floor(self.now + self.ahead), UTC)
                self.sampler.dated(date, self.now, self.now)

    def end(self) -> Pause:
        self.now += pause.TICK
        found = self.sampler.end()
        assert found is not None
        return found


class _Idle:
    def join(self, timeout: float | None = None) -> None: ...


@pytest.mark.parametrize(("hardware", "by"), [(False, "endpoint"), (True, "hardware clock")])
def test_what_only_a_clock_outside_counted_is_found(hardware: bool, by: str) -> None:
    world = World(hardware=hardware)
    world.sampler.begin()
    for _ in range(2):
        world.run(30, polls=not hardware)
        world.ahead += 3.5
    world.ahead -= 3.5
    world.run(0.5, polls=not hardware)
    found = world.end()
    assert found.by == by
    assert found.seconds == pytest.approx(3.5, abs=found.resolution)
    # One freeze tells nothing about the next.
    world.sampler.begin()
    world.run(3, polls=not hardware)
    assert world.sampler.end() is None


def test_time_in_suspension_is_found_on_the_clock_that_counts_it_from_the_start_on() -> None:
    world = World()
    world.sampler.begin()
    world.run(1)
    world.suspended += 50
    world.run(1)
    world.sampler.not_yet(world.now)
    world.suspended += 5
    found = world.end()
    assert found.by == "own clock"
    assert found.seconds == pytest.approx(5, abs=0.1)


def test_polls_from_before_are_of_use_and_nothing_is_found_where_nothing_was() -> None:
    world = World()
    world.sampler.begin()
    world.run(20, polls=True)
    assert world.sampler.end() is None, "not watched from its start"
    world.sampler.begin()
    world.sampler.not_yet(world.now)
    world.run(1, polls=True)
    assert world.end() == pause.UNNOTICED


def test_a_thread_samples_only_while_a_freeze_is_near() -> None:
    def threads() -> int:
        return sum(thread.name == "sampler" for thread in threading.enumerate())

    sampler = Sampler(RUNTIME)
    assert sampler._boot() >= time.monotonic() - 1
    assert threads() == 0
    sampler.begin()
    sampler.begin()
    assert threads() == 1
    sampler.end()
    assert (threads(), sampler.end()) == (0, None)


@pytest.mark.parametrize(("content", "seconds"), [("1773057600\n", 1773057600), ("", None), ("soon\n", None)])
def test_the_hardware_clock_is_read_where_there_is_one(tmp_path: Path, content: str, seconds: int | None) -> None:
    path = tmp_path / "since_epoch"
    assert freeze.hardware_clock(path) is None
    path.write_text(content)
    assert freeze.hardware_clock(path) == seconds


# Which events are watched, and what is made of it


def saga(of: str = ME, kind: str = "Freeze", *, left: float = 20, begun: bool = False, **more: Any) -> Saga:
    """Of an event that starts in so many seconds from now, unless it has begun."""
    not_before = datetime.now(UTC) + timedelta(seconds=left)
    facts = {"type": kind, "resources": (of,), "duration_seconds": 9}
    seen = started(**facts) if begun else event(not_before=not_before, **facts)
    found = transitions.appeared(seen, after(0), (ME, "web-7"))
    return replace(found, started_at=after(0) if begun else None, **more)


@pytest.mark.parametrize(
    ("given", "watched"),
    [
        ({}, True),
        ({"left": 60}, False),
        ({"left": 60, "approving_at": after(0)}, True),
        ({"begun": True}, True),
        ({"kind": "Reboot"}, False),
        ({"of": "web-7"}, False),
    ],
)
def test_freezes_of_this_machine_are_watched_when_they_are_near(given: dict[str, Any], watched: bool) -> None:
    seen = saga(**given)
    world = World()
    assert freeze.watch([seen], world.sampler, world.now) == watched
    assert (world.sampler._ended is not None, world.sampler._since is not None) == (
        watched,
        watched and not seen.started_at,
    )
    assert not freeze.watch([], world.sampler, world.now)
    assert world.sampler._ended is None


@pytest.mark.parametrize(
    ("watched_started", "end", "seconds"),
    [
        pytest.param(False, {"begun": True}, 4, id="a pause"),
        pytest.param(False, {"begun": True}, 0, id="without a pause"),
        pytest.param(True, {"begun": True}, None, id="not watched from its start"),
        pytest.param(False, {}, None, id="it never came"),
        pytest.param(False, {"of": "web-7", "begun": True}, None, id="of another VM"),
    ],
)
def test_the_pause_is_logged_and_kept_with_the_event(
    watched_started: bool, end: dict[str, Any], seconds: int | None
) -> None:
    watched, ends = [saga(begun=watched_started)], saga(**end)
    world, shared = World(), context()
    freeze.watch(watched, world.sampler, world.now)
    world.run(1)
    world.suspended += 0 if watched_started else 50
    world.run(1)
    freeze.watch(watched, world.sampler, world.now)
    world.suspended += seconds or 0
    world.now += pause.TICK
    found = freeze.measured(ends, world.sampler, shared)
    assert (found.pause and round(found.pause.seconds)) == seconds
    page = shared.metrics.render()
    assert ("\nforenotice_agent_freeze_measured_seconds " in page) == (seconds is not None)
    assert ("\nforenotice_agent_freeze_expected_seconds 9" in page) == (seconds is not None)
    logged = shared.log._stream.getvalue()  # type: ignore[union-attr]
    assert ('"action": "freeze.measured"' in logged) == (ends.started_at is not None and ends.is_here)
