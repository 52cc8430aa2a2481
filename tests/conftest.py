"""Fixtures for all rooms."""

import gc
import os
from collections.abc import Generator, Iterator

import coverage
import pytest
import structlog

from forenotice import logs

if "PYTEST_XDIST_WORKER" in os.environ:
    # This process is measured. What it starts is not: that would be a third slower, and lost when it is killed.
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        del os.environ[name]

pytest_plugins = ("tests.databases", "tests.postgres", "tests.wheel")


def pytest_collection_finish() -> None:
    """Tests stay until the end: to look through thousands at every collection of garbage is a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    measuring = coverage.Coverage.current() if item.get_closest_marker("drawn") else None
    if measuring:
        measuring.stop()
    try:
        yield
    finally:
        if measuring:
            measuring.start()


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """A command that is run in this process sets its logs up; the next test has its own, where capsys finds them."""
    before, logs.log.setup = logs.log.setup, lambda: None
    yield
    logs.log.setup = before
    structlog.reset_defaults()
