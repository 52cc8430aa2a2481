"""The journal: in the order of commits, found by what it is about."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta

import pytest
from tests.store.samples import MINUTE, NOW, changes, entry, keep

from notbefore.core import errors
from notbefore.store.contract import Reader, Store
from notbefore.store.opening import open_store


def test_entries_come_back_in_order(store: Store) -> None:
    full = entry(
        "event.approved",
        by="vm:web-0",
        scope="group:web",
        event="E1",
        operation="o1",
        host="a",
        vm="web-0",
        data={"seconds": 1.5, "names": ["a"], "nested": {"none": None}, "text": "Ünï"},
    )
    assert keep(store, entry("one"), full) == 2
    assert keep(store, entry("three", at=NOW + MINUTE)) == 3
    with store.read() as reader:
        assert reader.journal() == [(1, entry("one")), (2, full), (3, entry("three", at=NOW + MINUTE))]
        assert reader.last_entry() == (3, NOW + MINUTE)


def test_data_becomes_plain_json(store: Store) -> None:
    keep(store, entry("one", data={"at": NOW, "for": timedelta(seconds=90), "names": ("a", "b")}))
    with store.read() as reader:
        [(_, kept)] = reader.journal()
    assert kept.data == {"at": "2030-05-17T08:30:00.123457Z", "for": "PT90S", "names": ["a", "b"]}


def test_an_empty_journal(store: Store) -> None:
    assert keep(store) == 0
    with store.read() as reader:
        assert reader.last_entry() is None
        assert reader.journal() == []


ENTRIES = (
    entry("event.scheduled", scope="group:web", event="E1", operation="o1", host="a", by="alice"),
    entry("event.approved", scope="group:web", event="E1", operation="o1", vm="web-0", at=NOW + MINUTE),
    entry("eventual", scope="vm:db", event="E2", operation="o2", host="b", at=NOW + 2 * MINUTE),
    entry("vm.added", scope="vm:db", vm="db", host="a", by="alice", at=NOW + 3 * MINUTE),
)


@pytest.mark.parametrize(
    ("read", "positions"),
    [
        (lambda reader: reader.journal(after=2), [3, 4]),
        (lambda reader: reader.journal(before=3), [1, 2]),
        (lambda reader: reader.journal(after=1, before=4, limit=1), [2]),
        (lambda reader: reader.journal(newest_first=True, limit=3), [4, 3, 2]),
        (lambda reader: reader.journal(newest_first=True, before=3), [2, 1]),
        (lambda reader: reader.journal(action="event.approved"), [2]),
        (lambda reader: reader.journal(action="event."), [1, 2]),
        (lambda reader: reader.journal(action="event"), []),
        (lambda reader: reader.journal(scope="vm:db"), [3, 4]),
        (lambda reader: reader.journal(event="e1"), [1, 2]),
        (lambda reader: reader.journal(operation="o2"), [3]),
        (lambda reader: reader.journal(host="a"), [1, 4]),
        (lambda reader: reader.journal(vm="web-0"), [2]),
        (lambda reader: reader.journal(by="alice", host="a", scope="vm:db"), [4]),
        (lambda reader: reader.journal(since=NOW + MINUTE, until=NOW + 3 * MINUTE), [2, 3]),
    ],
)
def test_filters(store: Store, read: Callable[[Reader], list[tuple[int, object]]], positions: list[int]) -> None:
    keep(store, *ENTRIES)
    with store.read() as reader:
        assert [position for position, _ in read(reader)] == positions


def test_what_is_rolled_back_leaves_no_gap(store: Store) -> None:
    keep(store, entry("one"))
    with suppress(errors.ConflictError), store.write() as transaction:
        transaction.apply(changes(entry("two")))
        raise errors.ConflictError
    assert keep(store, entry("three")) == 2
    with store.read() as reader:
        assert [each.action for _, each in reader.journal()] == ["one", "three"]


WRITERS, ROUNDS = 4, 15


def test_positions_follow_the_order_of_commits(url: str) -> None:
    """Whoever has seen position N has seen all before it, with writers in two stores and a reader beside them."""
    stores = [open_store(url, migrate=True), open_store(url, migrate=False)]
    done = threading.Event()

    def write(writer: int) -> list[int]:
        store = stores[writer % 2]
        return [keep(store, entry(f"{writer}.{turn}"), entry(f"{writer}.{turn}.b")) for turn in range(ROUNDS)]

    def follow() -> list[str]:
        seen: list[str] = []
        while True:
            last = done.is_set()
            with stores[0].read() as reader:
                page = reader.journal(after=len(seen), limit=1000)
            assert [position for position, _ in page] == list(range(len(seen) + 1, len(seen) + len(page) + 1))
            seen += [each.action for _, each in page]
            if last:
                return seen

    try:
        with ThreadPoolExecutor(WRITERS + 1) as pool:
            following = pool.submit(follow)
            writing = [pool.submit(write, writer) for writer in range(WRITERS)]
            wait(writing)
            done.set()
            ends = sorted(position for each in writing for position in each.result())
            seen = following.result()
        assert ends == list(range(2, 2 * WRITERS * ROUNDS + 1, 2))
        assert sorted(seen) == sorted(
            name for w in range(WRITERS) for turn in range(ROUNDS) for name in (f"{w}.{turn}", f"{w}.{turn}.b")
        )
        for writer in range(WRITERS):
            own = [action for action in seen if action.startswith(f"{writer}.")]
            assert own == [name for turn in range(ROUNDS) for name in (f"{writer}.{turn}", f"{writer}.{turn}.b")]
    finally:
        for store in stores:
            store.close()
