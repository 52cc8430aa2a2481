"""How far a rollout is: bars, words, and the names of turns."""

from collections.abc import Sequence
from typing import Any

import pytest

from forenotice.portal import progress


def counts(**known: int) -> dict[str, int]:
    return {**dict.fromkeys(("waiting", "under_way", "done", "failed", "skipped"), 0), **known}


def turn(number: int, *domains: int, **known: int) -> dict[str, Any]:
    return {"turn": number, "update_domains": list(domains), "progress": counts(**known or {"waiting": 1})}


def titles(turns: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(line.title, line.detail) for line in progress.lines(turns)]


def test_a_bar_has_what_is_over_first() -> None:
    found = progress.meter(counts(waiting=1, under_way=1, done=4, failed=1, skipped=1))
    assert found.parts == [(0, 50, "done"), (50, 12.5, "failed"), (62.5, 12.5, "under_way"), (87.5, 12.5, "skipped")]
    assert found.told == "4 of 8 done, 1 under way, 1 failed, 1 skipped"


@pytest.mark.parametrize("known", [{}, {"waiting": 3}])
def test_nothing_done_is_an_empty_bar(known: dict[str, int]) -> None:
    assert progress.meter(counts(**known)).parts == []


def test_parts_never_go_beyond_the_edge() -> None:
    found = progress.meter(counts(done=1, failed=1, skipped=1)).parts
    assert [look for _, _, look in found] == ["done", "failed", "skipped"]
    assert sum(width for _, width, _ in found) == pytest.approx(100, abs=0.02)


def test_turns_that_are_update_domains_are_called_so() -> None:
    assert titles([turn(1, 0), turn(2, 1)]) == [("Update domain 0", "turn 1"), ("Update domain 1", "turn 2")]


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ([turn(1, 0, 2), turn(2, 1)], [("Turn 1", "update domains 0 and 2"), ("Turn 2", "update domain 1")]),
        ([turn(1, 0), turn(2, 0)], [("Turn 1", "update domain 0"), ("Turn 2", "update domain 0")]),
        ([turn(1, *range(5), 7)], [("Turn 1", "update domains 0 to 4 and 7")]),
        ([turn(1)], [("Turn 1", "")]),
    ],
)
def test_turns_that_are_not_say_which_they_have(turns: list[dict[str, Any]], told: list[tuple[str, str]]) -> None:
    assert titles(turns) == told


def test_of_many_turns_those_are_told_that_matter_now() -> None:
    over = [turn(number, done=3) for number in range(1, 41)]
    later = [turn(number, waiting=2) for number in range(42, 101)]
    found = progress.lines([*over, turn(41, failed=1), *later])
    assert [line.title for line in found[:2]] == ["Turns 1 to 40", "Turn 41"]
    assert found[-1].title == "Turns 61 to 100"
    assert (found[0].meter.told, found[-1].meter.told) == ("120 of 120 done", "0 of 80 done")
    assert len(found) == progress.MOST_TURNS + 2
    assert sum(line.hosts for line in found) == 120 + 1 + 59 * 2
    assert [line.title for line in progress.lines(over)] == ["Turns 1 to 40"]
