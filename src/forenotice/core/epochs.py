"""Epochs of a database: a restore begins another, so that what guests compare neither repeats nor falls."""

from datetime import UTC, datetime

BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
STEP = 1 << 16
"""More changes than a scope sees between two restores that the clock does not tell apart."""


def following(now: datetime, *known: int) -> int:
    """The epoch after all that are known: seconds since 2024, which also grow where nobody remembers the last one.

    Incarnations go on from it. A document that changes less than once a second stays behind the clock, so none was ever
    higher, and the number fits into 31 bits until 2092.
    """
    return max(int((now - BEGAN).total_seconds()), max(known, default=0) + STEP)


def suffix(epoch: int) -> str:
    """Of scopes' tags."""
    return f".{epoch:x}"


def fell(epoch: int, position: int, *, was: tuple[int, int]) -> bool:
    """Whether a database is older than it `was`: in its epoch, and how far its journal had come."""
    return (epoch, position) < was
