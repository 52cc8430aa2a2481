"""What the agent has done and is about to do, in SQLite in the state directory: durable before it acts."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

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
SCHEMA = """
CREATE TABLE IF NOT EXISTS sagas (
    id TEXT PRIMARY KEY, live INTEGER NOT NULL, number INTEGER NOT NULL, content TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS peers (
    event TEXT NOT NULL, name TEXT NOT NULL, ready_at TEXT NOT NULL, PRIMARY KEY (event, name)
);
"""
PROBE = "SELECT id, live, number, content, event, name, ready_at FROM sagas, peers LIMIT 0"


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
        self._path = path = directory / FILE
        if not writable:
            with _translated("the journal cannot be read"):
                secret_files.require_directory(directory, NOUN)
                self._connection = _open_for_reading(path)
            return
        with _translated(f"the state directory {directory} cannot be used"):
            secret_files.make_directory(directory, NOUN)
            try:
                self._connection = _open(path)
            except sqlite3.Error as error:
                if _is_temporary(error):
                    raise
                self.put_aside = _unused_name(path)
                path.rename(self.put_aside)
                for suffix in ("-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
                self._connection = _open(path)
            with _closed_on_error(self._connection):
                self._drop_unreadable()
                self._file = path.stat()

    def _drop_unreadable(self) -> None:
        sagas, unreadable = _sagas(self._connection)
        if not unreadable:
            return
        self.put_aside = _unused_name(self._path)
        _make_file(self.put_aside)
        with contextlib.closing(sqlite3.connect(self.put_aside)) as copy:
            self.copy_to(copy)
        with self._transaction() as connection:
            connection.executemany("DELETE FROM sagas WHERE rowid = ?", [(row,) for row in unreadable])
            if not any(saga.live for saga in sagas):
                # As after the loss of the whole journal: what was prepared is unknown.
                connection.execute("PRAGMA user_version = 0")
        self.dropped = len(unreadable)

    def close(self) -> None:
        self._connection.close()

    def copy_to(self, target: sqlite3.Connection) -> None:
        self._connection.backup(target)

    def is_there(self) -> bool:
        """Whether the open file is the one that the next agent would find."""
        return _is_still(self._path, self._file)

    def sagas(self) -> list[Saga]:
        with _translated("the journal cannot be read"):
            return _sagas(self._connection)[0]

    def peers(self) -> dict[str, dict[str, datetime]]:
        """Since when peers are ready, by event and name. Peers will send again what cannot be read."""
        found: dict[str, dict[str, datetime]] = {}
        with _translated("the journal cannot be read"):
            rows = self._connection.execute("SELECT event, name, ready_at FROM peers").fetchall()
        for event, name, ready_at in rows:
            with contextlib.suppress(ValueError):
                found.setdefault(event, {})[name] = datetime.fromisoformat(ready_at)
        return found

    def is_new(self) -> bool:
        """Whether what was prepared before it was made is not settled yet."""
        with _translated("the journal cannot be read"):
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            return not version

    def write(self, saga: Saga, *, anew: bool = False) -> None:
        """Durable when this returns. `anew` forgets an earlier saga of the same event."""
        with self._transaction() as connection:
            if not saga.live or anew:
                # For an event that is new here, peers may have reported before.
                connection.execute("DELETE FROM peers WHERE event IN (SELECT id FROM sagas WHERE id = ?)", (saga.id,))
            connection.execute(
                "INSERT INTO sagas SELECT ?1, ?2, coalesce(max(number), 0) + 1, ?3 FROM sagas WHERE true"
                " ON CONFLICT (id) DO UPDATE SET live = excluded.live, content = excluded.content",
                (saga.id, saga.live, msgspec.json.encode(saga).decode()),
            )
            if not saga.live:
                connection.execute(
                    "DELETE FROM sagas WHERE NOT live AND id NOT IN"
                    " (SELECT id FROM sagas WHERE NOT live ORDER BY number DESC LIMIT ?)",
                    (KEPT,),
                )

    def mark_old(self, first: Saga | None) -> None:
        """What was prepared before is settled: by this saga, or nothing was."""
        with self._transaction() as connection:
            connection.execute("PRAGMA user_version = 1")
            if first:
                content = msgspec.json.encode(first).decode()
                connection.execute("REPLACE INTO sagas VALUES (?, true, 0, ?)", (first.id, content))

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

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _translated("the journal cannot be written"):
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                yield self._connection


class Copy(Journal):
    """The journal in memory, for an agent that only observes: the file never changes."""

    def __init__(self, directory: Path) -> None:
        """JournalError, RefusedError: as for the journal itself. Unreadable sagas are left out."""
        self.put_aside, self.dropped = None, 0
        self._connection = _connect(":memory:")
        with _closed_on_error(self._connection), _translated("the journal cannot be read"):
            if (directory / FILE).exists():
                with contextlib.closing(Journal(directory, writable=False)) as found:
                    found.copy_to(self._connection)
            self._connection.executescript(SCHEMA)

    def is_there(self) -> bool:
        return True


class Lock:
    """One agent at a time for a state directory. It ends with the process, however that ends."""

    def __init__(self, directory: Path) -> None:
        """JournalError: it is not possible now. ConflictError: another agent has it.

        RefusedError: other users can change the content of the directory.
        """
        self._path = path = directory / LOCK_FILE
        with _translated(f"the state directory {directory} cannot be used"):
            secret_files.make_directory(directory, NOUN)
            try:
                self._connection = _lock(path, LOCK_TIMEOUT)
            except sqlite3.Error as error:
                if "locked" in str(error):
                    raise errors.ConflictError(f"another agent runs on the state directory {directory}") from None
                if _is_temporary(error):
                    raise
                # It has no content that could be lost.
                path.unlink()
                self._connection = _lock(path, LOCK_TIMEOUT)
            self._file = path.stat()

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
        return None if _is_temporary(error) else False
    except OSError:
        return None
    return False


def may_exist(directory: Path) -> bool:
    """Whether there is a journal, or that is unknown."""
    try:
        return (directory / FILE).exists()
    except OSError:
        return True


def _make_file(path: Path) -> None:
    """SQLite would use the umask's mode, follow a symbolic link, and block on a pipe."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _is_temporary(error: sqlite3.Error) -> bool:
    # Python's own errors, such as for bytes that are not UTF-8, have no code.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in TEMPORARY


@contextlib.contextmanager
def _translated(problem: str) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise JournalError(f"{problem}: {error}") from None


@contextlib.contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _is_still(path: Path, opened: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), opened)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # Unknown; the next write will show.
        return True


