"""One writer, many readers, all or nothing; a database that is away, full or damaged; other processes' commits."""

import math
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import monotonic

import psycopg
import pytest
import sqlalchemy.exc
from tests.postgres import PostgresServer
from tests.store.samples import changes, entry, executor_of, host, hosts_of, keep, scope, vm

from forenotice.core import errors
from forenotice.store import database
from forenotice.store.database import Store, translated
from forenotice.store.opener import open_store
from forenotice.store.postgresql import WRITER_LOCK, PostgresqlStore
from forenotice.store.queries import Executor, Flavour

PATIENCE = 60
CONNECTIONS = 32
"""That readers share."""


def test_an_exception_takes_everything_back(store: Store) -> None:
    def work() -> None:
        with store.write() as transaction:
            transaction.apply(changes(host("a"), scope("vm:x"), vm("x", "a", "vm:x"), entry("one")))
            transaction.meta.put("key", "value")
            assert transaction.worlds.load(hosts=["a"]).vms
            raise errors.ConflictError("no")

    with pytest.raises(errors.ConflictError, match="no"):
        work()
    with store.read() as reader:
        assert reader.worlds.fleet().vms == {}
        assert reader.meta.get("key") is None
        assert reader.journal.last() is None
    keep(store, host("a"))


def test_a_reader_sees_one_moment_and_never_waits(store: Store) -> None:
    keep(store, host("a"))
    with store.read() as reader:
        assert reader.hosts.page(None, 9) == [(host("a"), 0)]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(keep, store, host("b")).result(PATIENCE)
        assert reader.hosts.page(None, 9) == [(host("a"), 0)]
        assert reader.worlds.fleet().hosts.keys() == {"a"}
    with store.write() as transaction:
        transaction.apply(changes(host("c")))
        with store.read() as reader:
            assert reader.worlds.fleet().hosts.keys() == {"a", "b"}


def test_a_reader_cannot_be_told_to_write(postgres_store: Store) -> None:
    with pytest.raises(errors.UnavailableError, match="read-only"), postgres_store.read() as reader:
        reader.meta.put("key", "value")


def test_readers_that_hold_every_connection_leave_the_writer_its_own(store: Store) -> None:
    with ExitStack() as held:
        for _ in range(CONNECTIONS):
            held.enter_context(store.read())
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(keep, store, entry("approved")).result(PATIENCE) == 1


class Over:
    """Ends what it is asked about at the time that it is given, or at a number of questions."""

    def __init__(self, *, at: float = math.inf, questions: float = math.inf) -> None:
        self._at, self._left = at, questions

    def __call__(self) -> None:
        self._left -= 1
        if self._left < 0 or monotonic() > self._at:
            raise errors.OverdueError("enough")


@pytest.mark.parametrize("questions", [0, 1, 2])
def test_a_writer_is_asked_at_every_statement_and_before_the_commit(store: Store, questions: int) -> None:
    def work() -> None:
        with store.write(Over(questions=questions)) as transaction:
            transaction.meta.put("key", "value")
            transaction.meta.put("key", "other")

    with pytest.raises(errors.OverdueError, match="enough"):
        work()
    with store.read() as reader:
        assert reader.meta.get("key") is None
    keep(store, host("a"))


ENDLESS = {
    Flavour.SQLITE: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
    Flavour.POSTGRESQL: "SELECT pg_sleep(30)",
}


def run_endlessly(executor: Executor) -> None:
    executor.value(ENDLESS[executor.flavour])


def test_a_writers_statement_is_ended_while_it_runs(sqlite_store: Store) -> None:
    keep(sqlite_store, host("a"))

    def work() -> None:
        with sqlite_store.write(Over(at=monotonic() + 0.2)) as writing:
            writing.meta.put("key", "value")
            run_endlessly(executor_of(writing))

    with pytest.raises(errors.OverdueError, match="enough"):
        work()
    with sqlite_store.write() as writing:
        assert writing.meta.get("key") is None


def test_a_readers_statement_is_ended_while_it_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "STATEMENT_SECONDS", 0.2)
    options = "&options=-c%20statement_timeout%3D200ms" if url.startswith("postgresql") else ""
    store = open_store(url + options, migrate=False)
    keep(store, host("a"))
    for _ in range(3):
        with pytest.raises(errors.OverdueError, match="ask for less at once"), store.read() as reader:
            run_endlessly(executor_of(reader))
        with store.read() as reader:
            assert reader.worlds.fleet().hosts.keys() == {"a"}
    store.close()


