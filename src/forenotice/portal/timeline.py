"""The timeline: bars in lanes over a scale of time, as numbers that a template only has to write down. Pure."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

MOST_LANES = 16
"""Drawn one by one; the others are folded into one."""
MOST_ROWS = 6
"""Of a lane, unless it is unfolded."""
MOST_BARS = 40
MOST_UNFOLDED = 400
LEAST_WIDTH = 0.7
"""Of a bar's part, in percent: what takes a moment is still to be seen."""
GAP = 0.3
BUCKETS = 60
STEPS = (
    *(timedelta(seconds=seconds) for seconds in (1, 2, 5, 10, 15, 30)),
    *(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=hours) for hours in (1, 2, 3, 6, 12, 24, 48, 168, 720)),
)
MOST_MARKS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One event, planned or real: it waits from its appearance to its start, and acts from there to its end."""

    id: str
    lane: str
    type: str
    """Its colour."""
    label: object
    """All of it in words, as a text or what becomes one when it is written."""
    begin: datetime
    not_before: datetime | None = None
    start: datetime | None = None
    """None: it never started."""
    end: datetime | None = None
    """None: nobody knows, so it goes on to the picture's edge."""
    expected: bool = False
    """Its start and end are only expected."""
    status: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    x: float
    width: float
    look: str
    """`waits`, `acts`, `expected` or `gone`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    bar: Bar
    row: int
    parts: tuple[Part, ...]
    tick: float | None
    """Where NotBefore is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    name: str
    href: str
    count: int
    rows: int = 1
    shapes: Sequence[Shape] = ()
    strip: Sequence[tuple[float, float, int]] = ()
    """In place of bars that would be too many: place, width, and how many there are from 1 (few) to 4."""
    unfolded: bool = False

    @property
    def folded(self) -> bool:
        return bool(self.strip)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    x: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    begin: datetime
    end: datetime
    now: float | None
    """Where the line is."""
    marks: Sequence[Mark]
    lanes: Sequence[Lane] = field(default=())
    others: Lane | None = None
    """What is left, folded into one."""
    others_count: int = 0


@dataclass(frozen=True, slots=True)
class _Scale:
    begin: datetime
    end: datetime

    def at(self, moment: datetime) -> float:
        """In percent from the left, never outside."""
        share = (moment - self.begin) / (self.end - self.begin) * 100
        return round(min(max(share, 0.0), 100.0), 2)

    def shows(self, bar: Bar) -> bool:
        return bar.begin < self.end and (bar.end is None or bar.end >= self.begin)


def draw(
    bars: Iterable[Bar],
    *,
    begin: datetime,
    end: datetime,
    now: datetime | None = None,
    unfolded: Collection[str] = (),
    most_lanes: int = MOST_LANES,
    href: Callable[[str], str] = lambda _: "",
) -> Timeline:
    """Lanes in the order in which their first bars come; `href` says where a lane's name leads."""
    scale = _Scale(begin, end)
    lanes: dict[str, list[Bar]] = {}
    for bar in bars:
        if scale.shows(bar):
            lanes.setdefault(bar.lane, []).append(bar)
    # What somebody unfolded stays in sight.
    names = sorted(lanes, key=lambda name: name not in unfolded) if len(lanes) > most_lanes else list(lanes)
    shown, rest = names[:most_lanes], names[most_lanes:]
    others = [bar for name in rest for bar in lanes[name]]
    return Timeline(
        begin=begin,
        end=end,
        now=scale.at(now) if now is not None and begin <= now <= end else None,
        marks=_marks(scale),
        lanes=[_lane(scale, name, href(name), lanes[name], now, unfolded=name in unfolded) for name in shown],
        others=_folded(scale, "", "", others) if others else None,
        others_count=len(rest),
    )


