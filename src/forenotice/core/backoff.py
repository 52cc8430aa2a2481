"""Backoff: the growing pause between attempts, twice as long after each failure as after the one before."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import TypeVar

Duration = TypeVar("Duration", float, timedelta)

MOST_DOUBLINGS = 30
"""Further ones would leave the range of a timedelta, and every limit is far below."""


def pause(failures: int, first: Duration, longest: Duration) -> Duration:
    """After so many failures in a row."""
    return min(first * (1 << min(max(failures - 1, 0), MOST_DOUBLINGS)), longest)


def pauses(first: float, longest: float) -> Iterator[float]:
    """One after the other, without end."""
    return (pause(failures, first, longest) for failures in count(1))
