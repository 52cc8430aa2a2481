"""Tokens of operators."""

from dataclasses import replace

import pytest
from tests.store.samples import MINUTE, NOW

from forenotice.store.database import Store
from forenotice.store.tokens import Token

ALICE = Token(id="t1", name="alice", role="admin", digest="d1", created_at=NOW)
BOB = Token(id="t0", name="bob", role="viewer", digest="d2", created_at=NOW + MINUTE, last_used_at=NOW)


@pytest.fixture
def with_tokens(store: Store) -> Store:
    with store.write() as transaction:
        transaction.tokens.put(BOB)
        transaction.tokens.put(ALICE)
    return store


def test_found_by_digest(with_tokens: Store) -> None:
    with with_tokens.read() as reader:
        assert reader.tokens.by_digest("d1") == ALICE
        assert reader.tokens.by_digest("d3") is None
        assert reader.tokens.page() == [ALICE, BOB]


def test_revoking_twice(with_tokens: Store) -> None:
    with with_tokens.write() as transaction:
        assert transaction.tokens.revoke("t1", NOW)
        assert not transaction.tokens.revoke("t1", NOW + MINUTE)
        assert not transaction.tokens.revoke("ghost", NOW)
    with with_tokens.read() as reader:
        assert reader.tokens.by_digest("d1") == replace(ALICE, revoked_at=NOW)


def test_use_never_goes_back(with_tokens: Store) -> None:
    with with_tokens.write() as transaction:
        transaction.tokens.touch({"t1": NOW, "t0": NOW - MINUTE, "ghost": NOW})
    with with_tokens.read() as reader:
        assert [token.last_used_at for token in reader.tokens.page()] == [NOW, NOW]
