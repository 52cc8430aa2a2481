"""What the two stores share: pooled connections, the one writer, and errors translated at the edge."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import Engine
from sqlalchemy.pool import PoolProxiedConnection

from forenotice.core import errors
from forenotice.store.contract import Reader, Transaction
from forenotice.store.errors import translated
from forenotice.store.session import Connection, Flavour, Session
from forenotice.store.transaction import SqlReader, SqlTransaction

_PATIENCE_SECONDS = 30.0


class PooledStore(ABC):
    flavour: Flavour

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = threading.Lock()

    @contextmanager
    def read(self) -> Iterator[Reader]:
        with translated(), self._connection() as connection:
            self._begin_reading(connection)
            yield SqlReader(Session(connection, self.flavour))

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        # Threads queue here, and only the first of them at the database, which need not be fair.
        if not self._writer.acquire(timeout=_PATIENCE_SECONDS):
            raise errors.UnavailableError("another command has been writing for too long; try again")
        try:
            with translated(), self._connection() as connection:
                database_time = self._begin_writing(connection)
                yield SqlTransaction(Session(connection, self.flavour), database_time)
                self._commit(connection)
        finally:
            self._writer.release()

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """A pooled connection; whatever is not committed is rolled back when it returns to the pool."""
        pooled: PoolProxiedConnection = self._engine.raw_connection()
        connection = pooled.driver_connection
        assert connection is not None
        try:
            yield connection
        finally:
            if self._is_lost(connection):
                pooled.invalidate()
            pooled.close()

    @abstractmethod
    def _is_lost(self, connection: Connection) -> bool:
        """Whether it is of no more use."""

    @abstractmethod
    def _begin_reading(self, connection: Connection) -> None: ...

    @abstractmethod
    def _begin_writing(self, connection: Connection) -> datetime | None:
        """Gives what the database's own clock says, where that is not this machine's."""

    @abstractmethod
    def _commit(self, connection: Connection) -> None: ...
