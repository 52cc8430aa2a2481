"""Clocks of the machine, as far as this one has them."""

import time
from pathlib import Path

import pytest

from forenotice.agent.posix import clocks


def test_the_clock_of_the_boot_is_never_behind_the_monotonic_one() -> None:
    before = time.monotonic()
    assert clocks.boot() >= before


def test_the_hardware_clock_is_read_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "since_epoch"
    path.write_text("1773057600\n")
    assert clocks.hardware(path) == 1773057600


@pytest.mark.parametrize("content", ["", "soon\n"])
def test_one_that_says_nothing_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "since_epoch"
    path.write_text(content)
    assert clocks.hardware(path) is None


def test_one_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert clocks.hardware(tmp_path / "since_epoch") is None


def test_this_machines_own_is_in_seconds_or_not_there() -> None:
    seconds = clocks.hardware()
    assert seconds is None or seconds > 0
