"""Tokens, sessions of the portal, stored responses and single values."""

from dataclasses import replace

from tests.store.samples import MINUTE, NOW

from forenotice.store.tokens import Session, StoredResponse, Token
from forenotice.store.transaction import Transaction

ALICE = Token(id="t1", name="alice", role="admin", digest="d1", created_at=NOW)
BOB = Token(
    id="t0",
    name="bob",
    role="viewer",
    digest="d2",
    created_at=NOW + MINUTE,
    last_used_at=NOW,
    networks=("10.0.0.0/8", "fd00::/8"),
    previous_digest="d0",
)


def test_tokens(tx: Transaction) -> None:
    tokens = tx.tokens
    tokens.put(BOB)
    tokens.put(ALICE)
    assert [tokens.by_digest(digest) for digest in ("d1", "d2", "d0", "d3")] == [ALICE, BOB, BOB, None]
    assert [tokens.by_id(name) for name in ("t1", "d1")] == [ALICE, None]
    assert tokens.page() == [ALICE, BOB]
    tokens.touch({"t1": NOW, "t0": NOW - MINUTE, "ghost": NOW})
    assert [token.last_used_at for token in tokens.page()] == [NOW, NOW], "use never goes back"
    assert [tokens.revoke(name, NOW) for name in ("t1", "t1", "ghost")] == [True, False, False]
    assert tokens.by_digest("d1") == replace(ALICE, last_used_at=NOW, revoked_at=NOW)


def test_sessions(tx: Transaction) -> None:
    first = Session(digest="d1", token="t1", created_at=NOW, expires_at=NOW + 10 * MINUTE)
    second = replace(first, digest="d0", created_at=NOW + MINUTE, expires_at=NOW + 11 * MINUTE)
    others = replace(first, digest="d2", token="t2", created_at=NOW - MINUTE)

    def found() -> list[Session | None]:
        return [tx.sessions.find(digest) for digest in ("d1", "d0", "d2", "d3")]

    for each in (first, second, others):
        tx.sessions.put(each)
    tx.sessions.keep_newest("t1", 2)
    assert found() == [first, second, others, None]
    tx.sessions.keep_newest("t1", 1)
    assert found() == [None, second, others, None]
    tx.sessions.prolong("d0", NOW + 20 * MINUTE)
    tx.sessions.delete_expired(NOW + 15 * MINUTE)
    assert found() == [None, replace(second, expires_at=NOW + 20 * MINUTE), None, None]
    assert [tx.sessions.end("d0"), tx.sessions.end("d0")] == [True, False]


def test_responses_by_token_and_key_and_single_values(tx: Transaction) -> None:
    first = StoredResponse(token="alice", key="k", digest="d1", status=200, result=b"\x00{}\xff", at=NOW)
    other = replace(first, token="bob", status=409)
    later = replace(first, digest="d2", result=b"new", at=NOW + MINUTE)
    responses = tx.responses
    responses.put(first)
    responses.put(other)
    assert responses.find("alice", "k", NOW) == first
    assert responses.find("bob", "k", NOW - MINUTE) == other
    assert responses.find("alice", "other", NOW) is responses.find("alice", "k", NOW + MINUTE) is None
    responses.put(later)
    responses.delete_before(NOW + MINUTE)
    assert (responses.find("alice", "k", NOW), responses.find("bob", "k", NOW)) == (later, None)
    assert tx.meta.get("alive") is None
    for value in ("one", "two"):
        tx.meta.put("alive", value)
        assert tx.meta.get("alive") == value
