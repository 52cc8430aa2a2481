"""What a store promises, and what the two databases share: the queue for the one writer, guests first, with a time
limit for each transaction; pooled connections; translated errors."""

import heapq
import itertools
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic

import msgspec
import psycopg
import sqlalchemy.exc
from sqlalchemy import Engine, Pool

from forenotice.core import errors, roles
from forenotice.store.queries import Connection, Executor, Flavour
from forenotice.store.transaction import Reader, Transaction

STATEMENT_SECONDS = 10.0
"""For one statement of a reader."""
PATIENCE_SECONDS = 30.0
"""How long a writer waits for those before it."""

LOOK_SECONDS = 0.1
"""How often a waiting writer checks that its client is still connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    first: bool = False
    """Goes before all others in the queue."""
    seconds: float = roles.WRITE_SECONDS
    """From the start of the transaction to its commit, retries included."""
    is_connected: Callable[[], bool] = lambda: True
    """Whether the client is still connected."""


OWN = WriteRequest()
"""For the service's own transactions."""
GUESTS = WriteRequest(first=True)


class WriterQueue:
    """The one lock of writers in this process. Each hands its turn to the next, so that none jumps the queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        """The thread whose turn it is; 0 between two turns."""
        self._waiting: list[tuple[bool, int, threading.Event]] = []
        self._numbers = itertools.count()

    @contextmanager
    def turn(self, request: WriteRequest = OWN) -> Iterator[None]:
        """A thread whose turn it is keeps it: what is published after a commit belongs to the same turn."""
        me = threading.get_ident()
        if self._holder == me:
            yield
            return
        self._wait(request)
        self._holder = me
        try:
            yield
        finally:
            self._pass_on()

    def _wait(self, request: WriteRequest) -> None:
        with self._lock:
            if self._holder is None:
                self._holder = 0
                return
            mine = (not request.first, next(self._numbers), threading.Event())
            heapq.heappush(self._waiting, mine)
        end = monotonic() + PATIENCE_SECONDS
        while not mine[-1].wait(LOOK_SECONDS):
            if not request.is_connected():
                self._leave(mine)
                raise errors.GoneError
            if monotonic() > end:
                self._leave(mine)
                raise errors.UnavailableError("another command has been writing for too long; try again")

    def _leave(self, mine: tuple[bool, int, threading.Event]) -> None:
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
                heapq.heapify(self._waiting)
                return
        # The turn came just now.
        self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            self._holder = 0 if self._waiting else None
            if self._waiting:
                heapq.heappop(self._waiting)[-1].set()


class TimeLimit:
    """The time limit of a transaction, checked at every statement and before the commit."""

    def __init__(self, request: WriteRequest, monotonic: Callable[[], float] = monotonic) -> None:
        self._request = request
        self._monotonic = monotonic
        self._end: float | None = None

    def start(self) -> None:
        """The transaction has begun; a retry does not start the time again."""
        if self._end is None:
            self._end = self._monotonic() + self._request.seconds

    def check(self) -> None:
        if not self._request.is_connected():
            raise errors.GoneError
        if self._end is not None and self._monotonic() > self._end:
            raise errors.OverdueError(
                f"this kept all others from writing for more than {self._request.seconds:g} seconds and was rolled "
                "back: ask for less at once, or try again when less is going on"
            )


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What the file beside a SQLite database tells: that it is in use, and how far its journal has come."""

    epoch: int = 0
    position: int = 0
    """Of the newest journal entry."""


class Store(ABC):
    """May be used by any number of threads at once."""

    def __init__(self) -> None:
        self.writer = WriterQueue()
        """The lock that `write` takes, for callers that do more in one turn."""

    @abstractmethod
    def read(self) -> AbstractContextManager[Reader]:
        """Never waits for a writer. A statement that takes too long is ended: OverdueError."""

    @abstractmethod
    def write(self, check: Callable[[], None] = lambda: None) -> AbstractContextManager[Transaction]:
        """The one writer over all threads and processes, so that what was read is still true when it commits.

        Durable when the `with` ends; rolled back when it raises. Not to be nested. Its connection is none of those that
        readers share. `check` is called before and during statements and before the commit: what it raises is raised.
        """

    @abstractmethod
    def backup(self, path: Path) -> None:
        """A complete copy of one moment into a new file. RefusedError where the database has a way of its own."""

    def mark(self) -> Mark | None:
        """The mark beside the database from when it was last settled; None: there is none, or it is not a file."""
        return None

    def checkpoint(self) -> None:  # noqa: B027 (only a file has a log)
        """Checkpoint the write-ahead log into the file, and write the mark beside it.

        UnsoundError when the file has gone.
        """

    def changes(self, stop: threading.Event) -> Iterator[int]:  # noqa: ARG002
        """Journal positions as commits of any process arrive, until `stop`; -1: some may have been missed, reload all;
        0, now and then: it still listens.

        The first is the newest position at the moment of listening, so that nothing falls between loading and
        listening. Reconnects by itself. On SQLite, where no other process serves, it ends at once.
        """
        return iter(())

    def close(self) -> None:  # noqa: B027 (there may be nothing to close)
        """Close all connections."""


