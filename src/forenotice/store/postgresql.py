"""The shared store: one PostgreSQL for any number of processes."""

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakSet

import psycopg
import structlog
from sqlalchemy import URL, Engine, create_engine, event

from forenotice.core import errors
from forenotice.store import rows
from forenotice.store.database import STATEMENT_SECONDS, PooledStore
from forenotice.store.queries import Connection, Executor, Flavour
from forenotice.store.transaction import CHANNEL, Reader

log = structlog.get_logger()

WRITER_LOCK = 0x6E6F74626566
"""The advisory lock that makes one writer of all processes."""

# A dead peer is noticed within half a minute, also where the network swallows everything.
_CONNECTING: Mapping[str, str | int] = {
    "application_name": "forenotice",
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
# A process that stalls within a transaction loses it before those that wait for it give up.
_LIMITS = {
    "idle_in_transaction_session_timeout": "15s",
    "lock_timeout": "20s",
    "statement_timeout": f"{STATEMENT_SECONDS:g}s",
}
_LIMIT = "SELECT set_config(%s, %s, false) WHERE current_setting(%s) = %s"
_UNSET = "0"
"""Unless the administrator has set it, for the role, the database or in the URL."""
_WAIT = "1min"
"""For the statement that waits for the lock, which has a timeout of its own."""

# Materialized, so that the time is read once we have the lock; from then on a statement has as long as a reader's.
_LOCK = """
WITH lock AS MATERIALIZED (SELECT pg_advisory_xact_lock(%s))
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
CASE current_setting('statement_timeout') WHEN %s THEN set_config('statement_timeout', %s, true) END FROM lock
"""

_LISTEN_SECONDS = 0.2
_RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)


class Watchdog:
    """Sends the server a simple query every few seconds; without an answer in time, closes all connections to it.

    The server's own timeouts do not help: a stopped process does not look at its clock."""

    def __init__(
        self, connect: Callable[[], psycopg.Connection[Any]], *, within: float = 10.0, every: float = 2.0
    ) -> None:
        self.within = within
        self.every = every
        self._connect = connect
        self._connections: WeakSet[psycopg.Connection[Any]] = WeakSet()
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, connection: psycopg.Connection[Any]) -> None:
        with self._changing:
            self._connections.add(connection)

    def start(self, stop: threading.Event) -> None:
        """Until `stop`; once is enough."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, args=(stop,), name="postgresql", daemon=True)
            self._thread.start()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self.every):
            try:
                asking = self._connect()
            except psycopg.errors.ConnectionTimeout:
                self._let_go()
                continue
            except psycopg.Error:
                # The server is away: every connection fails by itself.
                continue
            try:
                while _answers(asking, self.within):
                    if stop.wait(self.every):
                        return
                self._let_go()
            except psycopg.Error:
                pass
            finally:
                asking.close()

    def _let_go(self) -> None:
        with self._changing:
            connections = list(self._connections)
            self._connections.clear()
        if connections:
            log.error("The database hangs; connections are closed", action="store.hangs", connections=len(connections))
        for connection in connections:
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)


def _answers(connection: psycopg.Connection[Any], seconds: float) -> bool:
    server = connection.pgconn
    server.send_query(b"SELECT 1")
    server.flush()
    waiting = select.poll()
    waiting.register(server.socket, select.POLLIN)
    while waiting.poll(seconds * 1000):
        server.consume_input()
        while not server.is_busy():
            if server.get_result() is None:
                return True
    return False


def connect(url: URL) -> psycopg.Connection[Any]:
    """One of its own, outside the pool."""
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(psycopg.conninfo.make_conninfo(plain, **connecting(url)), autocommit=True)


def engine(url: URL, watch: Watchdog) -> Engine:
    made = create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=8,
        max_overflow=24,
        pool_timeout=30,
        pool_pre_ping=True,
        pool_use_lifo=True,
        connect_args=connecting(url),
    )

    @event.listens_for(made, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        watch.add(connection)
        for name, limit in _LIMITS.items():
            connection.execute(_LIMIT, (name, limit, name, _UNSET))
        connection.commit()

    return made


def connecting(url: URL) -> dict[str, str | int]:
    """How to connect, where the URL does not say."""
    return {name: value for name, value in _CONNECTING.items() if name not in url.query}


class PostgresqlStore(PooledStore):
    flavour = Flavour.POSTGRESQL

    def __init__(self, engine: Engine, url: URL, watch: Watchdog) -> None:
        super().__init__(engine)
        self._url = url
        self.watch = watch

        @event.listens_for(self._writers, "connect")
        def _allow_waiting(connection: Any, _record: object) -> None:
            name = "statement_timeout"
            connection.execute(_LIMIT, (name, _WAIT, name, _LIMITS[name]))
            connection.commit()

    def backup(self, path: Path) -> None:
        raise errors.RefusedError(
            f"forenotice does not copy a PostgreSQL database: run `pg_dump --format=custom --file={path}` instead"
        )

    def changes(self, stop: threading.Event) -> Iterator[int]:
        failures, missed = 0, False
        self.watch.start(stop)
        while not stop.is_set():
            try:
                with connect(self._url) as connection:
                    # Listening first: what is committed from here on is told.
                    connection.execute(f"LISTEN {CHANNEL}")
                    yield -1 if missed else _newest(connection)
                    failures, missed = 0, True
                    while not stop.is_set():
                        for notification in connection.notifies(timeout=_LISTEN_SECONDS):
                            yield int(notification.payload)
                        yield 0
            except psycopg.Error:
                # It may pass: a standby during a failover, for example, refuses LISTEN.
                stop.wait(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
                failures += 1

    def _begin_reading(self, connection: Connection) -> None:
        _set_mode(connection, psycopg.IsolationLevel.REPEATABLE_READ, read_only=True)

    def _begin_writing(self, connection: Connection) -> datetime:
        # Each statement sees what the writer before us has committed, as the lock came first.
        # Not `read_only=False`: a standby would refuse those very words, and not as one that is read-only for a while.
        _set_mode(connection, psycopg.IsolationLevel.READ_COMMITTED, read_only=None)
        told, _ = connection.execute(_LOCK, (WRITER_LOCK, _WAIT, _LIMITS["statement_timeout"])).fetchone()
        return rows.moment(told)

    def _commit(self, connection: Connection) -> None:
        assert isinstance(connection, psycopg.Connection)
        connection.commit()


def _set_mode(connection: Connection, isolation: psycopg.IsolationLevel, *, read_only: bool | None) -> None:
    assert isinstance(connection, psycopg.Connection)
    if connection.read_only is not read_only:
        connection.isolation_level, connection.read_only = isolation, read_only


def _newest(connection: psycopg.Connection[Any]) -> int:
    newest = Reader(Executor(connection, Flavour.POSTGRESQL)).journal.last()
    return newest[0] if newest else 0