def test_how_long_a_statement_may_take_on_postgresql(postgres_store: Store) -> None:
    with postgres_store.read() as reader, postgres_store.write() as transaction:
        limits = [
            executor_of(each)._connection.execute("SHOW statement_timeout", ()).fetchone()
            for each in (reader, transaction)
        ]
    assert limits == [("10s",), ("10s",)]


@contextmanager
def listening(store: Store) -> Iterator["queue.Queue[int]"]:
    received: queue.Queue[int] = queue.Queue()
    stop = threading.Event()

    def listen() -> None:
        for number, position in enumerate(store.changes(stop)):
            if position or not number:
                received.put(position)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield received
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_commits_of_another_process_are_received_soon(
    postgres_store: Store, migrated_postgres_url: str, sqlite_store: Store
) -> None:
    def fail() -> None:
        with postgres_store.write() as transaction:
            transaction.apply(changes(entry("never")))
            raise LookupError

    assert list(sqlite_store.changes(threading.Event())) == [], "no other process serves it"
    with closing(open_store(migrated_postgres_url, migrate=False)) as other:
        keep(other, entry("before"))
        with listening(postgres_store) as received:
            assert received.get(timeout=PATIENCE) == 1
            began = time.monotonic()
            keep(other, entry("two"), entry("three"))
            assert received.get(timeout=PATIENCE) == 3
            assert time.monotonic() - began < 10
            # Neither is there anything to receive of what is rolled back, or not in the journal.
            with pytest.raises(LookupError):
                fail()
            keep(other, host("a"))
            keep(postgres_store, entry("four"))
            assert received.get(timeout=PATIENCE) == 4
            with other.write() as transaction:
                transaction.raise_epoch(7)
            assert received.get(timeout=PATIENCE) == -1
            assert received.empty()


def test_listening_survives_a_restart_of_the_server(postgres_store: Store, postgres_server: PostgresServer) -> None:
    with listening(postgres_store) as received:
        assert received.get(timeout=PATIENCE) == 0
        with stopped(postgres_server):
            """All connections are lost."""
        assert received.get(timeout=PATIENCE) == -1
        keep(postgres_store, entry("one"))
        assert received.get(timeout=PATIENCE) == 1


@contextmanager
def stopped(server: PostgresServer) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


def test_a_lost_server(postgres_store: Store, postgres_server: PostgresServer) -> None:
    keep(postgres_store, host("a"))
    with stopped(postgres_server):
        for _ in range(2):
            with pytest.raises(errors.UnavailableError, match="try again"):
                keep(postgres_store, host("b"))
            with pytest.raises(errors.UnavailableError), postgres_store.read() as reader:
                reader.worlds.fleet()
    keep(postgres_store, host("c"))
    with stopped(postgres_server):
        """Nobody asks meanwhile."""
    keep(postgres_store, host("d"))
    assert hosts_of(postgres_store) == {"a", "c", "d"}


def test_a_server_lost_within_a_transaction(postgres_store: Store, postgres_server: PostgresServer) -> None:
    def work() -> None:
        with postgres_store.write() as transaction:
            transaction.meta.put("key", "value")
            postgres_server.stop()
            transaction.meta.put("key", "other")

    try:
        with pytest.raises(errors.UnavailableError):
            work()
    finally:
        postgres_server.start()
    with postgres_store.read() as reader:
        assert reader.meta.get("key") is None


