"""What was answered before, and single values."""

from tests.store.samples import MINUTE, NOW

from forenotice.store.database import Store
from forenotice.store.idempotency import Remembered


def test_recalled_per_token_and_key(store: Store) -> None:
    with store.write() as transaction:
        transaction.remember("alice", "k", "d1", 200, b"\x00{}\xff", NOW)
        transaction.remember("bob", "k", "d2", 409, b"", NOW)
    with store.read() as reader:
        assert reader.recall("alice", "k", NOW) == Remembered(digest="d1", status=200, result=b"\x00{}\xff")
        assert reader.recall("bob", "k", NOW - MINUTE) == Remembered(digest="d2", status=409, result=b"")
        assert reader.recall("alice", "other", NOW) is None
        assert reader.recall("alice", "k", NOW + MINUTE) is None


def test_remembering_again_replaces(store: Store) -> None:
    with store.write() as transaction:
        transaction.remember("alice", "k", "d1", 200, b"old", NOW)
        transaction.remember("alice", "k", "d2", 201, b"new", NOW + MINUTE)
        assert transaction.recall("alice", "k", NOW + MINUTE) == Remembered(digest="d2", status=201, result=b"new")


def test_forgetting(store: Store) -> None:
    with store.write() as transaction:
        transaction.remember("alice", "old", "d", 200, b"", NOW)
        transaction.remember("alice", "new", "d", 200, b"", NOW + MINUTE)
        transaction.forget_before(NOW + MINUTE)
    with store.read() as reader:
        assert reader.recall("alice", "old", NOW) is None
        assert reader.recall("alice", "new", NOW) is not None


def test_meta(store: Store) -> None:
    with store.write() as transaction:
        assert transaction.meta("alive") is None
        transaction.put_meta("alive", "one")
        transaction.put_meta("alive", "two")
    with store.read() as reader:
        assert reader.meta("alive") == "two"