def _unreached() -> errors.UnavailableError:
    return errors.UnavailableError("the database has not been reached since the start; try again")


class UnreachedStore(Store):
    """The store of a service that has not reached its database yet."""

    def read(self) -> AbstractContextManager[Reader]:
        raise _unreached()

    def write(self, check: Callable[[], None] = lambda: None) -> AbstractContextManager[Transaction]:  # noqa: ARG002
        raise _unreached()

    def backup(self, path: Path) -> None:  # noqa: ARG002
        raise _unreached()


class PooledStore(Store):
    flavour: Flavour

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        # The one writer has its own pool, so it never waits for a reader's connection.
        self._writers = engine.pool.recreate()

    @contextmanager
    def read(self) -> Iterator[Reader]:
        with translated(), self._connection(self._engine.pool) as connection:
            executor = Executor(connection, self.flavour, statement_seconds=STATEMENT_SECONDS)
            with self._watched(connection, executor):
                self._begin_reading(connection)
                yield Reader(executor)

    @contextmanager
    def write(self, check: Callable[[], None] = lambda: None) -> Iterator[Transaction]:
        # Threads queue here, and only the first of them at the database, which need not be fair.
        with self.writer.turn(), translated(), self._connection(self._writers) as connection:
            executor = Executor(connection, self.flavour, check=check)
            database_time = self._begin_writing(connection)
            with self._watched(connection, executor):
                try:
                    yield Transaction(executor, database_time)
                except (sqlite3.Error, psycopg.Error):
                    # What ended the statement.
                    check()
                    raise
                check()
            self._commit(connection)

    def close(self) -> None:
        self._writers.dispose()
        self._engine.dispose()

    @contextmanager
    def _connection(self, pool: Pool) -> Iterator[Connection]:
        """A pooled connection; whatever is not committed is rolled back."""
        pooled = pool.connect()
        connection = pooled.driver_connection
        assert connection is not None
        try:
            yield connection
        finally:
            try:
                connection.rollback()
            except (sqlite3.Error, psycopg.Error):
                # It is of no more use. The pool, which would roll back otherwise, logs such an error.
                pooled.invalidate()
            pooled.close()

    def _watched(self, connection: Connection, executor: Executor) -> AbstractContextManager[None]:  # noqa: ARG002
        """Stops a statement that takes too long."""
        return nullcontext()

    @abstractmethod
    def _begin_reading(self, connection: Connection) -> None: ...

    @abstractmethod
    def _begin_writing(self, connection: Connection) -> datetime | None:
        """Gives the database server's time, if the database is not a file on this machine."""

    @abstractmethod
    def _commit(self, connection: Connection) -> None: ...


_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY = 0xFF
"""Extended result codes of SQLite keep the primary one in the low byte."""

_CORRUPT_POSTGRESQL = (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted)
# Not OperationalErrors, yet they pass: a failover leaves us on a standby for a while, a stalled session is ended.
_PASSING_POSTGRESQL = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
)


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
        translation = translate(error)
        if translation is None:
            raise
        raise translation from error


def translate(error: BaseException) -> errors.ForenoticeError | None:
    """None: a defect of ours, to be seen as it is."""
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        return translate(error.orig)
    if isinstance(error, sqlalchemy.exc.TimeoutError):
        return errors.UnavailableError("all connections to the database are in use; try again")
    code = getattr(error, "sqlite_errorcode", 0)
    passes = isinstance(error, sqlite3.OperationalError) and code & _PRIMARY != sqlite3.SQLITE_ERROR
    if code == sqlite3.SQLITE_INTERRUPT or isinstance(error, psycopg.errors.QueryCanceled):
        return errors.OverdueError(
            "a statement took too long and the database stopped it: ask for less at once, or try again"
        )
    if code & _PRIMARY in _CORRUPT or isinstance(error, _CORRUPT_POSTGRESQL):
        return errors.UnsoundError(f"the database is damaged ({brief(error)}): stop, and restore it from a backup")
    if passes or isinstance(error, _PASSING_POSTGRESQL):
        return errors.UnavailableError(f"the database cannot be used just now ({brief(error)}); try again")
    return None


def brief(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
