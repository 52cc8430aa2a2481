"""Pauses of a simulated guest, whose clocks stop or run on while it stands still."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forenotice.agent.rules import pause
from forenotice.agent.rules.pause import TICK, Lapse, Reading, measure
from forenotice.agent.rules.saga import Pause

ROUNDING = 1e-6
UNHURRIED = settings(deadline=None, max_examples=50)


@dataclass(frozen=True)
class Guest:
    """By a time that no clock of its own shows, in seconds; it stands still once, for `pause` from `at` on."""

    at: float = 20.0
    pause: float = 0.0
    monotonic_counts: float = 0.0
    """How much of the pause its clocks count: 0, they stop; 1, they run on."""
    boot_counts: float = 0.0
    rate: float = 1.0
    until: float = 45.0

    def awake(self, moment: float) -> float:
        """That moment, or when it wakes up."""
        return self.at + self.pause if self.at < moment < self.at + self.pause else moment

    def _clock(self, moment: float, counts: float) -> float:
        return 1000 + self.rate * (moment if moment <= self.at else moment - self.pause * (1 - counts))

    def monotonic(self, moment: float) -> float:
        return self._clock(moment, self.monotonic_counts)

    def boot(self, moment: float) -> float:
        return self._clock(moment, self.boot_counts)

    def lapses(self, jitter: float) -> Iterator[Lapse]:
        now = self.at - 3.0
        while now < self.at + self.pause + 3:
            wanted = self.monotonic(now) + TICK
            wakes = now + TICK / self.rate
            if now <= self.at < wakes:
                left = wanted - self.monotonic(self.at) - self.rate * self.pause * self.monotonic_counts
                wakes = self.at + self.pause + max(0.0, left) / self.rate
            wakes = self.awake(wakes + jitter)
            yield Lapse(self.monotonic(wakes) - self.monotonic(now), self.boot(wakes) - self.boot(now))
            now = wakes

    def readings(self, *, every: float, way: float, back: float, ahead: float) -> Iterator[Reading]:
        """A clock elsewhere, which runs on: asked, then read after `way`, told after `back`."""
        now = 0.0
        while now < self.until:
            asked = self.awake(now)
            told = self.awake(asked + way + back)
            yield Reading(math.floor(asked + way + ahead), self.monotonic(asked), self.monotonic(told))
            now = told + every


PAUSES = st.floats(0.0, 40.0)
MOMENTS = st.floats(15.0, 25.0)
RATES = st.floats(1 - 0.0004, 1 + 0.0004)
JITTERS = st.floats(0.0, 0.02)
POLLS = st.fixed_dictionaries(
    {
        "every": st.floats(0.3, 1.3),
        "way": st.floats(0.0, 0.2),
        "back": st.floats(0.0, 0.2),
        "ahead": st.floats(-1e6, 1e6),
    }
)
HARDWARE = st.fixed_dictionaries(
    {
        "every": st.floats(0.4, 0.6),
        "way": st.floats(0.0, 0.001),
        "back": st.floats(0.0, 0.001),
        "ahead": st.floats(-1e6, 1e6),
    }
)


def measured(
    dates: Iterable[Reading] = (), hardware: Iterable[Reading] = (), lapses: Iterable[Lapse] = (), **more: float
) -> Pause:
    found = measure(lapses=lapses, dates=list(dates), hardware=list(hardware), **more)
    assert found is not None
    return found


def close(pause: Pause, seconds: float) -> bool:
    return abs(pause.seconds - seconds) <= pause.resolution + ROUNDING


@pytest.mark.parametrize(
    ("counts", "boot_counts", "clocks", "by", "hidden", "resolution"),
    [
        # Two readings of a second each, and their ways, hide no more.
        pytest.param(0, 0, "dates", "endpoint", 3.2, 1.7, id="its clocks stop, and the endpoint shows it"),
        pytest.param(0, 0, "hardware", "hardware clock", 2.3, 9, id="its clocks stop, and the hardware clock shows it"),
        pytest.param(1, 1, "both", "own clock", 0.3, 2 * TICK, id="its clocks run on, and a tick comes late"),
        pytest.param(0, 1, "dates", "own clock", 0.3, 9, id="it is suspended, which one of its clocks counts"),
    ],
)
@UNHURRIED
@given(pause=PAUSES, at=MOMENTS, rate=RATES, jitter=JITTERS, polls=POLLS, clock=HARDWARE)
def test_a_guest_learns_how_long_it_stood_still(
    counts: float,
    boot_counts: float,
    clocks: str,
    by: str,
    hidden: float,
    resolution: float,
    pause: float,
    at: float,
    rate: float,
    jitter: float,
    polls: dict[str, float],
    clock: dict[str, float],
) -> None:
    guest = Guest(at=at, pause=pause, monotonic_counts=counts, boot_counts=boot_counts, rate=rate, until=45 + pause)
    dates = () if clocks == "hardware" else list(guest.readings(**polls))
    hardware = () if clocks == "dates" else list(guest.readings(**clock))
    found = measure(lapses=guest.lapses(jitter), dates=dates, hardware=hardware)
    if found is None:
        assert pause < hidden
    else:
        assert close(found, pause)
        assert found.by == by or (boot_counts > counts and pause < 0.3), "only what no tick shows is left to others"
        assert found.resolution < resolution
        assert not counts or pause > 0.1


@UNHURRIED
@given(
    counted=st.floats(0.5, 20.0),
    uncounted=st.floats(4.0, 20.0),
    at=MOMENTS,
    jitter=JITTERS,
    polls=POLLS,
    clock=HARDWARE,
)
def test_what_the_own_clocks_counted_and_what_they_did_not_add_up(
    counted: float, uncounted: float, at: float, jitter: float, polls: dict[str, float], clock: dict[str, float]
) -> None:
    pause = counted + uncounted
    part = counted / pause
    guest = Guest(at=at, pause=pause, monotonic_counts=part, boot_counts=part, until=45 + pause)
    for dates, hardware in ((list(guest.readings(**polls)), []), ([], list(guest.readings(**clock)))):
        assert close(measured(dates, hardware, guest.lapses(jitter)), pause)


@UNHURRIED
@given(rate=RATES, jitter=JITTERS, polls=POLLS, clock=HARDWARE)
def test_without_a_pause_there_is_none(
    rate: float, jitter: float, polls: dict[str, float], clock: dict[str, float]
) -> None:
    """However the clock drifts, or NTP turns it."""
    guest = Guest(rate=rate, until=90)
    dates, hardware = list(guest.readings(**polls)), list(guest.readings(**clock))
    assert measure(lapses=guest.lapses(jitter), dates=dates, hardware=hardware) is None


@UNHURRIED
@given(first=st.floats(3.5, 20.0), second=st.floats(3.5, 20.0), polls=POLLS)
def test_two_pauses_are_counted_together(first: float, second: float, polls: dict[str, float]) -> None:
    early = Guest(at=20, pause=first, until=30 + first)
    late = Guest(at=20, pause=second, until=50 + second)
    until = early.monotonic(30 + first) - late.monotonic(0)
    dates = [
        *early.readings(**polls),
        *(
            Reading(reading.seconds + 30 + first, reading.after + until, reading.before + until)
            for reading in late.readings(**polls)
        ),
    ]
    assert close(measured(dates), first + second)


def asked(guest: Guest) -> list[Reading]:
    return list(guest.readings(every=0.93, way=0.004, back=0.003, ahead=12.3))


def looked(guest: Guest) -> list[Reading]:
    return list(guest.readings(every=0.5, way=0.0005, back=0.0005, ahead=4.56))


def test_many_polls_show_a_pause_to_less_than_a_second_and_two_are_enough_for_a_long_one() -> None:
    for seconds, resolution in ((3.4, 0.25), (0.8, 0.7)):
        found = measured(asked(Guest(pause=seconds)))
        assert close(found, seconds)
        assert found.seconds == pytest.approx(seconds, abs=0.2)
        assert found.resolution < resolution
    dates = [Reading(100, 5.0, 5.01), Reading(110, 6.0, 6.01)]
    found = measured(dates)
    assert close(found, 9.0)
    assert found.resolution == pytest.approx(1.05 + pause.SLACK, abs=0.1)
    assert measure(lapses=(), dates=dates[:1], hardware=dates[:1]) is None


def test_a_poll_that_was_answered_in_the_midst_of_the_pause_does_not_blur_it() -> None:
    guest = Guest(pause=6)
    asked_at, told_at = guest.monotonic(guest.at - 0.01), guest.monotonic(guest.at + 6)
    found = measured([*asked(guest), Reading(math.floor(guest.at + 3 + 12.3), asked_at, told_at)])
    assert close(found, 6)
    assert found.resolution < 0.3


def moved(readings: list[Reading], by: int, first: int, last: int | None = None) -> list[Reading]:
    """With a clock that was wrong by so many seconds from one reading to another."""
    wrong = [Reading(each.seconds + by, each.after, each.before) for each in readings[first:last]]
    return readings[:first] + wrong + (readings[last:] if last else [])


SLOW, FAST = (Guest(rate=rate, until=900) for rate in (1 - 0.0004, 1 + 0.0004))
SET_AHEAD = moved(looked(Guest()), 8, 30)


@pytest.mark.parametrize(
    ("dates", "hardware"),
    [
        pytest.param(asked(SLOW), looked(SLOW), id="a clock that is slow for a quarter of an hour"),
        pytest.param(asked(FAST), looked(FAST), id="a clock that is fast for a quarter of an hour"),
        pytest.param(moved(asked(Guest()), 30, 20, 21), (), id="one odd Date"),
        pytest.param(moved(asked(Guest()), -5, 20), (), id="a Date that fell"),
        pytest.param(asked(Guest()), SET_AHEAD, id="a hardware clock that was set"),
    ],
)
def test_what_is_not_a_pause(dates: list[Reading], hardware: list[Reading]) -> None:
    assert measure(lapses=(), dates=dates, hardware=hardware) is None


STOOD = Guest(pause=2.5)
ROUGH = list(STOOD.readings(every=1.0, way=0.0, back=0.0, ahead=0.5))


@pytest.mark.parametrize(
    ("dates", "hardware", "by", "seconds"),
    [
        pytest.param((), SET_AHEAD, "hardware clock", 8, id="only the hardware clock"),
        pytest.param(asked(Guest(pause=4)), looked(Guest()), "endpoint", 4, id="the hardware clock stood still too"),
        (ROUGH, looked(STOOD), "hardware clock", 2.5),
        (asked(STOOD), ROUGH, "endpoint", 2.5),
        (ROUGH[18:22], looked(STOOD), "hardware clock", 2.5),
    ],
)
def test_the_clock_that_shows_it_best_is_believed(
    dates: list[Reading], hardware: list[Reading], by: str, seconds: float
) -> None:
    found = measured(dates, hardware)
    assert found.by == by
    assert close(found, seconds)


@pytest.mark.parametrize(("gap", "seconds"), [(0.05, None), (0.15, None), (0.24, None), (0.26, 0.235), (5.05, 5.025)])
def test_a_late_tick_counts_from_a_fifth_of_a_second_on(gap: float, seconds: float | None) -> None:
    found = measure(lapses=[Lapse(0.05, 0.05), Lapse(gap, gap)], dates=(), hardware=())
    assert (found and pytest.approx(found.seconds)) == seconds


def test_ticks_that_were_late_before_the_start_do_not_count_on_any_clock() -> None:
    lapses = [Lapse(0.6, 0.6, 10.0), Lapse(0.7, 0.7, 12.0), Lapse(2.0, 2.0, 20.0)]
    assert measured(lapses=lapses, since=12.0).seconds == pytest.approx(1.975)
    assert measure(lapses=lapses, dates=(), hardware=(), since=20.0) is None
    dates = [Reading(100 + second + (5 if second > 9 else 0), second, second + 0.01) for second in range(20)]
    assert measured(dates)
    assert measure(lapses=[Lapse(0.1, 5.1, 9.5)], dates=dates, hardware=(), since=11.0) is None


def test_several_late_ticks_add_up() -> None:
    found = measured(lapses=[Lapse(1.0, 1.0), Lapse(0.06, 0.06), Lapse(2.0, 2.0)])
    assert found.seconds == pytest.approx(2.95)
    assert found.resolution == pytest.approx(2 * TICK, abs=0.01)
