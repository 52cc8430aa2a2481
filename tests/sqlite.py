"""SQLite files with the newest schema and nothing in them: copying one is thirty times faster than making another."""

import tempfile
from functools import cache
from pathlib import Path

import pytest

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
    return path


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return new_sqlite(tmp_path)
