"""Which connections make room for others."""

import pytest

from forenotice.connection_limit import ConnectionLimit

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
