"""Databases with the newest schema and nothing in them: copying a migrated one is thirty times faster than migrating.

Tests run on SQLite. What depends on the database's own SQL, locks or notifications is marked `both_databases`.
"""

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from forenotice.store.database import Store
from forenotice.store.opener import open_store


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forenotice.db"
        open_store(f"sqlite:///{path}", migrate=False).close()
        return path.read_bytes()


def new_sqlite(folder: Path) -> Path:
    """The folder's database, made if there is none yet."""
    path = folder / "forenotice.db"
    if not path.exists():
        path.write_bytes(_empty())
        path.chmod(0o600)
    return path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    both = metafunc.definition.get_closest_marker("both_databases") or "tests/store" in str(metafunc.definition.path)
    if both and "url" in metafunc.fixturenames:
        metafunc.parametrize("url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return new_sqlite(tmp_path)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    if getattr(request, "param", "sqlite") == "postgresql":
        return str(request.getfixturevalue("migrated_postgres_url"))
    return f"sqlite:///{request.getfixturevalue('sqlite_path')}"


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
    yield store
    store.close()
