"""A service with a journal to tell of."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.delivery.telling import Teller

from forenotice.store.opening import open_store


@pytest.fixture
def teller(tmp_path: Path) -> Iterator[Teller]:
    store = open_store(f"sqlite:///{tmp_path / 'forenotice.db'}", migrate=True)
    yield Teller(store)
    store.close()
