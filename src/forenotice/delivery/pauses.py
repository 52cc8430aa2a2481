"""How long a receiver that fails is left alone, and when it is given up."""

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

from forenotice.core import backoff

JITTER = 0.2
"""By how much of itself a pause differs, so that many do not come back at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """In real time: nothing of it is sped up."""

    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=30)
    patience: timedelta = timedelta(days=1)
    """From the first try of an entry."""
    chance: random.Random = field(default_factory=random.SystemRandom)

    def after(self, attempt: int, asked: timedelta | None = None) -> timedelta:
        """Behind the attempt of this number; at least what the receiver asked for, as far as that is sensible."""
        pause = backoff.pause(attempt, self.first, self.longest) * self.chance.uniform(1 - JITTER, 1 + JITTER)
        return max(pause, min(asked or pause, self.longest))


def retry_after(value: str, now: datetime) -> timedelta | None:
    """What a receiver asks for in Retry-After: seconds, or a date; None: nothing that can be read."""
    if value.isascii() and value.isdigit() and len(value) < 10:
        return timedelta(seconds=int(value))
    try:
        return max(parsedate_to_datetime(value) - now, timedelta(0))
    except (ValueError, TypeError):
        return None
