"""One process hears of another's commits."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.postgres import PostgresServer
from tests.store.samples import changes, entry, host, keep

from forenotice.store.database import Store
from forenotice.store.opener import open_store

PATIENCE = 60


@contextmanager
def listening(store: Store) -> Iterator["queue.Queue[int]"]:
    heard: queue.Queue[int] = queue.Queue()
    stop = threading.Event()

    def listen() -> None:
        for number, position in enumerate(store.changes(stop)):
            if position or not number:
                heard.put(position)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield heard
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_commits_of_another_process_are_heard_soon(postgres_store: Store, migrated_postgres_url: str) -> None:
    other = open_store(migrated_postgres_url, migrate=False)
    keep(other, entry("before"))
    with listening(postgres_store) as heard:
        assert heard.get(timeout=PATIENCE) == 1
        began = time.monotonic()
        keep(other, entry("two"), entry("three"))
        assert heard.get(timeout=PATIENCE) == 3
        assert time.monotonic() - began < 10
        keep(postgres_store, entry("four"))
        assert heard.get(timeout=PATIENCE) == 4
    other.close()


def test_what_is_not_committed_or_not_journalled_is_not_heard(postgres_store: Store) -> None:
    def fail() -> None:
        with postgres_store.write() as transaction:
            transaction.apply(changes(entry("never")))
            raise LookupError

    with listening(postgres_store) as heard:
        assert heard.get(timeout=PATIENCE) == 0
        with pytest.raises(LookupError):
            fail()
        keep(postgres_store, host("a"))
        keep(postgres_store, entry("one"))
        assert heard.get(timeout=PATIENCE) == 1
        assert heard.empty()


def test_listening_survives_a_restart_of_the_server(postgres_store: Store, postgres_server: PostgresServer) -> None:
    with listening(postgres_store) as heard:
        assert heard.get(timeout=PATIENCE) == 0
        postgres_server.stop()
        postgres_server.start()
        assert heard.get(timeout=PATIENCE) == -1
        keep(postgres_store, entry("one"))
        assert heard.get(timeout=PATIENCE) == 1


def test_sqlite_is_alone(sqlite_store: Store) -> None:
    assert list(sqlite_store.changes(threading.Event())) == []


def test_an_epoch_makes_others_reload(postgres_store: Store) -> None:
    with listening(postgres_store) as heard:
        assert heard.get(timeout=PATIENCE) == 0
        with postgres_store.write() as transaction:
            transaction.raise_epoch(7)
        assert heard.get(timeout=PATIENCE) == -1
