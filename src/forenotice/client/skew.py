"""How far the endpoint's clock is ahead of this machine's, as far as an answer's `Date` tells."""

from datetime import datetime

UNSURE = 2.0
"""Seconds by which clocks may differ unnoticed: `Date` has whole ones."""
STEADY = 1.0
"""Seconds by which what is known must be wrong to be given up."""


def ahead(date: datetime, now: datetime, took: float, known: float) -> float:
    """Of an answer that came `now` and `took` so many seconds, during any of which it may have been dated."""
    # On average half a second of the second that it names has passed.
    least = (date - now).total_seconds() + 0.5
    most = least + took
    if least - STEADY <= known <= most + STEADY:
        return known
    nearest = min(max(0.0, least), most)
    return nearest if abs(nearest) > UNSURE else 0.0