def test_a_server_lost_after_the_last_statement(
    postgres_store: Store, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as lost, postgres_store.read() as reader:
        assert reader.meta.get("key") is None
        lost.enter_context(stopped(postgres_server))
    assert caplog.records == []
    assert hosts_of(postgres_store) == set()


def test_a_server_that_is_not_there(postgres_url: str, postgres_server: PostgresServer) -> None:
    with stopped(postgres_server), pytest.raises(errors.UnavailableError, match="cannot open the database postgresql"):
        open_store(postgres_url, migrate=False)


def test_a_server_that_hangs(migrated_postgres_url: str, postgres_server: PostgresServer) -> None:
    store = open_store(migrated_postgres_url + "&connect_timeout=1", migrate=False)
    assert isinstance(store, PostgresqlStore)
    store.watch.within = store.watch.every = 0.2
    keep(store, host("a"))
    stop = threading.Event()
    follower = threading.Thread(target=lambda: list(store.changes(stop)))
    follower.start()
    try:
        with postgres_server.hanging(), pytest.raises(errors.UnavailableError, match="try again"):
            keep(store, host("b"))
        keep(store, host("c"))
    finally:
        stop.set()
        follower.join(60)
    assert hosts_of(store) == {"a", "c"}
    store.close()


def test_a_writer_elsewhere_that_does_not_end(migrated_postgres_url: str) -> None:
    store = open_store(migrated_postgres_url + "&options=-c%20lock_timeout%3D200ms", migrate=False)
    with psycopg.connect(migrated_postgres_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (WRITER_LOCK,))
        with pytest.raises(errors.UnavailableError, match="lock timeout"), store.write() as transaction:
            transaction.meta.put("never", "reached")
    keep(store, host("a"))
    store.close()


def test_a_full_disk(sqlite_store: Store, sqlite_path: Path) -> None:
    """The limit on pages stands in for the disk: SQLite says the same about both."""
    keep(sqlite_store, entry("before"))
    with sqlite_store.write() as transaction:
        connection = executor_of(transaction)._connection
        connection.execute("PRAGMA max_page_count = 60", ()).fetchone()
    with pytest.raises(errors.UnavailableError, match="full"):
        keep(sqlite_store, *(entry("x" * 1000) for _ in range(500)))
    keep(sqlite_store, entry("small"))
    connection.execute("PRAGMA max_page_count = 1000000", ()).fetchone()
    keep(sqlite_store, *(entry("y" * 1000) for _ in range(500)))
    with sqlite_store.read() as reader:
        assert reader.journal.last() is not None
        assert [each.action for _, each in reader.journal.page(limit=2)] == ["before", "small"]
        assert len(reader.journal.page(limit=1000)) == 502


def test_a_file_that_another_process_keeps_locked(sqlite_path: Path) -> None:
    store = open_store(f"sqlite:///{sqlite_path}?timeout=0.2", migrate=False)
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.UnavailableError, match="locked"):
            keep(store, host("a"))
        assert hosts_of(store) == set()
    keep(store, host("a"))
    store.close()


