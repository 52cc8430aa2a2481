"""The clock never falls."""

from datetime import UTC, datetime, timedelta

from forenotice.clock import SystemClock


def test_time_is_aware_and_never_falls() -> None:
    clock = SystemClock()
    first = clock.now()
    assert first.tzinfo is UTC
    assert abs(first - datetime.now(UTC)) < timedelta(minutes=1)
    ahead = first + timedelta(hours=1)
    clock.not_below(ahead)
    clock.not_below(first)
    assert clock.now() == clock.now() == ahead
