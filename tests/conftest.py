"""Fixtures for all rooms."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import coverage
import pytest
import structlog

from forenotice import logs

if "PYTEST_XDIST_WORKER" in os.environ:
    # This process is measured. What it starts is not: that would be a third slower, and lost when it is killed.
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        del os.environ[name]

pytest_plugins = ("tests.databases", "tests.postgres", "tests.wheel")


MEASURING = coverage.Coverage.current()
PURE = tuple(Path(__file__).parent / room for room in ("core", "wire", "agent/rules"))
"""Tests of what holds itself to every branch. The tracer takes a third of the time: `make soak` measures the others."""


def pytest_collection_finish() -> None:
    """Tests stay until the end: to look through thousands at every collection of garbage is a tenth of the time."""
    gc.collect()
    gc.freeze()
    if MEASURING:
        MEASURING.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    measured = "MEASURE_ALL" in os.environ or any(item.path.is_relative_to(room) for room in PURE)
    if not MEASURING or not measured or item.get_closest_marker("drawn"):
        return (yield)
    MEASURING.start()
    try:
        return (yield)
    finally:
        MEASURING.stop()


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """A command that is run in this process sets its logs up; the next test has its own, where capsys finds them."""
    before, logs.log.setup = logs.log.setup, lambda: None
    yield
    logs.log.setup = before
    structlog.reset_defaults()