def test_damage_that_is_met_later(sqlite_store: Store, sqlite_path: Path) -> None:
    keep(sqlite_store, *(host(f"host-{number:04}") for number in range(2000)))
    with closing(sqlite3.connect(sqlite_path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
    with sqlite_path.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(page_size)
        file.write(b"\xff" * (size - page_size))
    with pytest.raises(errors.UnsoundError, match=r"damaged.*backup"), sqlite_store.read() as reader:
        reader.worlds.fleet()


@pytest.mark.parametrize("gone", ["forenotice.db", "forenotice.db-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_vanishes_is_not_written_to(
    sqlite_store: Store, sqlite_path: Path, gone: str, replaced: bool
) -> None:
    keep(sqlite_store, host("a"))
    with sqlite_store.read():
        pass
    sqlite_path.with_name(gone).rename(sqlite_path.with_name("taken"))
    if replaced:
        sqlite_path.with_name(gone).touch()
    for _ in range(2):
        with pytest.raises(errors.UnsoundError, match=rf"{gone} was removed, replaced or cut off while.*restore"):
            keep(sqlite_store, host("b"))
    with sqlite_store.read() as reader:
        assert "a" in reader.worlds.fleet().hosts
        # All other connections would be new ones.
        with pytest.raises(errors.UnsoundError, match="removed, replaced"), sqlite_store.read():
            pass
    assert sqlite_path.with_name(gone).exists() is replaced
    sqlite_path.with_name("taken").replace(sqlite_path.with_name(gone))
    with pytest.raises(errors.UnsoundError, match="stop the service"):
        keep(sqlite_store, host("c"))
    assert hosts_in(sqlite_path) == {"a"}


def overwrite(file: Path) -> None:
    """With a backup that is no smaller, without making another file."""
    file.write_bytes((file.parent / "backup.db").read_bytes())


@pytest.mark.parametrize(
    ("name", "spoil", "remedy"),
    [
        ("forenotice.db", lambda file: os.truncate(file, 0), "restore"),
        ("forenotice.db", lambda file: os.truncate(file, 8192), "restore"),
        ("forenotice.db", overwrite, "restore"),
        ("forenotice.db-shm", Path.unlink, "restart the service"),
    ],
)
def test_a_file_that_is_spoilt_is_not_written_to(
    sqlite_store: Store, sqlite_path: Path, name: str, spoil: Callable[[Path], None], remedy: str
) -> None:
    keep(sqlite_store, host("a"))
    sqlite_store.checkpoint()
    sqlite_store.backup(sqlite_path.with_name("backup.db"))
    keep(sqlite_store, host("b"))

    def keep_and_spoil() -> None:
        with sqlite_store.write() as transaction:
            transaction.apply(changes(host("c")))
            spoil(sqlite_path.with_name(name))

    with pytest.raises(errors.UnsoundError, match=f"{name} was removed, replaced or cut off .*{remedy}"):
        keep_and_spoil()
    with pytest.raises((errors.UnsoundError, errors.UnavailableError)):
        keep(sqlite_store, host("d"))


def test_a_file_that_sqlite_itself_makes_smaller_is_still_written_to(sqlite_store: Store, sqlite_path: Path) -> None:
    keep(sqlite_store, *(host(f"host-{number:04}") for number in range(2000)))
    sqlite_store.checkpoint()
    keep(sqlite_store, host("a"))
    before = sqlite_path.stat().st_size
    with closing(sqlite3.connect(sqlite_path)) as connection:
        connection.execute("DELETE FROM hosts")
        connection.commit()
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert sqlite_path.stat().st_size < before
    keep(sqlite_store, host("b"))
    assert hosts_of(sqlite_store) == {"b"}


def test_a_file_that_vanishes_within_a_commit(sqlite_store: Store, sqlite_path: Path) -> None:
    """Whether that is kept depends on whether the file comes back: until a restart nobody may act on it."""
    taken = sqlite_path.with_name("taken")

    def take(statement: str) -> None:
        if statement == "COMMIT":
            sqlite_path.rename(taken)

    with sqlite_store.write() as transaction:
        connection = executor_of(transaction)._connection
    assert isinstance(connection, sqlite3.Connection)
    connection.set_trace_callback(take)
    with pytest.raises(errors.UnsoundError, match="not known whether"):
        keep(sqlite_store, host("a"))
    taken.rename(sqlite_path)
    for _ in range(2):
        with pytest.raises(errors.UnsoundError, match="stop the service"):
            keep(sqlite_store, host("b"))
    assert hosts_in(sqlite_path) == {"a"}


def hosts_in(path: Path) -> set[str]:
    """As a process sees them that opens the file now."""
    with closing(open_store(f"sqlite:///{path}", migrate=False)) as store:
        return hosts_of(store)


def sqlite_error(kind: type[sqlite3.Error], code: int) -> sqlite3.Error:
    error = kind("as SQLite says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (sqlite_error(sqlite3.OperationalError, sqlite3.SQLITE_FULL), errors.UnavailableError),
        (sqlite_error(sqlite3.OperationalError, sqlite3.SQLITE_IOERR_FSYNC), errors.UnavailableError),
        (sqlite_error(sqlite3.DatabaseError, sqlite3.SQLITE_CORRUPT_INDEX), errors.UnsoundError),
        (psycopg.errors.DataCorrupted(), errors.UnsoundError),
        (psycopg.errors.ReadOnlySqlTransaction(), errors.UnavailableError),
        (psycopg.errors.DiskFull(), errors.UnavailableError),
        (sqlalchemy.exc.TimeoutError(), errors.UnavailableError),
        (
            sqlalchemy.exc.DBAPIError("SELECT 1", {}, psycopg.OperationalError("gone\nfurther lines")),
            errors.UnavailableError,
        ),
        # Defects of ours are seen as they are.
        (sqlite_error(sqlite3.OperationalError, sqlite3.SQLITE_ERROR), sqlite3.OperationalError),
        (psycopg.errors.UndefinedTable(), psycopg.errors.UndefinedTable),
        (sqlite3.IntegrityError(), sqlite3.IntegrityError),
    ],
)
def test_errors_by_who_must_act(error: Exception, told: type[Exception]) -> None:
    with pytest.raises(told) as caught, translated():
        raise error
    assert "further lines" not in str(caught.value)
