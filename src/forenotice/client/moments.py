"""Moments as endpoints write them, read as far as they can be."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_HTTP = re.compile(
    rf"(?:[a-z]+,? +)?([0-9]{{1,2}})[ -]({'|'.join(_MONTHS)})[a-z]*[ -]([0-9]{{4}})"
    r" +([0-9]{1,2}):([0-9]{2}):([0-9]{2}) *(?:(?:gmt|utc|z)|([+-])([0-9]{2}):?([0-9]{2}))?",
    re.IGNORECASE,
)
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_LAST = datetime(2200, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=1024)
def read(text: str) -> datetime | None:
    """In UTC, which is also meant where no zone is given; the day's name does not count.

    None: it is blank or unreadable, or so far off that nobody can have meant it, nor reckon with it.
    """
    found = _HTTP.fullmatch(text.strip())
    try:
        moment = _from_http(*found.groups("")) if found else _from_iso(text.strip())
    except (ValueError, OverflowError):
        return None
    return moment if _FIRST <= moment < _LAST else None


def _from_http(
    day: str, month: str, year: str, hour: str, minute: str, second: str, sign: str, hours: str, minutes: str
) -> datetime:
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    at = datetime(
        int(year), _MONTHS.index(month.lower()) + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC
    )
    return at + offset if sign == "-" else at - offset


def _from_iso(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
