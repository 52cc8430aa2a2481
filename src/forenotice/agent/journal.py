"""What the agent has done and is about to do, in SQLite in the state directory: durable before it acts."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from forenotice import secret_files
from forenotice.agent.rules.saga import Saga
from forenotice.core import errors

FILE, LOCK_FILE = "journal.db", "lock"
NOUN = "the state directory"
KEPT = 100
MOST_PEERS = 1000
LOCK_TIMEOUT = 1.0
"""Seconds that an agent waits for processes that only check whether one runs."""
TEMPORARY = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("AUTH", "BUSY", "CANTOPEN", "FULL", "IOERR", "LOCKED", "NOMEM", "PERM", "READONLY")
)
"""Errors that may go away; all others are about the file's content."""
TABLES = {
    "sagas": "id TEXT PRIMARY KEY, live INTEGER NOT NULL, number INTEGER NOT NULL, content TEXT NOT NULL",
    "handlers": "saga TEXT NOT NULL, name TEXT NOT NULL, config TEXT NOT NULL, PRIMARY KEY (saga, name)",
    "peers": "event TEXT NOT NULL, name TEXT NOT NULL, ready_at TEXT NOT NULL, PRIMARY KEY (event, name)",
    "marks": "name TEXT PRIMARY KEY",
}
COLUMNS = {
    "sagas": "id, live, number, content",
    "handlers": "saga, name, config",
    "peers": "event, name, ready_at",
    "marks": "name",
}
SCHEMA = "".join(f"CREATE TABLE IF NOT EXISTS {name} ({columns});" for name, columns in TABLES.items())


class JournalError(errors.UnavailableError):
    """The state directory cannot be used now."""

    code = "journal"


