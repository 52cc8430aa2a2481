"""Durations as people write them: `90s`, `5m`, `2h`, `7d`."""

import re
from datetime import timedelta

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})", re.ASCII)
LONGEST = timedelta(days=366)

NEVER = timedelta.max


def lasting(text: object) -> timedelta:
    """How long something lasts: a duration, or `never` for what has no end."""
    return NEVER if text == "never" else Span.read(text)


class Span(timedelta):
    @classmethod
    def read(cls, text: object) -> "Span":
        found = _SPAN.fullmatch(text.strip()) if isinstance(text, str) else None
        if not found:
            raise ValueError(f'{text!r} is not a duration: give one such as "30s", "5m" or "2h"')
        seconds = float(found[1]) * UNITS[found[2]]
        if seconds > LONGEST.total_seconds():
            raise ValueError(f"{found[0][:80]!r} is too long: give at most {LONGEST.days}d")
        return cls(seconds=seconds)
