"""An event's life in a line: the moments that it had and those that are ahead, with how long lies between. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

ENDS = {"Completed": "Done", "Canceled": "Cancelled", "Failed": "Failed"}
EDGE = 10.0
"""Percent that are left on both sides, for the words of the first and the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    name: str
    at: datetime | None
    """None: not known yet."""
    x: float
    past: bool
    since: timedelta | None
    """From the moment before it, where both are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestones:
    points: Sequence[Point]
    now: float | None
    """Where it stands; None: it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    status: str
    announced: datetime
    not_before: datetime
    approved: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None


def draw(moments: Moments, now: datetime) -> Milestones:
    """At equal distances, whatever lies between: seconds are as easy to see as days."""
    past, ahead = _past(moments, now), _ahead(moments, now)
    steps = [*past, *ahead]
    width = (100 - 2 * EDGE) / max(len(steps) - 1, 1)
    places = [round(EDGE + width * number, 2) for number in range(len(steps))]
    points = []
    before: datetime | None = None
    for number, (name, at) in enumerate(steps):
        since = at - before if at is not None and before is not None else None
        points.append(Point(name=name, at=at, x=places[number], past=number < len(past), since=since))
        before = at
    return Milestones(points=points, now=_standing(points, now) if ahead else None)


def _past(moments: Moments, now: datetime) -> list[tuple[str, datetime | None]]:
    happened: list[tuple[str, datetime | None]] = [
        ("Announced", moments.announced),
        ("Approved", moments.approved),
        ("NotBefore", moments.not_before if _has_come(moments, now) else None),
        ("Started", moments.started),
        (ENDS.get(moments.status, "Over"), moments.ended),
    ]
    known = [(at, rank, name) for rank, (name, at) in enumerate(happened) if at is not None]
    # What happened at one moment stays in the order of a life.
    return [(name, at) for at, _, name in sorted(known)]


def _has_come(moments: Moments, now: datetime) -> bool:
    """Who approved may have been served before NotBefore: then it says nothing any more."""
    return moments.not_before <= min(at for at in (moments.started, moments.ended, now) if at is not None)


def _ahead(moments: Moments, now: datetime) -> list[tuple[str, datetime | None]]:
    if moments.ended is not None:
        return []
    if moments.started is not None:
        return [("Done", None)]
    found: list[tuple[str, datetime | None]] = []
    if moments.approved is None and now < moments.not_before:
        found.append(("Approval", None))
    if not _has_come(moments, now):
        found.append(("NotBefore", moments.not_before))
    return [*found, ("Start", None), ("Done", None)]


def _standing(points: Sequence[Point], now: datetime) -> float:
    """Between what was and what comes next: by its share where that is known, else in the middle."""
    last = max(number for number, point in enumerate(points) if point.past)
    here, after = points[last], points[last + 1]
    share = 0.5
    if here.at is not None and after.at is not None and after.at > here.at:
        share = min(max((now - here.at) / (after.at - here.at), 0.1), 0.9)
    return round(here.x + (after.x - here.x) * share, 2)
