"""The emulator's clock."""

from datetime import timedelta

from forenotice.clock import SystemClock
from forenotice.emulator.emulator import EmulatedClock


def test_a_virtual_clock_stands_until_it_is_moved() -> None:
    clock = EmulatedClock(virtual=True)
    began = clock.now()
    assert began.microsecond == 0
    clock.not_below(began + timedelta(days=1))
    clock.not_below(began)
    assert clock.now() == began + timedelta(days=1)


def test_a_clock_that_is_paused_goes_on_from_there() -> None:
    clock = EmulatedClock()
    clock.pause()
    began = clock.now()
    assert (clock.stands, clock.now()) == (True, began)
    clock.not_below(began + timedelta(hours=1))
    assert clock.now() == began + timedelta(hours=1)
    clock.pause()
    clock.resume()
    assert not clock.stands
    assert timedelta(0) <= clock.now() - began - timedelta(hours=1) < timedelta(seconds=30)
    assert clock.ahead > timedelta(minutes=59)


def test_a_virtual_clock_never_goes_by_itself() -> None:
    clock = EmulatedClock(virtual=True)
    clock.resume()
    assert clock.stands


def test_a_real_clock_goes_on_from_where_it_was_moved_to() -> None:
    clock, system = EmulatedClock(), SystemClock()
    assert abs(clock.now() - system.now()) < timedelta(seconds=5)
    clock.not_below(system.now() + timedelta(days=1))
    first = clock.now()
    assert timedelta(days=1) <= first - system.now() + timedelta(seconds=1)
    assert clock.now() >= first


def test_a_clock_that_is_behind_catches_up() -> None:
    clock, system = EmulatedClock(), SystemClock()
    for go_on in (clock.pause, clock.resume):
        clock.pause()
        while (machine := system.now()) <= clock.now():
            pass
        go_on()
        assert clock.now() < system.now()
        clock.catch_up()
        assert clock.now() >= machine
        assert clock.ahead <= timedelta(0)


def test_a_clock_that_is_ahead_or_virtual_has_nothing_to_catch_up_with() -> None:
    clock = EmulatedClock()
    clock.not_below(clock.now() + timedelta(days=1))
    before = clock.now()
    clock.catch_up()
    assert before <= clock.now() < before + timedelta(hours=1)
    virtual = EmulatedClock(virtual=True)
    began = virtual.now()
    virtual.catch_up()
    assert virtual.now() == began
