"""The emulator's clock."""

from datetime import timedelta

from notbefore.clock import SystemClock
from notbefore.emulator.clock import EmulatedClock


def test_a_virtual_clock_stands_until_it_is_moved() -> None:
    clock = EmulatedClock(virtual=True)
    began = clock.now()
    assert began.microsecond == 0
    clock.not_below(began + timedelta(days=1))
    clock.not_below(began)
    assert clock.now() == began + timedelta(days=1)


def test_a_real_clock_goes_on_from_where_it_was_moved_to() -> None:
    clock, system = EmulatedClock(), SystemClock()
    assert abs(clock.now() - system.now()) < timedelta(seconds=5)
    clock.not_below(system.now() + timedelta(days=1))
    first = clock.now()
    assert timedelta(days=1) <= first - system.now() + timedelta(seconds=1)
    assert clock.now() >= first
