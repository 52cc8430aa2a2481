"""The durations of the service, divided by its speed."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

STARTED_SHOWN = timedelta(seconds=2)
"""How long Started stays listed at least, whatever the speed (PROTOCOL, life of an event)."""

ENDED_APPROVABLE = timedelta(hours=1)
"""How long an ended event still answers 200 to an approval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What `--speed` does to durations; the clock itself stays true."""

    speed: float = 1.0

    def shortened(self, duration: timedelta) -> timedelta:
        return duration / self.speed

    @property
    def silence(self) -> timedelta:
        """After this long without a request, a scope no longer listens."""
        return self.shortened(timedelta(hours=24))

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