class Journal:
    """For one thread."""

    def __init__(self, directory: Path, *, writable: bool = True) -> None:
        """Opens or makes it; JournalError when that is not possible. What cannot be read is put aside.

        RefusedError: other users could have written it, and it says which programs to run.
        If not `writable`, it is read as it is, even from a disk that is full.
        """
        self.put_aside: Path | None = None
        self.dropped = 0
        """Sagas that could not be read, of a journal that otherwise could."""
        path = directory / FILE
        if not writable:
            with _reading():
                secret_files.require_directory(directory, NOUN)
                self._connection = _open_for_reading(path)
            return
        try:
            secret_files.make_directory(directory, NOUN)
            try:
                self._connection = _open(path)
            except sqlite3.Error as error:
                if is_temporary(error):
                    raise
                self.put_aside = _put_aside(path)
                self._connection = _open(path)
            self._drop_unreadable(path)
            self._path, self._file = path, path.stat()
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the state directory {directory} cannot be used: {error}") from None

    def _drop_unreadable(self, path: Path) -> None:
        try:
            sagas, unreadable = _sagas(self._connection)
            if not unreadable:
                return
            self.put_aside = _unused_name(path)
            make_file(self.put_aside)
            with contextlib.closing(sqlite3.connect(self.put_aside)) as copy:
                self._connection.backup(copy)
            with self._transaction() as connection:
                connection.executemany("DELETE FROM sagas WHERE rowid = ?", [(row,) for row in unreadable])
                if not any(saga.live for saga in sagas):
                    # As after the loss of the whole journal: what was prepared is unknown.
                    connection.execute("DELETE FROM marks")
            self.dropped = len(unreadable)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def copy_to(self, target: sqlite3.Connection) -> None:
        self._connection.backup(target)

    def is_there(self) -> bool:
        """Whether the open file is the one that the next agent would find."""
        return _is_still(self._path, self._file)

    def sagas(self) -> list[Saga]:
        with _reading():
            return _sagas(self._connection)[0]

    def configs(self, saga: str) -> Mapping[str, str]:
        """The configuration of each handler as it was when it prepared."""
        return dict(self._rows("SELECT name, config FROM handlers WHERE saga = ?", saga))

    def peers(self) -> Mapping[str, Mapping[str, datetime]]:
        """Since when peers are ready, by event and name. Peers will send again what cannot be read."""
        found: dict[str, dict[str, datetime]] = {}
        for event, name, ready_at in self._rows("SELECT event, name, ready_at FROM peers"):
            with contextlib.suppress(ValueError):
                found.setdefault(event, {})[name] = datetime.fromisoformat(ready_at)
        return found

    def is_new(self) -> bool:
        """Whether what was prepared before it was made is not settled yet."""
        return not self._rows("SELECT name FROM marks")

    def write(self, saga: Saga, configs: Mapping[str, str], *, anew: bool = False) -> None:
        """Durable when this returns. `anew` forgets an earlier saga of the same event."""
        with self._transaction() as connection:
            if anew:
                connection.execute("DELETE FROM handlers WHERE saga = ?", (saga.id,))
            if not saga.live or anew:
                # For an event that is new here, peers may have reported before.
                connection.execute("DELETE FROM peers WHERE event IN (SELECT id FROM sagas WHERE id = ?)", (saga.id,))
            connection.execute(
                "INSERT INTO sagas SELECT ?1, ?2, coalesce(max(number), 0) + 1, ?3 FROM sagas WHERE true"
                " ON CONFLICT (id) DO UPDATE SET live = excluded.live, content = excluded.content",
                (saga.id, saga.live, _encoded(saga)),
            )
            connection.executemany(
                "INSERT INTO handlers VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET config = excluded.config",
                [(saga.id, name, config) for name, config in configs.items()],
            )
            if not saga.live:
                connection.execute(
                    "DELETE FROM sagas WHERE NOT live AND id NOT IN"
                    " (SELECT id FROM sagas WHERE NOT live ORDER BY number DESC LIMIT ?)",
                    (KEPT,),
                )
                connection.execute("DELETE FROM handlers WHERE saga NOT IN (SELECT id FROM sagas)")

    def mark_old(self, first: Saga | None) -> None:
        """What was prepared before is settled: by this saga, or nothing was."""
        with self._transaction() as connection:
            connection.execute("REPLACE INTO marks VALUES ('old')")
            if first:
                connection.execute("REPLACE INTO sagas VALUES (?, ?, 0, ?)", (first.id, True, _encoded(first)))

    def peer_ready(self, event: str, name: str, ready_at: datetime | None) -> None:
        """None: it is not ready, or no longer."""
        with self._transaction() as connection:
            if ready_at is None:
                connection.execute("DELETE FROM peers WHERE event = ? AND name = ?", (event, name))
                return
            connection.execute("REPLACE INTO peers VALUES (?, ?, ?)", (event, name, ready_at.isoformat()))
            connection.execute(
                "DELETE FROM peers WHERE rowid NOT IN (SELECT rowid FROM peers ORDER BY ready_at DESC LIMIT ?)",
                (MOST_PEERS,),
            )

    def forget_peers(self, event: str) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM peers WHERE event = ?", (event,))

    def _rows(self, query: str, *values: str) -> list[Any]:
        with _reading():
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise JournalError(f"the journal cannot be written: {error}") from None
            raise


class Copy(Journal):
    """The journal in memory, for an agent that only observes: the file never changes."""

    def __init__(self, directory: Path) -> None:
        """JournalError, RefusedError: as for the journal itself. Unreadable sagas are left out."""
        self.put_aside, self.dropped = None, 0
        self._connection = _connect(":memory:")
        try:
            if (directory / FILE).exists():
                with _reading(), contextlib.closing(Journal(directory, writable=False)) as found:
                    found.copy_to(self._connection)
            self._connection.executescript(SCHEMA)
        except BaseException:
            self._connection.close()
            raise

    def is_there(self) -> bool:
        return True


class Lock:
    """One agent at a time for a state directory. It ends with the process, however that ends."""

    def __init__(self, directory: Path) -> None:
        """JournalError: it is not possible now. ConflictError: another agent has it.

        RefusedError: other users can change the content of the directory.
        """
        path = directory / LOCK_FILE
        try:
            secret_files.make_directory(directory, NOUN)
            try:
                self._connection = _lock(path, LOCK_TIMEOUT)
            except sqlite3.Error as error:
                if is_temporary(error):
                    raise
                # It has no content that could be lost.
                path.unlink()
                self._connection = _lock(path, LOCK_TIMEOUT)
            self._path, self._file = path, path.stat()
        except (OSError, sqlite3.Error) as error:
            if "locked" in str(error):
                raise errors.ConflictError(f"another agent runs on the state directory {directory}") from None
            raise JournalError(f"the state directory {directory} cannot be used: {error}") from None

    def is_there(self) -> bool:
        """Whether it excludes others: not when the file was removed."""
        return _is_still(self._path, self._file)

    def release(self) -> None:
        self._connection.close()


