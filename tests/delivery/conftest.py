"""A service with a journal to tell of."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.delivery.telling import Teller

from forenotice.store.opener import open_store


@pytest.fixture
def teller(sqlite_path: Path) -> Iterator[Teller]:
    store = open_store(f"sqlite:///{sqlite_path}", migrate=False)
    yield Teller(store)
    store.close()
