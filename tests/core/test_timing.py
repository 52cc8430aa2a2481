"""Durations under speed, whole seconds, and aware times only."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from forenotice.core import timing
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
