"""Durations under speed, whole seconds, and aware times only."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice

import pytest

from forenotice.core import backoff, timing
from forenotice.core.timing import Timing

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(("speed", "seconds"), [(1, 900), (60, 15), (0.5, 1800)])
def test_speed_divides_durations(speed: float, seconds: float) -> None:
    assert Timing(speed=speed).shortened(timedelta(minutes=15)) == timedelta(seconds=seconds)


def test_silence_and_the_grace_after_start_up_are_sped_up() -> None:
    assert Timing().silence == timedelta(hours=24)
    assert Timing().startup_grace == timedelta(seconds=30)
    assert Timing(speed=24).silence == timedelta(hours=1)
    assert Timing(speed=30).startup_grace == timedelta(seconds=1)


@pytest.mark.parametrize(("microseconds", "up"), [(0, 0), (1, 1_000_000), (999_999, 1_000_000), (1_000_000, 1_000_000)])
def test_rounding_up_to_whole_seconds(microseconds: int, up: int) -> None:
    moment = NOON + timedelta(microseconds=microseconds)
    assert timing.whole_second_up(moment) == NOON + timedelta(microseconds=up)


def test_times_are_aware_and_in_utc() -> None:
    there = datetime(2026, 3, 1, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    assert timing.require_aware(there) == NOON
    assert timing.require_aware(there).tzinfo is UTC
    with pytest.raises(ValueError, match="naive"):
        timing.require_aware(datetime(2026, 3, 1, 12, 0))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (6, 10), (100_000, 10)]
)
def test_a_pause_doubles_up_to_the_longest(failures: int, seconds: int) -> None:
    assert backoff.pause(failures, 1.0, 10.0) == seconds
    assert backoff.pause(failures, timedelta(seconds=1), timedelta(seconds=10)) == timedelta(seconds=seconds)


def test_pauses_one_after_the_other() -> None:
    assert list(islice(backoff.pauses(0.25, 1.0), 5)) == [0.25, 0.5, 1, 1, 1]
