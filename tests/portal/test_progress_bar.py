"""How far a rollout is: bars, words, and the names of waves."""

from collections.abc import Sequence

import pytest

from forenotice.portal.pages import rollouts as progress_bar
from forenotice.views.rollouts import Progress, WaveProgress


def wave(number: int, *domains: int, **known: int) -> WaveProgress:
    return WaveProgress(wave=number, update_domains=list(domains), progress=Progress(**known or {"waiting": 1}))


def titles(waves: Sequence[WaveProgress]) -> list[tuple[str, str]]:
    return [(line.title, line.detail) for line in progress_bar.lines(waves)]


def test_a_bar_has_what_is_over_first() -> None:
    found = progress_bar.meter(Progress(waiting=1, under_way=1, done=4, failed=1, skipped=1))
    assert found.parts == [(0, 50, "done"), (50, 12.5, "failed"), (62.5, 12.5, "under_way"), (87.5, 12.5, "skipped")]
    assert found.text == "4 of 8 done, 1 under way, 1 failed, 1 skipped"


@pytest.mark.parametrize("known", [{}, {"waiting": 3}])
def test_nothing_done_is_an_empty_bar(known: dict[str, int]) -> None:
    assert progress_bar.meter(Progress(**known)).parts == []


def test_parts_never_go_beyond_the_edge() -> None:
    found = progress_bar.meter(Progress(done=1, failed=1, skipped=1)).parts
    assert [look for _, _, look in found] == ["done", "failed", "skipped"]
    assert sum(width for _, width, _ in found) == pytest.approx(100, abs=0.02)


def test_waves_that_are_update_domains_are_called_so() -> None:
    assert titles([wave(1, 0), wave(2, 1)]) == [("Update domain 0", "wave 1"), ("Update domain 1", "wave 2")]


@pytest.mark.parametrize(
    ("waves", "told"),
    [
        ([wave(1, 0, 2), wave(2, 1)], [("Wave 1", "update domains 0 and 2"), ("Wave 2", "update domain 1")]),
        ([wave(1, 0), wave(2, 0)], [("Wave 1", "update domain 0"), ("Wave 2", "update domain 0")]),
        ([wave(1, *range(5), 7)], [("Wave 1", "update domains 0 to 4 and 7")]),
        ([wave(1)], [("Wave 1", "")]),
    ],
)
def test_waves_that_are_not_say_which_they_have(waves: list[WaveProgress], told: list[tuple[str, str]]) -> None:
    assert titles(waves) == told


def test_of_many_waves_those_are_told_that_matter_now() -> None:
    over = [wave(number, done=3) for number in range(1, 41)]
    later = [wave(number, waiting=2) for number in range(42, 101)]
    found = progress_bar.lines([*over, wave(41, failed=1), *later])
    assert [line.title for line in found[:2]] == ["Waves 1 to 40", "Wave 41"]
    assert found[-1].title == "Waves 61 to 100"
    assert (found[0].meter.text, found[-1].meter.text) == ("120 of 120 done", "0 of 80 done")
    assert len(found) == progress_bar.MOST_WAVES + 2
    assert sum(line.hosts for line in found) == 120 + 1 + 59 * 2
    assert [line.title for line in progress_bar.lines(over)] == ["Waves 1 to 40"]
