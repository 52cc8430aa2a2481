"""The embedded store: one SQLite file, write-ahead log, every commit synced to the disk."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from sqlalchemy import URL, Engine, QueuePool, create_engine, event

from forenotice.core import errors
from forenotice.store.database import Mark, PooledStore, brief, translated
from forenotice.store.queries import Connection, Executor, Flavour

_BUSY_SECONDS, _BUSY_PAUSE = 10.0, 0.01
_INSTRUCTIONS = 100_000
"""SQLite calls the progress handler after so many instructions, about a millisecond of work."""
_STATEMENTS = 256
"""Prepared statements that a connection keeps."""

_HAS_LOG_AT, _HAS_LOG = 18, b"\x02\x02"
"""In the head of a file: it is written and read with a write-ahead log, as are all but copies."""
_SCHEMA_AT, _HEAD = 40, 44
"""Where the version of its schema is, and how much of the head is read."""

_SHARED = "-shm"
"""Of the file that connections share to find what is in the log; SQLite makes it anew on the first connection."""

_PRAGMAS = (
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -8192",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA temp_store = MEMORY",
)


def connect(path: Path, mode: str = "rw", **how: Any) -> sqlite3.Connection:
    """Makes no file: one that is missing is an error."""
    made: sqlite3.Connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, **how)
    return made


def has_log(path: Path) -> bool:
    """Whether the file is one that is or was in use; copies of it are not, until they are opened."""
    with path.open("rb") as file:
        return _says_log(file.read(_HEAD))


def _says_log(head: bytes) -> bool:
    return head.startswith(_HAS_LOG, _HAS_LOG_AT)


def log_of(path: Path, suffix: str = "-wal") -> Path:
    """SQLite puts it beside the file itself, not beside a link to it."""
    file = path.resolve()
    return file.with_name(file.name + suffix)


def _switch_to_log(connection: sqlite3.Connection) -> None:
    """SQLite does not wait by itself for others that do the same to a new file."""
    deadline, pause = monotonic() + _BUSY_SECONDS, threading.Event()
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                raise
            pause.wait(_BUSY_PAUSE)
        else:
            return


class File:
    """The database file and its log as opened; checks that their paths still lead to the same files."""

    def __init__(self, path: Path) -> None:
        """Makes the file where there is none."""
        self.path = path
        # SQLite does not delete the log while this connection is open.
        self._anchor = sqlite3.connect(path, check_same_thread=False)
        self._descriptor: int | None = None
        self._noted = (0, 0)
        """How large the file was, and the version of its schema then."""
        self._missed: Path | None = None
        try:
            _switch_to_log(self._anchor)
            self._anchor.execute("SELECT count(*) FROM sqlite_master").fetchone()
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._known = {each: _look(each) for each in (path, log_of(path), log_of(path, _SHARED))}
            self.require_there()
        except BaseException:
            self.close()
            raise

    def require_there(self, consequence: str = "so nothing can be stored") -> None:
        """UnsoundError from the first time that it was missing: what was written since then may be lost."""
        if self._missed is None:
            self._missed = next((path for path in self._known if not self._is_there(path)), None)
        if self._missed is not None:
            remedy = (
                "restart the service"
                if self._missed.name.endswith(_SHARED)
                else "stop the service, put the file back or run `forenotice restore` with a backup, and start it again"
            )
            raise errors.UnsoundError(
                f"{self._missed} was removed, replaced or cut off while it was in use, {consequence}: {remedy}"
            )

    def close(self) -> None:
        self._anchor.close()
        if self._descriptor is not None:
            # Last: with it go the locks of all connections of this process.
            os.close(self._descriptor)
            self._descriptor = None

    def _is_there(self, path: Path) -> bool:
        (size, schema), known, found = self._noted, self._known[path], _look(path)
        if known is None or found is None or not os.path.samestat(known, found):
            return False
        if path != self.path:
            return True
        assert self._descriptor is not None
        head = os.pread(self._descriptor, _HEAD, 0)
        now = found.st_size, int.from_bytes(head[_SCHEMA_AT:], "big")
        if found.st_size != size:
            self._noted = now
        # It may have been emptied, or overwritten by a backup. VACUUM makes it smaller, too, and raises the schema.
        return _says_log(head) and (now[0] >= size or now[1] > schema)


def _look(path: Path) -> os.stat_result | None:
    with suppress(OSError):
        return os.stat(path)
    return None


def engine(url: URL, file: File) -> Engine:
    how: dict[str, Any] = {
        "timeout": float(str(url.query.get("timeout", _BUSY_SECONDS))),
        "check_same_thread": False,
        "isolation_level": None,
        "cached_statements": _STATEMENTS,
    }

    def opened() -> sqlite3.Connection:
        file.require_there()
        return connect(file.path, **how)

    made = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=24,
        # The connection that was used last has the warmest cache.
        pool_use_lifo=True,
        creator=opened,
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

    def __init__(self, engine: Engine, file: File) -> None:
        super().__init__(engine)
        self._file = file
        self._path = file.path
        self._mark: Mark | None = None

    def backup(self, path: Path) -> None:
        if path.exists():
            raise errors.RefusedError(f"{path} is there already: name a new file for the backup")
        if not path.parent.is_dir():
            raise errors.RefusedError(f"there is no directory {path.parent} for the backup: make it, or name another")
        copy(self._path, path)

    def close(self) -> None:
        super().close()
        self._file.close()

    def mark(self) -> Mark | None:
        return read_mark(self._path)

    def checkpoint(self) -> None:
        with translated(), self._connection(self._engine.pool) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)", ()).fetchall()
        with self.read() as reader:
            last = reader.journal.last()
            mark = Mark(epoch=reader.meta.epoch(), position=last[0] if last else 0)
        if mark != self._mark:
            write_mark(self._path, mark)
            self._mark = mark

    @contextmanager
    def _watched(self, connection: Connection, executor: Executor) -> Iterator[None]:
        assert isinstance(connection, sqlite3.Connection)
        connection.set_progress_handler(executor.is_to_end, _INSTRUCTIONS)
        try:
            yield
        finally:
            connection.set_progress_handler(None, 0)

    def _begin_reading(self, connection: Connection) -> None:
        connection.execute("BEGIN", ())

    def _begin_writing(self, connection: Connection) -> None:
        connection.execute("BEGIN IMMEDIATE", ())

    def _commit(self, connection: Connection) -> None:
        # A commit into a deleted file would be lost.
        self._file.require_there()
        connection.execute("COMMIT", ())
        self._file.require_there("and it is not known whether the last change was stored")


def bring_in_log(path: Path) -> None:
    """If possible: a file that is moved afterwards leaves no log behind, even if the process is killed."""
    with suppress(sqlite3.Error), closing(connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def copy(source: Path, target: Path) -> None:
    """A complete copy of one moment, while others go on; nothing is left behind when it fails."""
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        with translated(), closing(connect(source)) as reading, closing(sqlite3.connect(unfinished)) as writing:
            reading.backup(writing)
            # A single file: without the log beside it.
            writing.execute("PRAGMA journal_mode = DELETE")
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)


def mark_beside(database: Path) -> Path:
    return database.with_name(f"{database.name}.mark")


def read_mark(database: Path) -> Mark | None:
    """None: this database was never served, or not by a version that leaves a mark."""
    try:
        return msgspec.json.decode(mark_beside(database).read_bytes(), type=Mark)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        # An unreadable mark still says that the database was in use.
        return Mark()
    except OSError as error:
        raise errors.UnsoundError(f"{mark_beside(database)} cannot be read: {error.strerror}") from None


def write_mark(database: Path, mark: Mark) -> None:
    """Whole or not at all."""
    new = mark_beside(database).with_suffix(".mark-new")
    try:
        with new.open("wb") as file:
            file.write(msgspec.json.encode(mark))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, mark_beside(database))
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise errors.UnavailableError(
            f"{mark_beside(database)} cannot be written ({brief(error)}); try again"
        ) from None


def expect_epoch(database: Path) -> None:
    """The next start finds the database older than its mark, and begins an epoch."""
    last = read_mark(database) or Mark()
    write_mark(database, Mark(epoch=last.epoch + 1, position=last.position))
