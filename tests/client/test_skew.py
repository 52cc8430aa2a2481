"""How far the endpoint's clock is ahead."""

from datetime import UTC, datetime, timedelta

import pytest

from forenotice.client import endpoint as client_endpoint

NOW = datetime(2026, 5, 4, 12, 0, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dated", "took", "known", "ahead"),
    [
        (0, 0, 0, 0),
        (2, 0, 0, 0),
        (-2, 0, 0, 0),
        (3, 0, 0, 3),
        (-3, 0, 0, -3),
        # A first answer may take two minutes, and be dated before or after them.
        (-100, 100, 0, 0),
        (-102, 100, 0, 0),
        (-103, 100, 0, -3),
        (3, 100, 0, 3),
        # What is known is given up when it cannot be right, and only then.
        (-60, 10, -60, -60),
        (-50, 10, -60, -40),
        (-5, 10, -5, -5),
        (500, 0, 500.9, 500.9),
        (0, 0, 500, 0),
        (600, 0, 500, 600),
    ],
)
def test_ahead(dated: float, took: float, known: float, ahead: float) -> None:
    date = NOW.replace(microsecond=0) + timedelta(seconds=dated)
    assert client_endpoint.clock_ahead(date, NOW, took, known) == pytest.approx(ahead)
