"""Real hosts and guests: without what they need, these tests are left out, and fail in CI."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.needed import require

from forenotice.lab import hosts, lab


@pytest.fixture(scope="session")
def needed() -> None:
    """What the lab needs is installed."""
    require(lab.require)


@pytest.fixture
def place(needed: None) -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="fn-") as directory:
        yield Path(directory)


@pytest.fixture
def host(place: Path) -> Iterator[hosts.Host]:
    with hosts.Host.start("host-a", place / "a", bound=True) as started:
        yield started
