"""The collector is told what stays."""

import gc
from collections.abc import Iterator

import pytest

from forenotice import garbage_collection


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_only_the_young_are_looked_at_less_often() -> None:
    _, *others = gc.get_threshold()
    garbage_collection.raise_threshold()
    assert gc.get_threshold() == (garbage_collection.THRESHOLD, *others)


def test_what_stays_is_never_looked_at_again() -> None:
    before = gc.get_freeze_count()
    with garbage_collection.paused():
        with garbage_collection.paused():
            pass
        assert not gc.isenabled()
        fleet = [[number] for number in range(1000)]
    assert gc.isenabled()
    garbage_collection.freeze()
    assert gc.get_freeze_count() >= before + len(fleet)


def test_a_failure_does_not_end_collection() -> None:
    with pytest.raises(ValueError, match="no"), garbage_collection.paused():
        raise ValueError("no")
    assert gc.isenabled()
