"""How long this VM stood still, by whichever clock shows it.

While a VM is paused its own clocks either run on, and then a tick comes late, or stop with it, and then only a clock
outside of it has moved on by more than they have. What its own clocks did not count is added to what they did.
The wall clock is no witness: it is set by NTP, whenever that likes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forenotice.agent.rules.saga import Pause

TICK = 0.05
"""Seconds between two looks at the own clocks."""
LEAST = 0.2
"""A tick that is less late than this was only not scheduled in time."""
SLACK = 0.05
"""Servers may write a Date that they made a moment ago."""
DRIFT = 0.0005
"""Seconds that two clocks may move apart in one; ntpd speeds a clock up by as much to set it right."""

OWN, ENDPOINT, HARDWARE = "own clock", "endpoint", "hardware clock"
UNNOTICED = Pause(seconds=0, resolution=LEAST, by=OWN)
"""Of a freeze that was watched from before its start."""


@dataclass(frozen=True, slots=True)
class Lapse:
    monotonic: float
    boot: float
    """By the clock that also counts while the machine is suspended."""
    ended_at: float = math.inf
    """By the monotonic clock."""

    @property
    def late(self) -> bool:
        return self.boot - TICK >= LEAST


@dataclass(frozen=True, slots=True)
class Reading:
    """What a clock of whole seconds showed at some moment between two others of the own monotonic clock."""

    seconds: float
    after: float
    before: float


def measure(
    *, lapses: Iterable[Lapse], dates: Sequence[Reading], hardware: Sequence[Reading], since: float = -math.inf
) -> Pause | None:
    """None: nothing was noticed; a pause may have been shorter than the clocks can tell.

    Before `since`, by the monotonic clock, a tick was late for other reasons.
    """
    noticed = [lapse for lapse in lapses if lapse.late]
    # No other clock is to count that again, whenever it was.
    suspended = sum(lapse.boot - lapse.monotonic for lapse in noticed)
    late = [lapse for lapse in noticed if lapse.ended_at > since]
    # A tick was somewhere on its way when the pause began.
    counted = sum(lapse.boot - TICK / 2 for lapse in late)
    resolution = TICK * len(late) + DRIFT * counted
    uncounted, by = _uncounted(_gained(dates, suspended), _gained(hardware, suspended))
    if uncounted and uncounted.low > 0:
        return Pause(seconds=counted + uncounted.middle, resolution=resolution + uncounted.half, by=by)
    return Pause(seconds=counted, resolution=resolution, by=OWN) if late else None


@dataclass(frozen=True, slots=True)
class _Span:
    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def widened(self, by: float) -> "_Span":
        return _Span(self.low - by, self.high + by)

    def minus(self, other: "_Span") -> "_Span":
        return _Span(self.low - other.high, self.high - other.low)

    def meets(self, other: "_Span") -> "_Span | None":
        low, high = max(self.low, other.low), min(self.high, other.high)
        return _Span(low, high) if low <= high else None


def _uncounted(endpoint: _Span | None, hardware: _Span | None) -> tuple[_Span | None, str]:
    """What only clocks outside have counted, and which of them shows it best."""
    if hardware is None or hardware.low <= 0 or (endpoint and not endpoint.meets(hardware)):
        # It may stand still together with the VM, or somebody may have set it: the endpoint knows better.
        return endpoint, ENDPOINT
    if endpoint is None or endpoint.low <= 0 or hardware.half < endpoint.half:
        return hardware, HARDWARE
    return endpoint, ENDPOINT


def _gained(readings: Sequence[Reading], suspended: float) -> _Span | None:
    """By how much another clock has moved on more than the own ones, from the first reading to the last.

    A reading says by how much that clock is ahead, to a second; all readings between which there was no pause say it
    of the same amount, and together they say it better. When the pause was is not known: whatever moment is possible
    counts, also one in the midst of a reading, which then says nothing.
    """
    if len(readings) < 2:
        return None
    ordered = sorted(readings, key=lambda reading: reading.before)
    ahead = [_Span(r.seconds - r.before, r.seconds + 1 - r.after).widened(SLACK) for r in ordered]
    moments = [reading.before for reading in ordered]
    before = _followed(ahead, moments)
    after = _followed(ahead[::-1], moments[::-1])[::-1]
    possible = [
        then.minus(now).widened(DRIFT * (moments[second] - moments[first]))
        for first, now in enumerate(before)
        for second in (first + 1, first + 2)
        if second < len(after) and now and (then := after[second])
    ]
    if not possible:
        # More than one pause: what came between the first and the last reading says nothing.
        possible = [ahead[-1].minus(ahead[0]).widened(DRIFT * (moments[-1] - moments[0]))]
    return _Span(min(span.low for span in possible) - suspended, max(span.high for span in possible) - suspended)


def _followed(ahead: Sequence[_Span], moments: Sequence[float]) -> list[_Span | None]:
    """By how much that clock can be ahead at each reading if there was no pause since the first; None: there was."""
    known: _Span | None = ahead[0]
    found = [known]
    for index in range(1, len(ahead)):
        drift = DRIFT * abs(moments[index] - moments[index - 1])
        known = known.widened(drift).meets(ahead[index]) if known else None
        found.append(known)
    return found
