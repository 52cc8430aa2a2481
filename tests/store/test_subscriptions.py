"""Subscriptions and what each has still to be told, on both databases."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from forenotice.core.journal import SubscriptionState
from forenotice.store.database import Store
from forenotice.store.subscriptions import Delivery, Subscription

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
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


def delivery(position: int, lane: str, due: float = 0, **more: object) -> Delivery:
    return Delivery(
        subscription=PAGER.id,
        position=position,
        lane=lane,
        due_at=NOW + timedelta(seconds=due),
        **more,  # type: ignore[arg-type]
    )


def test_a_subscription_comes_back_as_it_was_put(store: Store) -> None:
    claimed = replace(PAGER, claimed_by="me", claimed_until=NOW)
    with store.write() as transaction:
        transaction.subscriptions.put(claimed)
        transaction.subscriptions.put(CHAT)
    with store.read() as reader:
        assert reader.subscriptions.named("pager") == reader.subscriptions.named("0001") == claimed
        assert reader.subscriptions.named("nobody") is None
        assert reader.subscriptions.page(None, 1) == [CHAT]
        assert reader.subscriptions.page("chat", 10) == [claimed]
        assert reader.subscriptions.active() == [claimed, CHAT]
        assert reader.subscriptions.count() == 2
    with store.write() as transaction:
        transaction.subscriptions.release_claims()
        assert transaction.subscriptions.named("pager") == PAGER
    parked = replace(PAGER, status=SubscriptionState.PARKED, why="it is gone", position=8, url="https://other.example/")
    with store.write() as transaction:
        transaction.subscriptions.put(parked)
    with store.read() as reader:
        assert reader.subscriptions.named("pager") == parked
        assert reader.subscriptions.active() == [CHAT]


def test_a_secret_is_in_no_representation() -> None:
    assert PAGER.secret not in repr(PAGER)


def test_only_the_first_of_a_lane_is_a_head_and_only_when_it_is_due(store: Store) -> None:
    failing = delivery(1, "A", due=60, attempt=3, tried_since=NOW, error="503")
    with store.write() as transaction:
        transaction.subscriptions.put_deliveries(
            [failing, delivery(2, "A"), delivery(3, "B"), delivery(4, "B"), delivery(5, "", due=-1)]
        )
        transaction.subscriptions.put_deliveries([replace(delivery(6, "A"), subscription="another")])
    with store.read() as reader:
        subscriptions = reader.subscriptions
        assert [head.position for head in subscriptions.heads(PAGER.id, NOW, 10)] == [5, 3]
        assert [head.position for head in subscriptions.heads(PAGER.id, NOW, 1)] == [5]
        later = NOW + timedelta(minutes=1)
        assert [head.position for head in subscriptions.heads(PAGER.id, later, 10)] == [5, 3, 1]
        assert subscriptions.next_due(PAGER.id, NOW) == later
        assert subscriptions.next_due(PAGER.id, later) is None
        assert subscriptions.pending(PAGER.id, limit=1) == [failing]
        assert [each.position for each in subscriptions.pending(PAGER.id, after=3)] == [4, 5]
        assert subscriptions.count_pending(PAGER.id) == 5


def test_what_was_taken_or_is_told_anew_is_dropped(store: Store) -> None:
    with store.write() as transaction:
        transaction.subscriptions.put(PAGER)
        transaction.subscriptions.put_deliveries([delivery(position, "A") for position in range(1, 8)])
        transaction.subscriptions.drop_deliveries(PAGER.id, [1, 3])
        transaction.subscriptions.drop_deliveries_after(PAGER.id, 5)
        transaction.subscriptions.drop_deliveries(PAGER.id, [])
    with store.read() as reader:
        assert [each.position for each in reader.subscriptions.pending(PAGER.id)] == [2, 4, 5]
    with store.write() as transaction:
        transaction.subscriptions.remove(PAGER.id)
    with store.read() as reader:
        assert (reader.subscriptions.count(), reader.subscriptions.pending(PAGER.id)) == (0, [])
