"""Every test of the contract runs on both databases."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
    yield from _opened(url)


@pytest.fixture
def sqlite_store(sqlite_path: Path) -> Iterator[Store]:
    yield from _opened(f"sqlite:///{sqlite_path}")


@pytest.fixture
def postgres_store(migrated_postgres_url: str) -> Iterator[Store]:
    yield from _opened(migrated_postgres_url)


def _opened(url: str) -> Iterator[Store]:
    store = open_store(url, migrate=False)
    try:
        yield store
    finally:
        store.close()
