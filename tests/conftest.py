"""Fixtures for all rooms."""

from collections.abc import Iterator

import pytest
import structlog

from notbefore import logs

pytest_plugins = ("tests.postgres", "tests.wheel")


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """A command that is run in this process sets its logs up; the next test has its own."""
    before = logs.log.setup
    yield
    logs.log.setup = before
    structlog.reset_defaults()
