"""What the agent has done and is about to do, in SQLite in the state directory: durable before it acts."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from notbefore.agent.rules.saga import Saga
from notbefore.core import errors

FILE = "journal.db"
LOCK = "lock"
LOOKED_AT = 1.0
"""Seconds that an agent waits for those who only look whether one runs."""
KEPT = 100
"""Sagas that are over."""
HEARD = 1000
"""Readiness that peers have told of."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS sagas (
    id TEXT PRIMARY KEY, live INTEGER NOT NULL, number INTEGER NOT NULL, content TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS handlers (
    saga TEXT NOT NULL, name TEXT NOT NULL, config TEXT NOT NULL, PRIMARY KEY (saga, name)
);
CREATE TABLE IF NOT EXISTS peers (
    event TEXT NOT NULL, name TEXT NOT NULL, ready_at TEXT NOT NULL, PRIMARY KEY (event, name)
);
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY);
"""


class JournalError(errors.UnavailableError):
    """The state directory cannot be used just now."""

    code = "journal"


class Journal:
    """For one thread."""

    def __init__(self, directory: Path) -> None:
        """Opens or makes it; JournalError when that is not possible. One that cannot be read is put aside."""
        self.put_aside: Path | None = None
        """Where that one is kept."""
        path = directory / FILE
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._connection = _connect(path)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self.put_aside = _put_aside(path)
                self._connection = _connect(path)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the state directory {directory} cannot be used: {error}") from None

    def close(self) -> None:
        self._connection.close()

    def sagas(self) -> list[Saga]:
        """All of them, the oldest first."""
        with _reading():
            return _sagas(self._connection)

    def configs(self, saga: str) -> Mapping[str, str]:
        """The configuration of each handler as it was when it prepared."""
        return dict(self._rows("SELECT name, config FROM handlers WHERE saga = ?", saga))

    def peers(self) -> Mapping[str, Mapping[str, datetime]]:
        """Since when peers are ready, by event and name. What cannot be read they will tell again."""
        found: dict[str, dict[str, datetime]] = {}
        for event, name, ready_at in self._rows("SELECT event, name, ready_at FROM peers"):
            with contextlib.suppress(ValueError):
                found.setdefault(event, {})[name] = datetime.fromisoformat(ready_at)
        return found

    def is_new(self) -> bool:
        """Nobody has yet asked what was prepared before it was made."""
        return not self._rows("SELECT name FROM marks")

    def write(self, saga: Saga, configs: Mapping[str, str], *, anew: bool = False) -> None:
        """Durable when this returns. `anew` forgets what an earlier saga of the same event has left."""
        content = msgspec.json.encode(saga).decode()
        with self._transaction() as connection:
            if anew:
                connection.execute("DELETE FROM handlers WHERE saga = ?", (saga.id,))
            connection.execute(
                "INSERT INTO sagas SELECT ?1, ?2, coalesce(max(number), 0) + 1, ?3 FROM sagas WHERE true"
                " ON CONFLICT (id) DO UPDATE SET live = excluded.live, content = excluded.content",
                (saga.id, saga.live, content),
            )
            connection.executemany(
                "INSERT INTO handlers VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET config = excluded.config",
                [(saga.id, name, config) for name, config in configs.items()],
            )
            if not saga.live:
                self._forget_the_oldest(connection)

    def mark_old(self, first: Saga | None) -> None:
        """What was prepared before is settled: by this saga, or nothing was."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO marks VALUES ('old')")
            if first:
                content = msgspec.json.encode(first).decode()
                connection.execute("INSERT INTO sagas VALUES (?, ?, 0, ?)", (first.id, True, content))

    def heard(self, event: str, name: str, ready_at: datetime) -> None:
        with self._transaction() as connection:
            connection.execute("REPLACE INTO peers VALUES (?, ?, ?)", (event, name, ready_at.isoformat()))
            connection.execute(
                "DELETE FROM peers WHERE rowid NOT IN (SELECT rowid FROM peers ORDER BY ready_at DESC LIMIT ?)",
                (HEARD,),
            )

    def _forget_the_oldest(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "DELETE FROM sagas WHERE NOT live AND id NOT IN"
            " (SELECT id FROM sagas WHERE NOT live ORDER BY number DESC LIMIT ?)",
            (KEPT,),
        )
        connection.execute("DELETE FROM handlers WHERE saga NOT IN (SELECT id FROM sagas)")

    def _rows(self, query: str, *values: str) -> list[Any]:
        with _reading():
            return self._connection.execute(query, values).fetchall()

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._connection)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise JournalError(f"the journal cannot be read: {error}") from None


class _Transaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise JournalError(f"the journal cannot be written: {error}") from None
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
                return
        except sqlite3.Error as failed:
            error = failed
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise JournalError(f"the journal cannot be written: {error}") from None


class Lock:
    """One agent at a time for a state directory; gone with the process, however that ends."""

    def __init__(self, directory: Path) -> None:
        """JournalError when it cannot be had, ConflictError when another agent has it."""
        path = directory / LOCK
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._connection = _lock(path, LOOKED_AT)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                # There is nothing in it that could be lost.
                path.unlink()
                self._connection = _lock(path, LOOKED_AT)
        except (OSError, sqlite3.Error) as error:
            if "locked" in str(error):
                raise errors.ConflictError(f"another agent runs on the state directory {directory}") from None
            raise JournalError(f"the state directory {directory} cannot be used: {error}") from None

    def release(self) -> None:
        self._connection.close()


def is_running(directory: Path) -> bool:
    """Whether an agent has the directory."""
    if not (directory / LOCK).exists():
        return False
    try:
        _lock(directory / LOCK, 0).close()
    except sqlite3.Error as error:
        return "locked" in str(error)
    return False


def _lock(path: Path, patience: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        # SQLite would make it readable for everybody that the umask lets.
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    connection = sqlite3.connect(path, timeout=5, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("database disk image is malformed")
        connection.executescript(SCHEMA)
        _sagas(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _sagas(connection: sqlite3.Connection) -> list[Saga]:
    rows = connection.execute("SELECT content FROM sagas ORDER BY number")
    try:
        return [msgspec.json.decode(content, type=Saga) for (content,) in rows]
    except msgspec.MsgspecError as error:
        raise sqlite3.DatabaseError(f"a saga cannot be read: {error}") from None


def _put_aside(path: Path) -> Path:
    number = 1
    while (kept := path.with_name(f"{FILE}.unreadable-{number}")).exists():
        number += 1
    path.rename(kept)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return kept
