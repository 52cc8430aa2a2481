"""The collector is told once what stays."""

import gc
from collections.abc import Iterator

import pytest

from notbefore import garbage


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_collections_are_rare() -> None:
    garbage.ease()
    assert gc.get_threshold() == garbage.THRESHOLDS


def test_what_is_loaded_is_never_looked_at_again() -> None:
    with garbage.put_off():
        assert not gc.isenabled()
        fleet = [{"vm": number} for number in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(fleet)


def test_a_failed_start_collects_again() -> None:
    with pytest.raises(ValueError, match="no"), garbage.put_off():
        raise ValueError("no")
    assert gc.isenabled()
