"""The collector is told what stays."""

import gc
from collections.abc import Iterator

import pytest

from notbefore import garbage


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_stays_is_never_looked_at_again() -> None:
    with garbage.put_off():
        with garbage.put_off():
            pass
        assert not gc.isenabled()
        fleet = [{"vm": number} for number in range(1000)]
    assert gc.isenabled()
    garbage.keep()
    assert gc.get_freeze_count() >= len(fleet)


def test_a_failure_does_not_end_collection() -> None:
    with pytest.raises(ValueError, match="no"), garbage.put_off():
        raise ValueError("no")
    assert gc.isenabled()
