"""How long a receiver is left alone."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from forenotice.delivery import worker
from forenotice.delivery.worker import Pauses

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def test_pauses_double_up_to_half_an_hour_and_vary_a_little() -> None:
    for attempt, seconds in [(1, 1), (2, 2), (5, 16), (11, 1024), (12, 1800), (60, 1800), (10_000, 1800)]:
        for seed in range(20):
            pause = Pauses(chance=random.Random(seed)).after(attempt).total_seconds()
            assert seconds * 0.8 <= pause <= seconds * 1.2
    assert len({Pauses(chance=random.Random(seed)).after(3) for seed in range(20)}) > 10


def test_a_receiver_may_ask_for_more_but_not_for_ever() -> None:
    assert Pauses().after(1, timedelta(minutes=1)) == timedelta(minutes=1)
    assert Pauses().after(1, timedelta(days=9)) == timedelta(minutes=30)
    assert Pauses().after(12, timedelta(seconds=1)) > timedelta(minutes=20)


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ("7", timedelta(seconds=7)),
        ("Mon, 05 Jan 2026 12:00:30 GMT", timedelta(seconds=30)),
        ("Mon, 05 Jan 2026 11:00:00 GMT", timedelta(0)),
        ("Mon, 05 Jan 2026 11:00:00", None),
        ("soon", None),
        ("", None),
        ("-1", None),
        ("9" * 20, None),
    ],
)
def test_retry_after(value: str, asked: timedelta | None) -> None:
    assert worker.retry_after(value, NOW) == asked
