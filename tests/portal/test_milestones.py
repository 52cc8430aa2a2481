"""An event's life in a line: tables around a moment zero."""

from datetime import UTC, datetime, timedelta

import pytest

from forenotice.portal.pages.events import Moments
from forenotice.portal.pages.events import draw_milestones as draw

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
WAITS = ["Announced", "Approval", "NotBefore", "Start", "Done"]


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else ZERO + timedelta(seconds=seconds)


def moments(status: str, approved: float | None, started: float | None, ended: float | None) -> Moments:
    return Moments(
        status=status,
        announced=ZERO,
        not_before=ZERO + timedelta(seconds=900),
        approved=at(approved),
        started=at(started),
        ended=at(ended),
    )


@pytest.mark.parametrize(
    ("status", "approved", "started", "ended", "now", "names", "past"),
    [
        ("Scheduled", None, None, None, 10, WAITS, 1),
        ("Scheduled", 5, None, None, 10, ["Announced", "Approved", "NotBefore", "Start", "Done"], 2),
        # NotBefore has passed without approval, and something else is in the way.
        ("Scheduled", None, None, None, 1000, ["Announced", "NotBefore", "Start", "Done"], 2),
        ("Scheduled", 950, None, None, 1000, ["Announced", "NotBefore", "Approved", "Start", "Done"], 3),
        # Approved early: NotBefore says nothing any more.
        ("Started", 5, 6, None, 10, ["Announced", "Approved", "Started", "Done"], 3),
        ("Started", None, 900, None, 901, ["Announced", "NotBefore", "Started", "Done"], 3),
        ("Completed", 5, 6, 30, 2000, ["Announced", "Approved", "Started", "Done"], 4),
        ("Completed", None, 905, 930, 2000, ["Announced", "NotBefore", "Started", "Done"], 4),
        ("Canceled", None, None, 30, 2000, ["Announced", "Cancelled"], 2),
        ("Failed", 0, 0, 30, 2000, ["Announced", "Approved", "Started", "Failed"], 4),
    ],
)
def test_what_was_and_what_is_ahead(
    status: str,
    approved: float | None,
    started: float | None,
    ended: float | None,
    now: float,
    names: list[str],
    past: int,
) -> None:
    drawn = draw(moments(status, approved, started, ended), ZERO + timedelta(seconds=now))
    assert [point.name for point in drawn.points] == names
    assert [point.past for point in drawn.points] == [number < past for number in range(len(names))]
    places = [point.x for point in drawn.points]
    assert places == sorted(places)
    assert 0 < places[0] < places[-1] < 100
    if past == len(names):
        assert drawn.now is None
    else:
        assert drawn.now is not None
        assert places[past - 1] < drawn.now < places[past]


def test_how_long_lies_between() -> None:
    drawn = draw(moments("Completed", 5, 65, 95), ZERO + timedelta(hours=1))
    assert [point.since and point.since.total_seconds() for point in drawn.points] == [None, 5, 60, 30]


def test_now_moves_on_to_a_moment_that_is_known() -> None:
    waiting = moments("Scheduled", 0, None, None)
    early, late = draw(waiting, ZERO + timedelta(seconds=100)).now, draw(waiting, ZERO + timedelta(seconds=800)).now
    assert early is not None
    assert late is not None
    assert early < late
