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

from forenotice import secretfiles
from forenotice.agent.rules.saga import Saga
from forenotice.core import errors

FILE = "journal.db"
NOUN = "the state directory"
KEPT = 100
"""Sagas that are over."""
HEARD = 1000
"""Readiness that peers have told of."""
PASSING = frozenset(
    {
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
"""What may be otherwise the next time; whatever else SQLite says is about what the file holds."""

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
COLUMNS = {
    "sagas": "id, live, number, content",
    "handlers": "saga, name, config",
    "peers": "event, name, ready_at",
    "marks": "name",
}


class JournalError(errors.UnavailableError):
    """The state directory cannot be used just now."""

    code = "journal"


class Journal:
    """For one thread."""

    def __init__(self, directory: Path, *, writable: bool = True) -> None:
        """Opens or makes it; JournalError when that is not possible. What cannot be read is put aside.

        RefusedError: other users could have written it, and it says which programs to run.
        One that is not `writable` is read as it is, also from a disk that takes nothing.
        """
        self.put_aside: Path | None = None
        """Where the file is kept, as it was."""
        self.dropped = 0
        """Sagas that could not be read, of a journal that otherwise could."""
        path = directory / FILE
        if not writable:
            with _reading():
                secretfiles.require_directory(directory, NOUN)
                self._connection = _look_into(path)
            return
        try:
            secretfiles.make_directory(directory, NOUN)
            try:
                self._connection = _connect(path)
            except sqlite3.Error as error:
                if is_passing(error):
                    raise
                self.put_aside = _put_aside(path)
                self._connection = _connect(path)
            self._drop_what_cannot_be_read(path)
            self._path, self._file = path, path.stat()
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the state directory {directory} cannot be used: {error}") from None

    def _drop_what_cannot_be_read(self, path: Path) -> None:
        try:
            sagas, unreadable = _sagas(self._connection)
            if not unreadable:
                return
            self.put_aside = _free(path)
            _copy(self._connection, self.put_aside)
            with self._transaction() as connection:
                connection.executemany("DELETE FROM sagas WHERE rowid = ?", [(row,) for row in unreadable])
                if not any(saga.live for saga in sagas):
                    # As after the loss of a whole journal: nobody knows what was prepared.
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
        """Whether the file that is open is the one that the next agent would find."""
        return is_still(self._path, self._file)

    def sagas(self) -> list[Saga]:
        """All of them, the oldest first."""
        with _reading():
            return _sagas(self._connection)[0]

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
            if not saga.live or anew:
                # Of an event that is new to us, others may have been first to tell.
                connection.execute("DELETE FROM peers WHERE event IN (SELECT id FROM sagas WHERE id = ?)", (saga.id,))
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
            connection.execute("REPLACE INTO marks VALUES ('old')")
            if first:
                content = msgspec.json.encode(first).decode()
                connection.execute("REPLACE INTO sagas VALUES (?, ?, 0, ?)", (first.id, True, content))

    def heard(self, event: str, name: str, ready_at: datetime | None) -> None:
        """None: it is not ready, or no longer."""
        with self._transaction() as connection:
            if ready_at is None:
                connection.execute("DELETE FROM peers WHERE event = ? AND name = ?", (event, name))
                return
            connection.execute("REPLACE INTO peers VALUES (?, ?, ?)", (event, name, ready_at.isoformat()))
            connection.execute(
                "DELETE FROM peers WHERE rowid NOT IN (SELECT rowid FROM peers ORDER BY ready_at DESC LIMIT ?)",
                (HEARD,),
            )

    def forget_peers(self, event: str) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM peers WHERE event = ?", (event,))

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


class Copy(Journal):
    """The journal in memory, for an agent that only observes: the file stays as it is, whatever is written here."""

    def __init__(self, directory: Path) -> None:
        """JournalError, RefusedError: as for the journal itself. What it would put aside is left out."""
        self.put_aside, self.dropped = None, 0
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.text_factory = _text
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


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
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


def make_file(path: Path) -> None:
    """SQLite would use the umask's mode, follow a symbolic link, and block on a pipe."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def is_still(path: Path, opened: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), opened)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # Nobody can tell; what is written will.
        return True


def may_exist(directory: Path) -> bool:
    """Whether there is a journal, or nobody can tell."""
    try:
        return (directory / FILE).exists()
    except OSError:
        return True


def _connect(path: Path) -> sqlite3.Connection:
    make_file(path)
    connection = sqlite3.connect(path, timeout=5, isolation_level=None)
    connection.text_factory = _text
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("database disk image is malformed")
        connection.executescript(SCHEMA)
        for table, columns in COLUMNS.items():
            connection.execute(f"SELECT {columns} FROM {table} LIMIT 0")  # noqa: S608
    except BaseException:
        connection.close()
        raise
    return connection


def _look_into(path: Path) -> sqlite3.Connection:
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or not log.stat().st_size:
        # SQLite would want to make one, unless it is told that nobody writes.
        return _probe(path, "mode=ro&immutable=1")
    try:
        return _probe(path, "mode=ro")
    except sqlite3.Error:
        # A full disk has no room for the memory that is shared with others; alone, SQLite does without.
        return _probe(path, "mode=rw", "PRAGMA locking_mode = EXCLUSIVE")


def _probe(path: Path, how: str, *first: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", timeout=1, isolation_level=None, uri=True)
    connection.text_factory = _text
    try:
        for statement in (*first, "SELECT count(*) FROM sagas"):
            connection.execute(statement).fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def is_passing(error: sqlite3.Error) -> bool:
    # Python's own complaints, such as of bytes that are not UTF-8, have no code.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in PASSING


def _text(content: bytes) -> str:
    """One text that cannot be read does not take the others with it."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return ""


def _sagas(connection: sqlite3.Connection) -> tuple[list[Saga], list[int]]:
    """Those that can be read, the oldest first, and the rows of those that cannot."""
    sagas, unreadable = [], []
    for row, name, content in connection.execute(
        "SELECT rowid, id, CAST(content AS BLOB) FROM sagas ORDER BY number"
    ).fetchall():
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


def _free(path: Path) -> Path:
    number = 1
    while (kept := path.with_name(f"{FILE}.unreadable-{number}")).exists():
        number += 1
    return kept


def _copy(connection: sqlite3.Connection, path: Path) -> None:
    make_file(path)
    target = sqlite3.connect(path)
    try:
        connection.backup(target)
    finally:
        target.close()


def _put_aside(path: Path) -> Path:
    kept = _free(path)
    path.rename(kept)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return kept


LOCK_FILE = "lock"
LOOKED_AT = 1.0
"""Seconds that an agent waits for those who only look whether one runs."""


class Lock:
    """Gone with the process, however that ends."""

    def __init__(self, directory: Path) -> None:
        """JournalError when it cannot be had, ConflictError when another agent has it.

        RefusedError: other users can change what is in the directory.
        """
        path = directory / LOCK_FILE
        try:
            secretfiles.make_directory(directory, NOUN)
            try:
                self._connection = _lock(path, LOOKED_AT)
            except sqlite3.Error as error:
                if is_passing(error):
                    raise
                # There is nothing in it that could be lost.
                path.unlink()
                self._connection = _lock(path, LOOKED_AT)
            self._path, self._file = path, path.stat()
        except (OSError, sqlite3.Error) as error:
            if "locked" in str(error):
                raise errors.ConflictError(f"another agent runs on the state directory {directory}") from None
            raise JournalError(f"the state directory {directory} cannot be used: {error}") from None

    def is_there(self) -> bool:
        """Whether it keeps others out: not when somebody has removed it."""
        return is_still(self._path, self._file)

    def release(self) -> None:
        self._connection.close()


def is_running(directory: Path) -> bool | None:
    """Whether an agent has the directory; None when that cannot be told."""
    try:
        if not (directory / LOCK_FILE).exists():
            # An agent that may not write here runs without one.
            return None
        _lock(directory / LOCK_FILE, 0).close()
    except sqlite3.Error as error:
        if "locked" in str(error):
            return True
        return None if is_passing(error) else False
    except OSError:
        return None
    return False


def _lock(path: Path, patience: float) -> sqlite3.Connection:
    make_file(path)
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        if not os.access(path, os.W_OK):
            # SQLite is content with reading then, which keeps nobody out.
            raise PermissionError(f"{path} cannot be written")
    except BaseException:
        connection.close()
        raise
    return connection
