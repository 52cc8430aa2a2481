"""Which connections make room for others, and the bucket that costs one number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forenotice.limits import Buckets, ConnectionLimit, Rate

AGES = {"a": 1, "b": 5, "c": 9, "d": 3}


@pytest.fixture
def limit() -> ConnectionLimit[str]:
    made: ConnectionLimit[str] = ConnectionLimit()
    for connection, caller in (("c", None), ("a", "crowd"), ("d", "other"), ("b", "crowd")):
        made.add(connection, caller)
    return made


@pytest.mark.parametrize(
    ("count", "staying", "gone"),
    [(1, "", "b"), (2, "", "ba"), (9, "", "badc"), (1, "b", "a"), (1, "ab", "d"), (1, "abcd", "")],
)
def test_callers_with_the_most_lose_the_highest_rank_first(
    limit: ConnectionLimit[str], count: int, staying: str, gone: str
) -> None:
    found = limit.first_to_go(lambda each: None if each in staying else (AGES[each],), count)
    assert "".join(found) == gone


def test_connections_are_counted_by_caller_in_order_of_arrival(limit: ConnectionLimit[str]) -> None:
    assert (len(limit), list(limit)) == (4, ["c", "a", "d", "b"])
    assert limit.remove("a")
    assert not limit.remove("a")
    assert [limit.held_by(caller) for caller in ("crowd", "other", None, "none")] == [1, 1, 0, 0]


def test_a_burst_and_then_one_by_one() -> None:
    rate, full_at = Rate(5, 20), 0.0
    taken = 0
    while (after := rate.take(full_at, 100.0)) >= 0:
        full_at, taken = after, taken + 1
    assert taken == 20
    assert rate.retry_after(full_at, 100.0) == 1
    assert rate.take(full_at, 100.19) < 0
    full_at = rate.take(full_at, 100.2)
    assert full_at > 0
    assert rate.take(full_at, 100.2) < 0


@pytest.mark.parametrize("per_second", [None, 0])
def test_without_a_limit_there_is_always_a_token(per_second: float | None) -> None:
    rate, full_at = Rate(per_second), 0.0
    for _ in range(1000):
        full_at = rate.take(full_at, 5.0)
        assert full_at >= 0


@pytest.mark.parametrize(("per_second", "seconds"), [(0.1, 10), (0.5, 2), (2, 1), (1000, 1)])
def test_how_long_to_wait_is_said_in_whole_seconds(per_second: float, seconds: int) -> None:
    rate = Rate(per_second, 1)
    full_at = rate.take(0.0, 50.0)
    assert rate.retry_after(full_at, 50.0) == seconds
    assert rate.take(full_at, 50.0 + seconds) >= 0


@given(
    st.floats(0.1, 100),
    st.integers(1, 50),
    st.lists(st.floats(0, 5), min_size=1, max_size=100),
)
def test_never_more_than_the_burst_and_what_time_has_brought(
    per_second: float, burst: int, pauses: list[float]
) -> None:
    rate, full_at, now, taken = Rate(per_second, burst), 0.0, 1000.0, 0
    for pause in pauses:
        now += pause
        after = rate.take(full_at, now)
        if after >= 0:
            full_at, taken = after, taken + 1
    assert taken <= burst + (now - 1000.0) * per_second + 0.01


def test_everybody_has_a_bucket_and_full_ones_are_forgotten() -> None:
    buckets = Buckets(2, 1)
    assert [buckets.take("one", 50.0), buckets.take("one", 50.0), buckets.take("other", 50.0)] == [0, 1, 0]
    for number in range(10 * Buckets.KEPT):
        assert buckets.take(number, 60.0 + number) == 0
    assert len(buckets._full_at) <= Buckets.KEPT
    for number in range(10 * Buckets.KEPT):
        buckets.take(number, 5000.0)
    assert [buckets.take(number, 5000.0) for number in range(10 * Buckets.KEPT)] == [1] * 10 * Buckets.KEPT
