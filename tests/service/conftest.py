"""Every use case runs on both databases."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.rig import Rig

from forenotice.store.database import Store
from forenotice.store.opener import open_store


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Of a database with the newest schema and nothing in it."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    return str(request.getfixturevalue("migrated_postgres_url"))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url, migrate=False)
    yield opened
    opened.close()


@pytest.fixture
def rig(store: Store) -> Rig:
    """The demo fleet; every scope listens."""
    return Rig(store).settle_demo()


@pytest.fixture
def sqlite_store(sqlite_path: Path) -> Iterator[Store]:
    """For what does not depend on the database."""
    opened = open_store(f"sqlite:///{sqlite_path}", migrate=False)
    yield opened
    opened.close()
