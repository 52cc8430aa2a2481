"""The durations of the service, divided by its speed."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from forenotice.core import backoff

STARTED_SHOWN = timedelta(seconds=2)
"""How long Started stays listed at least, whatever the speed."""

CLOCK_TOLERANCE = timedelta(seconds=5)
"""By how much two clocks may differ before anybody is warned; a jump is measured with it too."""

ENDED_APPROVABLE = timedelta(hours=1)
"""How long an ended event still answers 200 to an approval."""

SILENCE = timedelta(hours=24)
"""After this long without a request, a scope no longer listens."""

LONGEST_PAUSE = timedelta(hours=1)
"""Between two tries of a driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a driver call is tried, and the pause in between."""

    tries: int = 3
    first_pause: timedelta = timedelta(seconds=2)

    def pause_after(self, failed: int) -> timedelta:
        """Twice as long after each try as after the one before it; after the last, none."""
        if failed >= self.tries:
            return timedelta(0)
        return backoff.pause(failed, self.first_pause, LONGEST_PAUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What `--speed` does to durations; the clock itself stays true."""

    speed: float = 1.0
    retries: Retries = Retries()
    """Of drivers; whatever the speed."""

    def shortened(self, duration: timedelta) -> timedelta:
        return duration / self.speed

    @property
    def silence(self) -> timedelta:
        """After this long without a request, a scope no longer listens."""
        return self.shortened(SILENCE)

    @property
    def startup_grace(self) -> timedelta:
        """For this long after start-up nothing starts by expiry alone."""
        return self.shortened(timedelta(seconds=30))


def require_aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a naive time is refused: say which zone it is in")
    return moment.astimezone(UTC)


def whole_second_up(moment: datetime) -> datetime:
    whole = moment.replace(microsecond=0)
    return whole if whole == moment else whole + timedelta(seconds=1)
