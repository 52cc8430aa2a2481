"""Moments and spans as people read and write them."""

import re
from datetime import UTC, datetime, timedelta

from forenotice.settings.values import Span

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def span(duration: timedelta) -> str:
    """The two largest units: `14 min 58 s`."""
    rest = round(abs(duration.total_seconds()))
    parts: list[str] = []
    for unit, seconds in UNITS:
        count, rest = divmod(rest, seconds)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part) or "0 s"


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def told(moment: datetime | None, now: datetime) -> str:
    """Relative and exact: `in 14 min 58 s (2026-01-01 12:00:00 UTC)`."""
    return f"{relative(moment, now)} ({utc(moment)})" if moment else ""


def relative(moment: datetime, now: datetime) -> str:
    if abs(moment - now) < timedelta(seconds=1):
        return "now"
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


def minutes(text: str) -> float:
    """A duration as one types it: `20`, `20m`, `2h`, `7d`; minutes where no unit is given."""
    typed = f"{text}m" if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII) else text
    return Span.read(typed).total_seconds() / 60


def past(text: str, now: datetime) -> datetime:
    """A moment as one types it, ISO 8601, in UTC where no zone is given; or how long ago it was: `90d`."""
    if re.fullmatch(r"\d+(\.\d+)?\s*[a-z]+", text, re.ASCII):
        return now - Span.read(text)
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time: give one such as 2026-01-31T12:00:00Z") from None