def _connect(place: Path | str, *statements: str, timeout: float = 5.0, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(place, timeout=timeout, isolation_level=None, uri=uri)
    # One text that cannot be read does not fail the whole query.
    connection.text_factory = lambda content: content.decode(errors="replace")
    with _closed_on_error(connection):
        for statement in statements:
            connection.execute(statement).fetchall()
    return connection


def _open(path: Path) -> sqlite3.Connection:
    _make_file(path)
    connection = _connect(path, "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")
    with _closed_on_error(connection):
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("database disk image is malformed")
        connection.executescript(SCHEMA)
        connection.execute(PROBE)
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
    _make_file(path)
    connection = _connect(path, "BEGIN EXCLUSIVE", timeout=timeout)
    if not os.access(path, os.W_OK):
        # SQLite then only takes a lock for reading, which excludes nobody.
        connection.close()
        raise PermissionError(f"{path} cannot be written")
    return connection


def _sagas(connection: sqlite3.Connection) -> tuple[list[Saga], list[int]]:
    """Those that can be read, the oldest first, and the rows of those that cannot."""
    sagas, unreadable = [], []
    query = "SELECT rowid, id, CAST(content AS BLOB) FROM sagas ORDER BY number"
    for row, name, content in connection.execute(query).fetchall():
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, TypeError):
            saga = msgspec.json.decode(content, type=Saga)
            if saga.id == name:
                sagas.append(saga)
                continue
        unreadable.append(row)
    return sagas, unreadable


def _unused_name(path: Path) -> Path:
    number = 1
    while (kept := path.with_name(f"{FILE}.unreadable-{number}")).exists():
        number += 1
    return kept
