"""Who is signed in to the portal, on both databases."""

from dataclasses import replace

from tests.store.samples import MINUTE, NOW

from forenotice.store.database import Store
from forenotice.store.tokens import Session, Token

FIRST = Session(digest="d1", token="t1", created_at=NOW, expires_at=NOW + 10 * MINUTE)
SECOND = replace(FIRST, digest="d0", created_at=NOW + MINUTE, expires_at=NOW + 11 * MINUTE)
OTHERS = replace(FIRST, digest="d2", token="t2", created_at=NOW - MINUTE)


def keep(store: Store, *made: Session) -> None:
    with store.write() as transaction:
        for each in made:
            transaction.sessions.put(each)


def found(store: Store) -> list[Session | None]:
    with store.read() as reader:
        return [reader.sessions.find(digest) for digest in ("d1", "d0", "d2")]


def test_found_by_digest(store: Store) -> None:
    keep(store, FIRST, SECOND, OTHERS)
    assert found(store) == [FIRST, SECOND, OTHERS]
    with store.read() as reader:
        assert reader.sessions.find("d3") is None


def test_ended_once(store: Store) -> None:
    keep(store, FIRST, SECOND)
    with store.write() as transaction:
        assert transaction.sessions.end("d1")
        assert not transaction.sessions.end("d1")
    assert found(store) == [None, SECOND, None]


def test_expired_ones_are_forgotten(store: Store) -> None:
    keep(store, FIRST, SECOND)
    with store.write() as transaction:
        transaction.sessions.delete_expired(NOW + 10 * MINUTE)
    assert found(store) == [None, SECOND, None]


def test_the_newest_of_a_token_stay(store: Store) -> None:
    keep(store, FIRST, SECOND, OTHERS)
    with store.write() as transaction:
        transaction.sessions.keep_newest("t1", 2)
    assert found(store) == [FIRST, SECOND, OTHERS]
    with store.write() as transaction:
        transaction.sessions.keep_newest("t1", 1)
    assert found(store) == [None, SECOND, OTHERS]


def test_a_token_is_found_by_its_id(store: Store) -> None:
    ada = Token(id="t1", name="ada", role="admin", digest="d", created_at=NOW)
    with store.write() as transaction:
        transaction.tokens.put(ada)
    with store.read() as reader:
        assert (reader.tokens.by_id("t1"), reader.tokens.by_id("d")) == (ada, None)
