"""Leases: who has one, until when, and how far it has got."""

from datetime import timedelta

from tests.store.samples import NOW

from forenotice.store.leases import Lease
from forenotice.store.rows import EPOCH
from forenotice.store.transaction import Transaction


def test_nobody_has_a_lease_that_was_never_taken(tx: Transaction) -> None:
    assert tx.leases.get("a") == Lease(name="a", holder="", until=EPOCH, position=None)
    assert not tx.leases.advance("a", "one", 7)


def test_a_position_outlives_its_holder_and_is_the_holders_to_move(tx: Transaction) -> None:
    tx.leases.put("a", "one", NOW)
    tx.leases.put("b", "two", NOW)
    assert tx.leases.advance("a", "one", 7)
    assert not tx.leases.advance("a", "two", 8)
    tx.leases.put("a", "two", NOW + timedelta(seconds=1))
    assert tx.leases.get("a") == Lease(name="a", holder="two", until=NOW + timedelta(seconds=1), position=7)
    tx.leases.release("a", "one")
    assert tx.leases.get("a").holder == "two"
    tx.leases.release("a", "two")
    assert tx.leases.get("a") == Lease(name="a", position=7)
    assert tx.leases.get("b").holder == "two"
    tx.leases.release_all()
    assert tx.leases.get("b") == Lease(name="b")
