"""Moments as text: RFC 1123 as HTTP writes them, ISO 8601, and a reader of both."""

import re
from datetime import UTC, datetime

from forenotice.core import timing

# Spelled out, because strftime would follow the locale of the machine.
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_HTTP = re.compile(
    rf"({'|'.join(_DAYS)}), ([0-9]{{2}}) ({'|'.join(_MONTHS)}) ([0-9]{{4}}) ([0-9]{{2}}):([0-9]{{2}}):([0-9]{{2}}) GMT"
)


def http(moment: datetime) -> str:
    """`Mon, 19 Sep 2016 18:29:47 GMT`; parts of a second are left out."""
    utc = timing.require_aware(moment)
    return (
        f"{_DAYS[utc.weekday()]}, {utc.day:02} {_MONTHS[utc.month - 1]} {utc.year:04}"
        f" {utc.hour:02}:{utc.minute:02}:{utc.second:02} GMT"
    )


def iso(moment: datetime) -> str:
    """`2016-09-19T18:29:47Z`; parts of a second are left out."""
    utc = timing.require_aware(moment)
    return f"{utc.year:04}-{utc.month:02}-{utc.day:02}T{utc.hour:02}:{utc.minute:02}:{utc.second:02}Z"


def parse(text: str) -> datetime | None:
    """The moment that either form means, in UTC; None for the blank `NotBefore` of a Started event."""
    if not text:
        return None
    found = _HTTP.fullmatch(text)
    return _from_http(text, found) if found else _from_iso(text)


def _from_http(text: str, found: re.Match[str]) -> datetime:
    day_name, day, month, year, hour, minute, second = found.groups()
    try:
        moment = datetime(
            int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC
        )
    except ValueError:
        raise _refusal(text) from None
    if _DAYS[moment.weekday()] != day_name:
        raise ValueError(f"{text!r} contradicts itself: that day is a {_DAYS[moment.weekday()]}")
    return moment


def _from_iso(text: str) -> datetime:
    try:
        return timing.require_aware(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        # An offset can push the first or last day of the calendar over its edge: OverflowError.
        raise _refusal(text) from None


def _refusal(text: str) -> ValueError:
    return ValueError(
        f"{text[:80]!r} is not a time with a zone:"
        " give one such as 'Mon, 19 Sep 2016 18:29:47 GMT' or '2016-09-19T18:29:47Z'"
    )
