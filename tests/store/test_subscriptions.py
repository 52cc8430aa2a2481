"""Subscriptions and the deliveries that each still waits for."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.store.samples import MINUTE, NOW

from forenotice.core.journal import SubscriptionState
from forenotice.store.subscriptions import Delivery, Subscription
from forenotice.store.transaction import Transaction

PAGER = Subscription(
    id="0001",
    name="pager",
    url="https://hooks.example.com/",
    secret="a-secret-of-some-length",
    types=("forenotice.event.*",),
    groups="web-*",
    statuses=("Failed",),
    status=SubscriptionState.ACTIVE,
    why="",
    position=7,
    created_at=NOW,
    by="operator:ada",
)
CHAT = replace(PAGER, id="0002", name="chat", created_at=NOW + timedelta(seconds=1), position=9)


def delivery(position: int, lane: str, due: float = 0, **more: Any) -> Delivery:
    due_at = NOW + timedelta(seconds=due)
    return Delivery(subscription=PAGER.id, position=position, lane=lane, due_at=due_at, **more)


def test_a_subscription_comes_back_as_it_was_put(tx: Transaction) -> None:
    subscriptions = tx.subscriptions
    claimed = replace(PAGER, claimed_by="me", claimed_until=NOW)
    subscriptions.put(claimed)
    subscriptions.put(CHAT)
    assert subscriptions.named("pager") == subscriptions.named("0001") == claimed
    assert subscriptions.named("other") is None
    assert (subscriptions.page(None, 1), subscriptions.page("chat", 10)) == ([CHAT], [claimed])
    assert (subscriptions.active(), subscriptions.count()) == ([claimed, CHAT], 2)
    subscriptions.release_claims()
    assert subscriptions.named("pager") == PAGER
    parked = replace(PAGER, status=SubscriptionState.PARKED, why="it is gone", position=8, url="https://other.example/")
    subscriptions.put(parked)
    assert (subscriptions.named("pager"), subscriptions.active()) == (parked, [CHAT])
    assert PAGER.secret not in repr(PAGER)


def test_only_the_first_of_a_lane_is_a_head_and_only_when_it_is_due(tx: Transaction) -> None:
    subscriptions, later = tx.subscriptions, NOW + MINUTE
    failing = delivery(1, "A", due=60, attempt=3, tried_since=NOW, error="503")
    subscriptions.put_deliveries(
        [failing, delivery(2, "A"), delivery(3, "B"), delivery(4, "B"), delivery(5, "", due=-1)]
    )
    subscriptions.put_deliveries([replace(delivery(6, "A"), subscription="another")])
    for now, limit, found in ((NOW, 10, [5, 3]), (NOW, 1, [5]), (later, 10, [5, 3, 1])):
        assert [head.position for head in subscriptions.heads(PAGER.id, now, limit)] == found
    assert subscriptions.last_failed(PAGER.id) == failing
    assert (subscriptions.next_due(PAGER.id, NOW), subscriptions.next_due(PAGER.id, later)) == (later, None)
    assert subscriptions.pending(PAGER.id, limit=1) == [failing]
    assert [each.position for each in subscriptions.pending(PAGER.id, after=3)] == [4, 5]
    assert subscriptions.count_pending(PAGER.id) == 5
    subscriptions.retry_deliveries(PAGER.id, NOW)
    assert subscriptions.pending(PAGER.id, limit=1) == [delivery(1, "A", error="503")]
    assert subscriptions.last_failed(PAGER.id) is None


def test_what_was_taken_or_is_told_anew_is_dropped(tx: Transaction) -> None:
    subscriptions = tx.subscriptions
    subscriptions.put(PAGER)
    subscriptions.put_deliveries([delivery(position, "A") for position in range(1, 8)])
    subscriptions.drop_deliveries(PAGER.id, [1, 3])
    subscriptions.drop_deliveries_after(PAGER.id, 5)
    subscriptions.drop_deliveries(PAGER.id, [])
    assert [each.position for each in subscriptions.pending(PAGER.id)] == [2, 4, 5]
    assert subscriptions.last_failed(PAGER.id) is None
    subscriptions.remove(PAGER.id)
    assert (subscriptions.count(), subscriptions.pending(PAGER.id)) == (0, [])
