"""Times and durations as whole microseconds, as the tables hold them."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from forenotice.core import timing

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


# Many rows of one transaction carry the same moment.
@lru_cache(maxsize=1024)
def to_number(moment: datetime | None) -> int | None:
    return None if moment is None else (timing.require_aware(moment) - EPOCH) // MICROSECOND


@lru_cache(maxsize=1024)
def required(number: int) -> datetime:
    return EPOCH + timedelta(microseconds=number)


def optional(number: int | None) -> datetime | None:
    return None if number is None else required(number)


def duration_to_number(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // MICROSECOND


def to_duration(number: int | None) -> timedelta | None:
    return None if number is None else timedelta(microseconds=number)
