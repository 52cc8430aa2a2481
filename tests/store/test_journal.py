"""The journal: in the order of commits, found by what it is about."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.store.samples import MINUTE, NOW, changes, entry, event, executor_of, keep, operation, positions

from forenotice.core import errors
from forenotice.core.selectors import of_scopes
from forenotice.store import journal
from forenotice.store.database import Store
from forenotice.store.journal import JournalFilter
from forenotice.store.opener import open_store
from forenotice.store.transaction import Transaction


def test_entries_come_back_in_order(tx: Transaction) -> None:
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
    assert (tx.apply(changes()), tx.journal.last(), tx.journal.page()) == (0, None, [])
    assert tx.apply(changes(entry("one"), full)) == 2
    assert tx.apply(changes(entry("three", at=NOW + MINUTE))) == 3
    assert tx.journal.page() == [(1, entry("one")), (2, full), (3, entry("three", at=NOW + MINUTE))]
    assert tx.journal.last() == (3, NOW + MINUTE)
    tx.apply(changes(entry("four", data={"at": NOW, "for": timedelta(seconds=90), "names": ("a", "b")})))
    [(_, kept)] = tx.journal.page(after=3)
    assert kept.data == {"at": "2030-05-17T08:30:00.123457Z", "for": "PT90S", "names": ["a", "b"]}


WEB = ("web-0", "web-1")
THINGS = (
    operation("o1", host="a", vms=WEB),
    event("E1", "o1", "group:web", resources=WEB),
    operation("o2", host="b", vms=("db", "web-1"), rollout="r1"),
    event("E2", "o2", "vm:db", resources=("db",)),
)
ENTRIES = (
    entry("event.scheduled", scope="group:web", event="E1", operation="o1", host="a", by="alice"),
    entry("event.approved", scope="group:web", event="E1", operation="o1", vm="web-0", by="ops:ann", at=NOW + MINUTE),
    entry("eventual", scope="vm:db", event="E2", operation="o2", host="b", at=NOW + 2 * MINUTE),
    entry("vm.added", scope="vm:db", vm="db", host="a", by="alice", at=NOW + 3 * MINUTE),
    entry("operation.started", operation="o2", host="b", rollout="r1", at=NOW + 4 * MINUTE),
    entry("vm.moved", scope="vm:db", operation="o2", vm="db", host="a", rollout="r1", at=NOW + 4 * MINUTE),
)


FOUND: list[tuple[dict[str, Any], list[int]]] = [
    ({"after": 4}, [5, 6]),
    ({"before": 3}, [1, 2]),
    ({"after": 1, "before": 4, "limit": 1}, [2]),
    ({"newest_first": True, "limit": 3}, [6, 5, 4]),
    ({"newest_first": True, "before": 3}, [2, 1]),
    ({"action": "event.approved"}, [2]),
    ({"action": "event."}, [1, 2]),
    ({"action": "event"}, []),
    ({"scope": "vm:db"}, [3, 4, 6]),
    ({"event": "e1"}, [1, 2]),
    ({"operation": "o2"}, [3, 5, 6]),
    ({"operation": "o2", "host": "b", "newest_first": True, "limit": 2}, [5, 3]),
    ({"host": "a"}, [1, 4, 6]),
    ({"rollout": "r1", "newest_first": True}, [6, 5, 3]),
    ({"rollout": "r1", "limit": 2, "after": 2}, [3, 5]),
    ({"rollout": "r1", "vm": "web-1"}, [5]),
    ({"rollout": "r1", "seen": of_scopes("vm:db")}, [3, 6]),
    ({"vm": "web-0"}, [1, 2]),
    ({"vm": "web-1"}, [1, 2, 5]),
    ({"vm": "db"}, [3, 4, 5, 6]),
    ({"vm": "db", "newest_first": True, "before": 6, "limit": 2}, [5, 4]),
    ({"vm": "db", "operation": "o2", "after": 3, "limit": 2}, [5, 6]),
    ({"vm": "web-1", "operation": "o2", "newest_first": True, "limit": 1}, [5]),
    ({"by": "alice", "host": "a", "scope": "vm:db"}, [4]),
    ({"since": NOW + MINUTE, "until": NOW + 3 * MINUTE}, [2, 3]),
    ({"since": NOW + 4 * MINUTE, "after": 5}, [6]),
    ({"until": NOW + 4 * MINUTE, "vm": "web-1", "before": 3}, [1, 2]),
    ({"since": NOW + 5 * MINUTE}, []),
    ({"until": NOW}, []),
    ({"vm": "db", "seen": of_scopes("vm:*")}, [3, 4, 6]),
    ({"seen": of_scopes("w*")}, [1, 2]),
    ({"by": "ops", "seen": of_scopes("w*")}, [2]),
    ({"by": "alice", "seen": of_scopes("web")}, [1]),
    ({"by": "op", "seen": of_scopes("w*")}, []),
    ({"by": "ops:ann", "seen": of_scopes("w*")}, [2]),
    ({"by": "ops"}, []),
]


def test_filters(tx: Transaction) -> None:
    tx.apply(changes(*THINGS, *ENTRIES))
    for wanted, found in FOUND:
        assert positions(tx, **wanted) == found, wanted


def test_a_vm_is_found_however_far_back(tx: Transaction, monkeypatch: pytest.MonkeyPatch) -> None:
    far = (1, 2, 3, 7, 30, 31)
    tx.apply(changes(*(entry(str(number), vm="db" if number in far else "web-0") for number in range(1, 41))))
    for window in (1, 2, 3, 7, 100):
        monkeypatch.setattr(journal, "_WINDOW", window)
        assert positions(tx, vm="db") == [1, 2, 3, 7, 30, 31]
        assert positions(tx, vm="db", newest_first=True) == [31, 30, 7, 3, 2, 1]
        assert positions(tx, vm="db", newest_first=True, before=31, limit=3) == [30, 7, 3]
        assert positions(tx, vm="db", after=2, limit=3) == [3, 7, 30]


def test_which_vms_an_operation_has_named_is_not_forgotten(tx: Transaction) -> None:
    tx.apply(changes(*THINGS, entry("made")))
    later = entry("operation.changed", operation="o1", at=NOW + MINUTE)
    tx.apply(changes(replace(THINGS[0], vms=("web-0",)), replace(THINGS[1], resources=("web-0",)), later))
    assert [each.action for _, each in tx.journal.page(JournalFilter(vm="web-1"))] == ["operation.changed"]
    rows = executor_of(tx).rows("SELECT vm, operation, event FROM vm_operations ORDER BY vm, operation")
    named = [("db", "o2", "E2"), ("web-0", "o1", "E1"), ("web-1", "o1", "E1"), ("web-1", "o2", None)]
    assert list(rows) == named


def test_a_moment_is_found_whatever_is_missing_before_it(tx: Transaction) -> None:
    tx.apply(changes(*(entry(str(number), at=NOW + number // 2 * MINUTE) for number in range(20))))
    executor_of(tx).run("DELETE FROM journal WHERE position < 4 OR position BETWEEN 9 AND 13")
    everything = tx.journal.page()
    for seconds in range(-60, 12 * 60, 30):
        moment = NOW + timedelta(seconds=seconds)
        assert positions(tx, since=moment) == [position for position, each in everything if each.at >= moment]
        assert positions(tx, until=moment) == [position for position, each in everything if each.at < moment]


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_are_stable_while_others_write(tx: Transaction, newest_first: bool) -> None:
    tx.apply(changes(*(entry(str(number), host="a" if number % 3 else "b") for number in range(13))))
    before = positions(tx, host="a", newest_first=newest_first)
    found: list[int] = []
    place: dict[str, Any] = {}
    while (page := positions(tx, host="a", limit=3, newest_first=newest_first, **place)) and page[0] <= 13:
        found += page
        place = {"before" if newest_first else "after": page[-1]}
        tx.apply(changes(entry("new", host="b"), *([entry("new", host="a")] if newest_first else [])))
    assert found == before
    assert len(found) == 8


def test_what_is_rolled_back_leaves_no_gap(store: Store) -> None:
    keep(store, entry("one"))
    with suppress(errors.ConflictError), store.write() as transaction:
        transaction.apply(changes(entry("two")))
        raise errors.ConflictError
    assert keep(store, entry("three")) == 2
    with store.read() as reader:
        assert [each.action for _, each in reader.journal.page()] == ["one", "three"]


WRITERS, ROUNDS = 4, 15


def test_positions_follow_the_order_of_commits(url: str) -> None:
    """A reader that has seen position N has seen all before it, with writers in two stores beside it."""
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
                page = reader.journal.page(after=len(seen), limit=1000)
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
        assert len(seen) == 2 * WRITERS * ROUNDS
        for writer in range(WRITERS):
            own = [action for action in seen if action.startswith(f"{writer}.")]
            assert own == [name for turn in range(ROUNDS) for name in (f"{writer}.{turn}", f"{writer}.{turn}.b")]
    finally:
        for store in stores:
            store.close()
