"""What the two stores share: pooled connections, the one writer, and errors translated at the edge."""

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime

import psycopg
from sqlalchemy import Engine, Pool

from forenotice.core import errors
from forenotice.store.contract import Reader, Transaction
from forenotice.store.errors import translated
from forenotice.store.session import Connection, Flavour, Session
from forenotice.store.transaction import SqlReader, SqlTransaction

STATEMENT_SECONDS = 10.0
"""For one statement of a reader."""

_PATIENCE_SECONDS = 30.0


class PooledStore(ABC):
    flavour: Flavour

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = threading.Lock()
        # The one writer has its own pool, so it never waits for a reader's connection.
        self._writers = engine.pool.recreate()

    @contextmanager
    def read(self) -> Iterator[Reader]:
        with translated(), self._connection(self._engine.pool) as connection:
            session = Session(connection, self.flavour, statement_seconds=STATEMENT_SECONDS)
            with self._watched(connection, session):
                self._begin_reading(connection)
                yield SqlReader(session)

    @contextmanager
    def write(self, check: Callable[[], None] = lambda: None) -> Iterator[Transaction]:
        # Threads queue here, and only the first of them at the database, which need not be fair.
        if not self._writer.acquire(timeout=_PATIENCE_SECONDS):
            raise errors.UnavailableError("another command has been writing for too long; try again")
        try:
            with translated(), self._connection(self._writers) as connection:
                session = Session(connection, self.flavour, check=check)
                database_time = self._begin_writing(connection)
                with self._watched(connection, session):
                    try:
                        yield SqlTransaction(session, database_time)
                    except (sqlite3.Error, psycopg.Error):
                        # What ended the statement.
                        check()
                        raise
                    check()
                self._commit(connection)
        finally:
            self._writer.release()

    def close(self) -> None:
        self._writers.dispose()
        self._engine.dispose()

    @contextmanager
    def _connection(self, pool: Pool) -> Iterator[Connection]:
        """A pooled connection; whatever is not committed is rolled back when it returns to the pool."""
        pooled = pool.connect()
        connection = pooled.driver_connection
        assert connection is not None
        try:
            yield connection
        finally:
            if self._is_lost(connection):
                pooled.invalidate()
            pooled.close()

    def _watched(self, connection: Connection, session: Session) -> AbstractContextManager[None]:  # noqa: ARG002
        """Stops a statement that takes too long."""
        return nullcontext()

    @abstractmethod
    def _is_lost(self, connection: Connection) -> bool:
        """Whether it is of no more use."""

    @abstractmethod
    def _begin_reading(self, connection: Connection) -> None: ...

    @abstractmethod
    def _begin_writing(self, connection: Connection) -> datetime | None:
        """Gives the database server's time, if the database is not a file on this machine."""

    @abstractmethod
    def _commit(self, connection: Connection) -> None: ...
