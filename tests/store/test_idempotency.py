"""Responses that were stored, and single values."""

from dataclasses import replace

from tests.store.samples import MINUTE, NOW

from forenotice.store.database import Store
from forenotice.store.tokens import StoredResponse

FIRST = StoredResponse(token="alice", key="k", digest="d1", status=200, result=b"\x00{}\xff", at=NOW)


def test_stored_by_token_and_key(store: Store) -> None:
    other = replace(FIRST, token="bob", status=409)
    later = replace(FIRST, digest="d2", result=b"new", at=NOW + MINUTE)
    with store.write() as transaction:
        transaction.responses.put(FIRST)
        transaction.responses.put(other)
    with store.write() as transaction:
        assert transaction.responses.find("alice", "k", NOW) == FIRST
        assert transaction.responses.find("bob", "k", NOW - MINUTE) == other
        assert transaction.responses.find("alice", "other", NOW) is None
        assert transaction.responses.find("alice", "k", NOW + MINUTE) is None
        transaction.responses.put(later)
        transaction.responses.delete_before(NOW + MINUTE)
    with store.read() as reader:
        assert reader.responses.find("alice", "k", NOW) == later
        assert reader.responses.find("bob", "k", NOW) is None


def test_meta(store: Store) -> None:
    with store.write() as transaction:
        assert transaction.meta.get("alive") is None
        transaction.meta.put("alive", "one")
        transaction.meta.put("alive", "two")
    with store.read() as reader:
        assert reader.meta.get("alive") == "two"
