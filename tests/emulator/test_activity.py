"""What is told of an emulator: everything once, in order."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from forenotice.emulator.emulator import Emulator
from forenotice.emulator.run import ActivityLog
from forenotice.emulator.scenarios import catalogue


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    found = Emulator(as_vm="web-0", virtual=True)
    found.start()
    yield found
    found.stop()


def test_each_thing_is_told_once_with_what_did_not_go_as_written(emulator: Emulator) -> None:
    teller = ActivityLog(emulator)
    assert teller.wait() == []
    emulator.play(catalogue.load_any("maintenance-cancelled"))
    assert [each.action for each in teller.wait()] == ["scenario.started", "event.scheduled", "scenario.waits"]
    emulator.approve(emulator.simulation.live[0].id, "operator")
    told = teller.wait()
    assert [each.action for each in told] == ["event.approved", "event.started"]
    assert told[0].message.endswith(" was approved by an operator in its guests' place.")
    emulator.advance(timedelta(minutes=8))
    (late,) = teller.wait()
    assert (late.action, "it is too late to cancel it" in late.message) == ("scenario.differs", True)
    emulator.advance(timedelta(minutes=30))
    assert [each.action for each in teller.wait()] == ["event.completed", "scenario.ended"]
    assert teller.wait() == []


def test_a_clock_that_stands_and_goes_on() -> None:
    emulator = Emulator(as_vm="web-0")
    emulator.start()
    teller = ActivityLog(emulator)
    teller.wait()
    emulator.pause()
    assert [(each.action, each.message) for each in teller.wait()] == [("clock.paused", "the clock stands still")]
    emulator.resume()
    assert [(each.action, each.message) for each in teller.wait()] == [("clock.resumed", "the clock goes on")]
    emulator.stop()


def test_silence_that_is_broken_and_faults_that_come_and_go(emulator: Emulator) -> None:
    teller = ActivityLog(emulator)
    emulator.switch_on("stale-document")
    emulator.switch_on("latency", lasts=timedelta(minutes=1))
    assert [each.message for each in teller.wait()] == ["latency is switched on", "stale-document is switched on"]
    emulator.advance(timedelta(minutes=2))
    assert [each.message for each in teller.wait()] == ["latency is over", "stale-document is over"]
    emulator.reset()
    assert [each.action for each in teller.wait()] == ["emulator.reset"]
