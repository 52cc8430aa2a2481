"""Backoff doubles, up to a limit, in seconds and in timedeltas, however often something fails."""

from datetime import timedelta
from itertools import islice

import pytest

from forenotice.core import backoff


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (6, 10), (100_000, 10)]
)
def test_a_pause_doubles_up_to_the_longest(failures: int, seconds: int) -> None:
    assert backoff.pause(failures, 1.0, 10.0) == seconds
    assert backoff.pause(failures, timedelta(seconds=1), timedelta(seconds=10)) == timedelta(seconds=seconds)


def test_pauses_one_after_the_other() -> None:
    assert list(islice(backoff.pauses(0.25, 1.0), 5)) == [0.25, 0.5, 1, 1, 1]