def is_running(directory: Path) -> bool | None:
    """Whether an agent has the directory; None if unknown."""
    try:
        if not (directory / LOCK_FILE).exists():
            # An agent that may not write here runs without a lock.
            return None
        _lock(directory / LOCK_FILE, 0).close()
    except sqlite3.Error as error:
        if "locked" in str(error):
            return True
        return None if is_temporary(error) else False
    except OSError:
        return None
    return False


def may_exist(directory: Path) -> bool:
    """Whether there is a journal, or that is unknown."""
    try:
        return (directory / FILE).exists()
    except OSError:
        return True


def make_file(path: Path) -> None:
    """SQLite would use the umask's mode, follow a symbolic link, and block on a pipe."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def is_temporary(error: sqlite3.Error) -> bool:
    # Python's own errors, such as for bytes that are not UTF-8, have no code.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in TEMPORARY


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise JournalError(f"the journal cannot be read: {error}") from None


def _is_still(path: Path, opened: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), opened)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # Unknown; the next write will show.
        return True


def _connect(place: Path | str, *statements: str, timeout: float = 5.0, uri: bool = False) -> sqlite3.Connection:
    """Closed again if a statement fails."""
    connection = sqlite3.connect(place, timeout=timeout, isolation_level=None, uri=uri)
    connection.text_factory = _text
    try:
        for statement in statements:
            connection.execute(statement).fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _text(content: bytes) -> str:
    """One text that cannot be read does not fail the whole query."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return ""


def _open(path: Path) -> sqlite3.Connection:
    make_file(path)
    connection = _connect(path, "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")
    try:
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("database disk image is malformed")
        connection.executescript(SCHEMA)
        for table, columns in COLUMNS.items():
            connection.execute(f"SELECT {columns} FROM {table} LIMIT 0")  # noqa: S608
    except BaseException:
        connection.close()
        raise
    return connection


def _open_for_reading(path: Path) -> sqlite3.Connection:
    probe, uri = "SELECT count(*) FROM sagas", path.absolute().as_uri()
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or not log.stat().st_size:
        # SQLite would want to make one, unless it is told that nobody writes.
        return _connect(f"{uri}?mode=ro&immutable=1", probe, timeout=1, uri=True)
    try:
        return _connect(f"{uri}?mode=ro", probe, timeout=1, uri=True)
    except sqlite3.Error:
        # A full disk has no room for the shared memory file; with an exclusive lock SQLite needs none.
        return _connect(f"{uri}?mode=rw", "PRAGMA locking_mode = EXCLUSIVE", probe, timeout=1, uri=True)


def _lock(path: Path, timeout: float) -> sqlite3.Connection:
    make_file(path)
    connection = _connect(path, "BEGIN EXCLUSIVE", timeout=timeout)
    if not os.access(path, os.W_OK):
        # SQLite then only takes a lock for reading, which excludes nobody.
        connection.close()
        raise PermissionError(f"{path} cannot be written")
    return connection


def _encoded(saga: Saga) -> str:
    return msgspec.json.encode(saga).decode()


def _sagas(connection: sqlite3.Connection) -> tuple[list[Saga], list[int]]:
    """Those that can be read, the oldest first, and the rows of those that cannot."""
    sagas, unreadable = [], []
    query = "SELECT rowid, id, CAST(content AS BLOB) FROM sagas ORDER BY number"
    for row, name, content in connection.execute(query).fetchall():
        try:
            saga = msgspec.json.decode(content, type=Saga)
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
            unreadable.append(row)
            continue
        if saga.id == name:
            sagas.append(saga)
        else:
            unreadable.append(row)
    return sagas, unreadable


def _unused_name(path: Path) -> Path:
    number = 1
    while (kept := path.with_name(f"{FILE}.unreadable-{number}")).exists():
        number += 1
    return kept


def _put_aside(path: Path) -> Path:
    kept = _unused_name(path)
    path.rename(kept)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return kept