def _lane(scale: _Scale, name: str, href: str, bars: list[Bar], now: datetime | None, *, unfolded: bool) -> Lane:
    if len(bars) > (MOST_UNFOLDED if unfolded else MOST_BARS):
        return _folded(scale, name, href, bars)
    rows: list[float] = []
    shapes = []
    for bar in sorted(bars, key=lambda bar: (bar.begin, bar.id)):
        parts = _parts(scale, bar, now)
        edge = parts[-1].x + parts[-1].width
        row = next((row for row, last in enumerate(rows) if last + GAP <= parts[0].x), len(rows))
        if row == len(rows):
            rows.append(0.0)
        rows[row] = edge
        # Of what started early NotBefore is beyond the bar, and says nothing any more.
        tick = scale.at(bar.not_before) if bar.not_before else -1.0
        shapes.append(Shape(bar=bar, row=row, parts=parts, tick=tick if parts[0].x < tick <= edge else None))
    if len(rows) > MOST_ROWS and not unfolded:
        return _folded(scale, name, href, bars)
    return Lane(name=name, href=href, count=len(bars), rows=len(rows), shapes=shapes, unfolded=unfolded)


def _parts(scale: _Scale, bar: Bar, now: datetime | None) -> tuple[Part, ...]:
    parts = _stretched(scale, bar)
    if bar.end is None or now is None or bar.end > now:
        return parts
    # What is over does not reach beyond its end, be it stretched: it would seem to be still to come.
    beyond = min(max(parts[-1].x + parts[-1].width - scale.at(bar.end), 0.0), parts[0].x)
    return tuple(replace(part, x=round(part.x - beyond, 2)) for part in parts)


def _stretched(scale: _Scale, bar: Bar) -> tuple[Part, ...]:
    """Wide enough to be seen."""
    end = scale.end if bar.end is None else bar.end
    if bar.start is None:
        return (_part(scale.at(bar.begin), scale.at(end), "gone"),)
    look = "expected" if bar.expected else "acts"
    if bar.start <= bar.begin:
        return (_part(scale.at(bar.begin), scale.at(end), look),)
    waits = _part(scale.at(bar.begin), scale.at(bar.start), "waits")
    return waits, _part(round(waits.x + waits.width, 2), scale.at(end), look)


def _part(left: float, right: float, look: str) -> Part:
    left = min(left, 100 - LEAST_WIDTH)
    return Part(x=left, width=round(min(max(right - left, LEAST_WIDTH), 100 - left), 2), look=look)


def _folded(scale: _Scale, name: str, href: str, bars: list[Bar]) -> Lane:
    """How many there are at each time, in steps of equal width; neighbours that look the same are one."""
    counts = [0] * BUCKETS
    step = (scale.end - scale.begin) / BUCKETS
    for bar in bars:
        first = max((bar.begin - scale.begin) // step, 0)
        last = BUCKETS - 1 if bar.end is None else min((bar.end - scale.begin) // step, BUCKETS - 1)
        for bucket in range(min(first, BUCKETS - 1), max(last, 0) + 1):
            counts[bucket] += 1
    most = max(counts)
    levels = [0 if count == 0 else 1 + (4 * count - 1) // most if most > 4 else count for count in counts]
    strip: list[tuple[float, float, int]] = []
    begin = 0
    for bucket in range(1, BUCKETS + 1):
        if bucket == BUCKETS or levels[bucket] != levels[begin]:
            if levels[begin]:
                left, right = begin / BUCKETS * 100, bucket / BUCKETS * 100
                strip.append((round(left, 2), round(right - left, 2), min(levels[begin], 4)))
            begin = bucket
    return Lane(name=name, href=href, count=len(bars), strip=strip)


def _marks(scale: _Scale) -> list[Mark]:
    width = scale.end - scale.begin
    step = next((step for step in STEPS if width / step <= MOST_MARKS), STEPS[-1])
    midnight = datetime(1970, 1, 1, tzinfo=UTC)
    first = midnight + -(-(scale.begin - midnight) // step) * step
    found: list[Mark] = []
    while first <= scale.end and len(found) <= MOST_MARKS:
        found.append(Mark(x=scale.at(first), at=first))
        first += step
    return found
