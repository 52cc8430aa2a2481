"""Epochs of a database: a restore starts a new one, so that ETags do not repeat and incarnations do not fall."""

from datetime import UTC, datetime

BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
STEP = 1 << 16
"""More changes than a scope has between two restores within a second."""


def following(now: datetime, *known: int) -> int:
    """The next epoch: seconds since 2024, so that it grows even if nobody remembers the last one.

    Incarnations go on from it. A document that changes less than once a second stays behind the clock, so none was ever
    higher, and the number fits into 31 bits until 2092.
    """
    return max(int((now - BEGAN).total_seconds()), max(known, default=0) + STEP)


def suffix(epoch: int) -> str:
    """Of scopes' tags."""
    return f".{epoch:x}"


def fell(epoch: int, position: int, *, was: tuple[int, int]) -> bool:
    """Whether a database is older than its mark, by epoch and journal position."""
    return (epoch, position) < was
