"""The timeline's geometry: nothing outside, nothing lost, folded where it would be too much."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from forenotice.portal import timeline
from forenotice.portal.timeline import Bar, draw

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
minutes = st.integers(-3000, 3000).map(lambda count: NOW + timedelta(minutes=count))


def bar(
    number: int = 0, *, lane: str = "web", begin: float = -1, start: float | None = 1, end: float | None = 2
) -> Bar:
    """With hours from now."""
    return Bar(
        id=f"E{number}",
        lane=lane,
        type="Reboot",
        label="Reboot of web-0",
        begin=NOW + begin * HOUR,
        not_before=None if start is None else NOW + start * HOUR,
        start=None if start is None else NOW + start * HOUR,
        end=None if end is None else NOW + end * HOUR,
    )


def drawn(*bars: Bar, hours: float = 24, **how: object) -> timeline.Timeline:
    return draw(bars, begin=NOW - hours * HOUR, end=NOW + hours * HOUR, now=NOW, **how)  # type: ignore[arg-type]


def test_a_bar_waits_and_then_acts() -> None:
    [lane] = drawn(bar(begin=-12, start=0, end=12)).lanes
    [shape] = lane.shapes
    assert [(part.x, part.width, part.look) for part in shape.parts] == [(25, 25, "waits"), (50, 25, "acts")]
    assert shape.tick == 50
    [lane] = drawn(bar(begin=-12, start=None, end=0)).lanes
    assert [part.look for part in lane.shapes[0].parts] == ["gone"]
    # A tick is on its bar.
    started_early = replace(bar(begin=-1, start=0, end=1), not_before=NOW + 9 * HOUR)
    assert drawn(started_early).lanes[0].shapes[0].tick is None


def test_what_takes_a_moment_is_seen_and_what_is_over_ends_before_now() -> None:
    [lane] = drawn(bar(begin=0, start=0.001, end=0.002)).lanes
    assert all(part.width >= timeline.LEAST_WIDTH for part in lane.shapes[0].parts)
    [lane] = drawn(bar(begin=-0.003, start=-0.002, end=-0.001)).lanes
    last = lane.shapes[0].parts[-1]
    assert last.x + last.width <= 50
    [early] = drawn(bar(begin=0, start=0, end=0.001)).lanes
    assert early.shapes[0].parts[0].x == 50


def test_bars_that_overlap_have_rows_of_their_own() -> None:
    [lane] = drawn(bar(0), bar(1), bar(2, begin=3, start=4, end=5)).lanes
    assert [shape.row for shape in lane.shapes] == [0, 1, 0]
    assert lane.rows == 2


def test_a_lane_with_too_many_rows_is_folded_until_it_is_unfolded() -> None:
    bars = [bar(number) for number in range(timeline.MOST_ROWS + 1)]
    [folded] = drawn(*bars).lanes
    assert (folded.folded, folded.count, list(folded.shapes)) == (True, len(bars), [])
    [unfolded] = drawn(*bars, unfolded={"web"}).lanes
    assert (unfolded.folded, len(unfolded.shapes)) == (False, len(bars))


def test_lanes_fold_when_they_are_many_and_what_is_unfolded_stays() -> None:
    bars = [bar(number, lane=f"g{number}") for number in range(500)]
    found = drawn(*bars, unfolded={"g300"})
    assert len(found.lanes) == timeline.MOST_LANES
    assert found.lanes[0].name == "g300"
    assert found.others is not None
    assert found.others_count == found.others.count == 500 - timeline.MOST_LANES


def test_a_strip_has_levels() -> None:
    scale = timeline._Scale(NOW - HOUR, NOW + HOUR)
    for count, level in ((9, 4), (1, 1)):
        lane = timeline._folded(scale, "web", "", [bar(number, begin=-1, end=0) for number in range(count)])
        assert {found for _, _, found in lane.strip} == {level}


def test_now_and_marks() -> None:
    assert drawn().now == 50
    assert draw([], begin=NOW + HOUR, end=NOW + 2 * HOUR, now=NOW).now is None
    for hours in (0.05, 1, 6, 24, 24 * 7, 24 * 90):
        marks = drawn(hours=hours).marks
        assert 2 <= len(marks) <= timeline.MOST_MARKS + 1
        assert all(mark.at.second == 0 for mark in marks)


@given(
    lives=st.lists(st.tuples(minutes, minutes, minutes, st.booleans(), st.sampled_from("abc")), max_size=60),
    unfolded=st.sets(st.sampled_from("abc")),
)
def test_nothing_is_outside_or_lost(
    lives: list[tuple[datetime, datetime, datetime, bool, str]], unfolded: set[str]
) -> None:
    bars = []
    for number, (*moments, started, name) in enumerate(lives):
        begin, start, end = sorted(moments)
        known = {"begin": begin, "start": start if started else None, "end": end if number % 3 else None}
        bars.append(Bar(id=str(number), lane=name, type="Freeze", label="", **known))  # type: ignore[arg-type]
    found = draw(bars, begin=NOW - 24 * HOUR, end=NOW + 24 * HOUR, now=NOW, unfolded=unfolded, most_lanes=2)
    shown = [bar for bar in bars if bar.begin < found.end and (bar.end is None or bar.end >= found.begin)]
    lanes = [*found.lanes, *([found.others] if found.others else [])]
    assert sum(lane.count for lane in lanes) == len(shown)
    for lane in lanes:
        edges: dict[int, float] = {}
        for shape in lane.shapes:
            left, right = shape.parts[0].x, shape.parts[-1].x + shape.parts[-1].width
            assert 0 <= left < right <= 100.01
            assert edges.get(shape.row, -1.0) <= left
            edges[shape.row] = right
        assert all(0 <= x < x + width <= 100.01 and 1 <= level <= 4 for x, width, level in lane.strip)
