"""The embedded store: one SQLite file, write-ahead log, every commit synced to the disk."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, QueuePool, create_engine, event

from forenotice.core import errors
from forenotice.store.errors import translated
from forenotice.store.pooled import PooledStore
from forenotice.store.session import Connection, Flavour

_BUSY_SECONDS = 10.0
_STATEMENTS = 256
"""Prepared statements that a connection keeps."""

_PRAGMAS = (
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -8192",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA temp_store = MEMORY",
)


def engine(url: URL) -> Engine:
    made = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=24,
        # The connection that was used last has the warmest cache.
        pool_use_lifo=True,
        connect_args={
            "timeout": float(str(url.query.get("timeout", _BUSY_SECONDS))),
            "check_same_thread": False,
            "isolation_level": None,
            "cached_statements": _STATEMENTS,
        },
    )

    @event.listens_for(made, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        for pragma in _PRAGMAS:
            connection.execute(pragma)

    @event.listens_for(made, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return made


class SqliteStore(PooledStore):
    flavour = Flavour.SQLITE

    def __init__(self, engine: Engine, path: Path) -> None:
        super().__init__(engine)
        self._path = path

    def backup(self, path: Path) -> None:
        if path.exists():
            raise errors.RefusedError(f"{path} is there already: name a new file for the backup")
        if not path.parent.is_dir():
            raise errors.RefusedError(f"there is no directory {path.parent} for the backup: make it, or name another")
        copy(self._path, path)

    def changes(self, stop: threading.Event) -> Iterator[int]:  # noqa: ARG002
        return iter(())

    def _is_lost(self, connection: Connection) -> bool:  # noqa: ARG002
        return False

    def _begin_reading(self, connection: Connection) -> None:
        connection.execute("BEGIN", ())

    def _begin_writing(self, connection: Connection) -> None:
        connection.execute("BEGIN IMMEDIATE", ())

    def _commit(self, connection: Connection) -> None:
        connection.execute("COMMIT", ())


def copy(source: Path, target: Path) -> None:
    """A complete copy of one moment, while others go on; nothing is left behind when it fails."""
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        with translated():
            reading, writing = sqlite3.connect(source), sqlite3.connect(unfinished)
            try:
                reading.backup(writing)
                # A single file: without the log beside it.
                writing.execute("PRAGMA journal_mode = DELETE")
            finally:
                writing.close()
                reading.close()
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
