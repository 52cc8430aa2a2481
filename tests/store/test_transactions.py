"""One writer, many readers, all or nothing."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic

import pytest
from tests.store.samples import MINUTE, NOW, changes, entry, executor_of, host, keep, operation, scope, vm

from forenotice.core import errors
from forenotice.store import database
from forenotice.store.database import Store
from forenotice.store.opener import open_store
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


def test_writers_wait_for_each_other(url: str) -> None:
    """What one has read is still true when it commits, in one store and in two."""
    stores = [open_store(url, migrate=False), open_store(url, migrate=False)]

    def count(store: Store) -> None:
        for _ in range(20):
            with store.write() as transaction:
                transaction.meta.put("count", str(int(transaction.meta.get("count") or 0) + 1))

    try:
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(count, stores[number % 2]) for number in range(4)]:
                future.result(PATIENCE)
        with stores[0].read() as reader:
            assert reader.meta.get("count") == "80"
    finally:
        for store in stores:
            store.close()


def test_due_work_is_shared_and_done_once(url: str) -> None:
    stores = {"one": open_store(url, migrate=False), "two": open_store(url, migrate=False)}
    keep(stores["one"], *(operation(f"o-{number:02}", due_at=NOW) for number in range(40)))
    meet = threading.Barrier(2)

    def work(process: str) -> list[str]:
        mine: list[str] = []
        meet.wait(PATIENCE)
        while True:
            with stores[process].write() as transaction:
                due = transaction.operations.due(NOW, 3)
                claims = [operation(name, due_at=NOW, claimed_by=process, claimed_until=NOW + MINUTE) for name in due]
                transaction.apply(changes(*claims))
            if not due:
                return mine
            mine += due

    try:
        with ThreadPoolExecutor(2) as pool:
            shares = [each.result(PATIENCE) for each in [pool.submit(work, process) for process in stores]]
        assert sorted(shares[0] + shares[1]) == [f"o-{number:02}" for number in range(40)]
    finally:
        for store in stores.values():
            store.close()


def test_what_is_committed_is_there_after_opening_again(url: str) -> None:
    first = open_store(url, migrate=False)
    keep(first, host("a"), entry("host.added"))
    first.close()
    again = open_store(url, migrate=False)
    with again.read() as reader:
        assert reader.worlds.fleet().hosts == {"a": host("a")}
        assert reader.journal.last() == (1, NOW)
    again.close()


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
