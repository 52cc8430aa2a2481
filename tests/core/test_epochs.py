"""Epochs grow, with the clock or without it, and incarnations that go on from them fit into 31 bits."""

from datetime import UTC, datetime, timedelta

import pytest

from forenotice.core import documents

NOW = datetime(2026, 3, 9, 12, tzinfo=UTC)
SECONDS = 68_990_400


@pytest.mark.parametrize(
    ("now", "known", "epoch"),
    [
        (NOW, (), SECONDS),
        (NOW, (0, 0), SECONDS),
        (NOW, (SECONDS - documents.STEP, 5), SECONDS),
        # Restored twice on one day, or by a clock that is wrong.
        (NOW, (SECONDS - 60, 0), SECONDS - 60 + documents.STEP),
        (datetime(1970, 1, 1, tzinfo=UTC), (0, SECONDS), SECONDS + documents.STEP),
        (datetime(2092, 1, 1, tzinfo=UTC), (), 2_145_916_800),
    ],
)
def test_the_epoch_that_follows(now: datetime, known: tuple[int, ...], epoch: int) -> None:
    assert documents.next_epoch(now, *known) == epoch < 2**31


def test_a_later_restore_has_a_later_epoch_though_nobody_remembers_the_first() -> None:
    assert documents.next_epoch(NOW + timedelta(seconds=1), 0) > documents.next_epoch(NOW, 0)


def test_a_suffix_is_short_and_its_own() -> None:
    assert documents.epoch_suffix(SECONDS) == ".41cb5c0"


@pytest.mark.parametrize(
    ("epoch", "position", "fell"), [(7, 100, False), (7, 101, False), (8, 3, False), (7, 99, True), (6, 500, True)]
)
def test_a_database_that_is_older_than_it_was(epoch: int, position: int, fell: bool) -> None:
    assert documents.is_behind(epoch, position, was=(7, 100)) is fell
