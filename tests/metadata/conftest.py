"""Fixtures for the guests' endpoint."""

from collections.abc import Iterator

import pytest
from tests.metadata.running import Running, running


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """For tests that change nothing."""
    with running() as server:
        yield server


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as server:
        yield server
