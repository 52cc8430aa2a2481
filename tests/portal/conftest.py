"""Fixtures of the portal's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.portal.running import Portal, running


@pytest.fixture
def portal(tmp_path: Path) -> Iterator[Portal]:
    """On the demo fleet."""
    with running(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    """For many tests that change nothing."""
    with running(tmp_path_factory.mktemp("portal")) as found:
        yield found
