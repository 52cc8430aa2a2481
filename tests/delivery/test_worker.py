"""Deliveries to receivers that really listen, and really fail."""

import json
import random
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured
from cloudevents.core.formats.json import JSONFormat
from tests.delivery.receiving import Receiver, receiving
from tests.delivery.telling import SHORT, Teller
from tests.store.test_subscriptions import PAGER

from forenotice.client.http import Response
from forenotice.core import errors
from forenotice.delivery import subscriptions, worker
from forenotice.delivery.worker import Pauses, Worker
from forenotice.service import housekeeping
from forenotice.service.calls import SYSTEM
from forenotice.ssrf import EVERYWHERE, OutgoingClient
from forenotice.store.database import Store
from forenotice.store.opener import open_store
from forenotice.store.subscriptions import Delivery
from forenotice.store.transaction import Reader
from forenotice.views.subscriptions import NewSubscription, SubscriptionChange

Answer = tuple[int, dict[str, str]]
NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
EVENTS = [f"EVENT-{number}" for number in range(8)]


@pytest.fixture
def teller(store: Store) -> Teller:
    return Teller(store)


@contextmanager
def hanging(status: int = 204) -> Iterator[tuple[Receiver, threading.Event]]:
    """A receiver that does not respond before the event is set."""
    respond = threading.Event()

    def hang(_: dict[str, Any]) -> Answer:
        respond.wait(60)
        return status, {}

    with receiving(hang) as receiver:
        yield receiver, respond
        respond.set()


def failed(teller: Teller) -> Any:
    """The first delivery, once it has failed."""
    while not (pending := teller.pending()) or not pending[0].error:
        teller.service.follow_growth().wait(0.005)
    return pending[0]


def test_pauses_double_up_to_half_an_hour_and_vary_a_little() -> None:
    for attempt, seconds in [(1, 1), (2, 2), (5, 16), (11, 1024), (12, 1800), (60, 1800), (10_000, 1800)]:
        for seed in range(20):
            pause = Pauses(chance=random.Random(seed)).after(attempt).total_seconds()
            assert seconds * 0.8 <= pause <= seconds * 1.2
    assert len({Pauses(chance=random.Random(seed)).after(3) for seed in range(20)}) > 10
    # A receiver may ask for more, but not for ever.
    assert Pauses().after(1, timedelta(minutes=1)) == timedelta(minutes=1)
    assert Pauses().after(1, timedelta(days=9)) == timedelta(minutes=30)
    assert Pauses().after(12, timedelta(seconds=1)) > timedelta(minutes=20)


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ("7", timedelta(seconds=7)),
        ("Mon, 05 Jan 2026 12:00:30 GMT", timedelta(seconds=30)),
        ("Mon, 05 Jan 2026 11:00:00 GMT", timedelta(0)),
        ("Mon, 05 Jan 2026 11:00:00", None),
        ("soon", None),
        ("", None),
        ("-1", None),
        ("9" * 20, None),
    ],
)
def test_retry_after(value: str, asked: timedelta | None) -> None:
    assert worker.retry_after(value, NOW) == asked


def test_what_happens_is_told_within_a_second_as_a_signed_cloud_event(teller: Teller) -> None:
    with receiving() as receiver, teller.delivering():
        made = teller.subscribe(receiver)
        teller.happen(("event.started", {"event": "E", "scope": "group:web", "operation": "o", "note": "naïve"}))
        receiver.until(lambda receiver: receiver.taken, seconds=1)
        teller.until(pending=0)
    (event,) = [event for event in receiver.taken if event["type"] == "forenotice.event.started"]
    position = teller.positions(event="E")[0]
    assert event == {
        "specversion": "1.0",
        "id": str(position),
        "source": event["source"],
        "type": "forenotice.event.started",
        "subject": "E",
        "time": event["data"]["entry"]["at"],
        "datacontenttype": "application/json",
        "data": {"entry": event["data"]["entry"], "event": None},
    }
    assert event["source"].startswith("urn:uuid:")
    assert event["data"]["entry"]["seq"] == position
    assert event["data"]["entry"]["data"] == {"note": "naïve"}
    assert receiver.headers[-1]["content-type"].startswith("application/cloudevents+json")
    assert made.secret not in str(receiver.headers)
    message = HTTPMessage(headers=receiver.headers[-1], body=json.dumps(event).encode())
    assert from_structured(message, JSONFormat()).get_type() == event["type"]


def test_a_restored_database_repeats_no_id_under_the_same_source(teller: Teller) -> None:
    """Positions come again for other things; whoever has seen the former ones must not take these for them."""
    with receiving() as receiver, teller.delivering():
        teller.subscribe(receiver)
        teller.approve("before")
        receiver.until(lambda receiver: receiver.taken)
        epoch = housekeeping.begin_epoch(teller.service)
        teller.approve("after")
        # Other lanes may be delivered after it.
        receiver.until(lambda receiver: any(event.get("subject") == "after" for event in receiver.taken))
    before = receiver.taken[0]["source"]
    [after] = {event["source"] for event in receiver.taken if event.get("subject") == "after"}
    assert (before.startswith("urn:uuid:"), after) == (True, f"{before}#{epoch:x}")


def test_half_the_answers_are_failures_and_still_everything_comes_in_order_per_event(teller: Teller) -> None:
    coin = random.Random(5)

    def toss(_: dict[str, Any]) -> Answer:
        return (204, {}) if coin.random() < 0.5 else (coin.choice([500, 503, 404, 302]), {})

    with receiving(toss) as receiver, teller.delivering():
        teller.subscribe(receiver, types=["event.*", "operation.*", "host.*"])
        for _ in range(6):
            teller.approve(*EVENTS)
            teller.happen(("operation.held", {"operation": "o"}), ("host.added", {"host": "a"}))
        told = teller.positions(action="event.") + teller.positions(action="operation.") + teller.positions(host="a")
        receiver.until(lambda receiver: len({event["id"] for event in receiver.taken}) == len(told) == 60)
        teller.until(pending=0, status="active")
    assert len(receiver.asked) > len(told) * 1.5
    lanes = receiver.lanes()
    assert set(lanes) == {*EVENTS, "o", ""}
    for event in EVENTS:
        assert lanes[event] == teller.positions(event=event)
    assert lanes["o"] == teller.positions(operation="o")
    assert lanes[""] == teller.positions(host="a")
    assert len({event["source"] for event in receiver.taken}) == 1


def test_one_event_that_is_refused_holds_back_itself_alone(teller: Teller) -> None:
    refused = threading.Event()

    def refuse(event: dict[str, Any]) -> Answer:
        return (500, {}) if event["subject"] == "A" and not refused.is_set() else (200, {})

    with receiving(refuse) as receiver, teller.delivering():
        teller.subscribe(receiver, types=["event.*"])
        for _ in range(3):
            teller.approve("A", "B")
        receiver.until(lambda receiver: len(receiver.taken) == 3)
        assert list(receiver.lanes()) == ["B"]
        first, *rest = teller.positions(event="A")
        teller.until(pending=3)
        assert [each.position for each in teller.pending()] == [first, *rest]
        assert [each.error for each in teller.pending()] == ["it answered 500", "", ""]
        refused.set()
        receiver.until(lambda receiver: len(receiver.taken) == 6)
    assert receiver.lanes()["A"] == [first, *rest]


def test_a_receiver_that_stays_dead_is_parked_with_a_reason_and_goes_on_when_resumed(teller: Teller) -> None:
    dead = threading.Event()
    dead.set()
    impatient = replace(SHORT, patience=timedelta(milliseconds=60))
    with receiving(lambda _: (500, {}) if dead.is_set() else (200, {})) as receiver, teller.delivering(impatient):
        teller.subscribe(receiver, types=["event.*"])
        teller.approve("A", "A")
        parked = teller.until(status="parked")
        position = teller.positions(event="A")[0]
        assert parked.why.startswith(f"entry {position} was tried ")
        assert parked.why.endswith("in the end: it answered 500")
        tried = len(receiver.asked)
        teller.approve("A", "B")
        assert len(teller.positions(action="subscription.parked")) == 1
        assert [each.position for each in teller.pending()] == teller.positions(event="A")[:2]
        dead.clear()
        assert len(receiver.asked) == tried
        resumed = subscriptions.resume(teller.service, SYSTEM, "pager")
        assert (resumed.status, resumed.why) == ("active", "")
        receiver.until(lambda receiver: len(receiver.taken) == 4)
    assert receiver.lanes() == {"A": teller.positions(event="A"), "B": teller.positions(event="B")}


def test_gone_is_believed_at_once(teller: Teller) -> None:
    with receiving(lambda _: (410, {})) as receiver, teller.delivering():
        teller.subscribe(receiver, types=["event.*"])
        teller.approve("A")
        parked = teller.until(status="parked")
    assert parked.why == "the receiver does not want any more: it answered 410"
    assert len(receiver.asked) == 1


def test_the_status_alone_says_that_it_was_taken(teller: Teller) -> None:
    with receiving(lambda _: (200, {"Content-Length": "2000000"})) as receiver, teller.delivering():
        teller.subscribe(receiver, types=["event.*"])
        teller.approve("A")
        receiver.until(lambda receiver: receiver.taken)
        teller.until(pending=0)
        assert subscriptions.test(teller.service, SYSTEM, "pager").taken
    assert len(receiver.asked) == 2


def test_a_receiver_that_asks_for_a_pause_gets_it(teller: Teller) -> None:
    with receiving(lambda _: (429, {"Retry-After": "600"})) as receiver:
        teller.subscribe(receiver, types=["event.*"])
        teller.approve("A")
        with teller.delivering(replace(SHORT, longest=timedelta(minutes=5))):
            waiting = failed(teller)
    assert (waiting.attempts, waiting.error) == (1, "it answered 429")
    assert waiting.due_at > teller.service.clock.now() + timedelta(minutes=4)


def test_healthy_receivers_do_not_wait_for_receivers_that_hang(teller: Teller) -> None:
    """Twenty that accept and never respond have one request each."""
    with hanging() as (sick, _), receiving() as healthy, teller.delivering(seconds=30):
        for number in range(20):
            subscriptions.create(teller.service, SYSTEM, NewSubscription(name=f"sick-{number}", url=sick.url))
        teller.approve(*EVENTS)
        sick.until(lambda receiver: receiver.at_once == 20)
        teller.subscribe(healthy)
        teller.approve(*EVENTS * 20)
        healthy.until(lambda receiver: len(receiver.taken) >= 160)
        assert sick.most_at_once == 20
        assert healthy.most_at_once <= 4


def test_the_least_recently_served_goes_first_and_the_spare_room_is_bounded() -> None:
    limit = worker.RequestLimit()
    one, two = (replace(PAGER, id=key) for key in "ab")
    limit.sent("a")
    assert limit.in_order([one, two]) == [two, one]
    limit.sent("b")
    assert limit.in_order([two, one]) == [one, two]
    assert [limit.room("a", busy, 16) for busy in (0, 1)] == [1, 0]
    delivery = Delivery(subscription="a", position=1, lane="E", due_at=NOW)
    taken = worker.Outcome(attempt=worker.Attempt(subscription=one, delivery=delivery))
    limit.record(taken)
    assert [limit.room("a", busy, 16) for busy in (0, 1, 4)] == [4, 3, 0]
    assert [limit.room("a", busy, 0) for busy in (0, 1)] == [1, 0]
    limit.record(replace(taken, error="no response"))
    assert limit.room("a", 1, 16) == 0


def test_nothing_is_lost_when_it_is_stopped_in_the_middle(teller: Teller) -> None:
    with hanging() as (receiver, respond):
        teller.subscribe(receiver, types=["event.*"])
        with teller.delivering():
            teller.approve(*EVENTS, *EVENTS)
            receiver.until(lambda receiver: receiver.asked)
        assert [each.attempts for each in teller.pending()] == [0] * 16
        respond.set()
        with teller.delivering():
            receiver.until(lambda receiver: len({event["id"] for event in receiver.taken}) == 16)
            teller.until(pending=0)
    assert receiver.most_at_once <= 8
    assert receiver.lanes() == {event: teller.positions(event=event) for event in EVENTS}


def test_several_processes_do_not_tell_the_same_thing_twice(teller: Teller) -> None:
    other = Teller(teller.service.store)
    with receiving() as receiver, teller.delivering(), other.delivering():
        teller.subscribe(receiver, types=["event.*"])
        for _ in range(5):
            teller.approve(*EVENTS)
            other.approve(*EVENTS)
        receiver.until(lambda receiver: len(receiver.taken) == 80)
        teller.until(pending=0)
    assert len({event["id"] for event in receiver.taken}) == len(receiver.asked) == 80
    assert all(receiver.lanes()[event] == teller.positions(event=event) for event in EVENTS)


def test_what_was_told_is_told_again_from_a_position(teller: Teller) -> None:
    with receiving() as receiver, teller.delivering():
        teller.subscribe(receiver, types=["event.*"])
        teller.approve("A", "B", "A")
        receiver.until(lambda receiver: len(receiver.taken) == 3)
        teller.until(pending=0)
        first = teller.positions(event="A")[0]
        subscriptions.replay(teller.service, SYSTEM, "pager", first)
        receiver.until(lambda receiver: len(receiver.taken) == 5)
        teller.until(pending=0)
    assert sorted(event["id"] for event in receiver.taken[:3]) == [str(first), str(first + 1), str(first + 2)]
    assert sorted(event["id"] for event in receiver.taken[3:]) == [str(first + 1), str(first + 2)]


def test_an_answer_from_before_a_replay_does_not_count_for_it(teller: Teller) -> None:
    answering = threading.Event()

    def hang(event: dict[str, Any]) -> Answer:
        second = event["id"] == str(teller.positions(event="A")[1])
        return (200, {}) if not second or answering.wait(60) else (500, {})

    with receiving(hang) as receiver, teller.delivering():
        position = teller.subscribe(receiver, types=["event.*"]).position
        teller.approve("A", "A")
        first, second = teller.positions(event="A")
        receiver.until(lambda receiver: len(receiver.asked) == 2)
        subscriptions.replay(teller.service, SYSTEM, "pager", position)
        teller.until(pending=2)
        answering.set()
        receiver.until(lambda receiver: len(receiver.taken) == 4)
    assert [int(event["id"]) for event in receiver.taken] == [first, second, first, second]


@dataclass
class FlakyStore:
    """Fails in a few ways, one after another, before it works."""

    store: Store
    troubles: list[Exception]

    def read(self) -> AbstractContextManager[Reader]:
        if self.troubles:
            raise self.troubles.pop(0)
        return self.store.read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def test_a_store_that_is_away_and_a_defect_are_got_over(teller: Teller) -> None:
    flaky = FlakyStore(teller.service.store, [errors.UnavailableError(), ZeroDivisionError()])
    teller.service.store = cast(Store, flaky)
    with receiving() as receiver:
        subscribed = Teller(flaky.store)
        subscribed.subscribe(receiver, types=["event.*"])
        with teller.delivering():
            while flaky.troubles:
                teller.service.tell_growth()
                subscribed.service.follow_growth().wait(0.005)
            subscribed.approve("A")
            receiver.until(lambda receiver: receiver.taken)


def test_a_defect_of_ours_is_a_failure_like_any_other(teller: Teller) -> None:
    class Broken(OutgoingClient):
        def notify(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
            raise ZeroDivisionError

    with receiving() as receiver:
        teller.subscribe(receiver, types=["event.*"])
        broken = Worker(teller.service, Broken(private=EVERYWHERE), pauses=SHORT)
        broken.start()
        teller.approve("A")
        assert failed(teller).error == "this is a defect: ZeroDivisionError"
        broken.stop()


def test_what_is_no_longer_in_the_journal_holds_nothing_back(teller: Teller, tmp_path: Path) -> None:
    with receiving() as receiver:
        teller.subscribe(receiver, types=["event.*"])
        with receiving(lambda _: (500, {})) as dead, teller.delivering():
            subscriptions.change(teller.service, SYSTEM, "pager", SubscriptionChange(url=dead.url))
            teller.approve("A", "A")
            teller.until(pending=2)
        first, second = teller.positions(event="A")
        with sqlite3.connect(tmp_path / "forenotice.db") as database:
            database.execute("DELETE FROM journal WHERE position = ?", (first,))
        database.close()
        subscriptions.change(teller.service, SYSTEM, "pager", SubscriptionChange(url=receiver.url))
        subscriptions.resume(teller.service, SYSTEM, "pager")
        with teller.delivering():
            receiver.until(lambda receiver: receiver.taken)
    assert [event["id"] for event in receiver.taken] == [str(second)]


def test_a_private_address_is_refused_when_it_is_given_and_when_it_is_no_longer_allowed(teller: Teller) -> None:
    strict = Teller(teller.service.store, private=())
    for url in ("http://127.0.0.1/", "https://10.0.0.1/latest", "https://[::1]/"):
        with pytest.raises(errors.RefusedError, match="allow_private_targets"):
            subscriptions.create(strict.service, SYSTEM, NewSubscription(name="pager", url=url))
    with receiving() as receiver:
        teller.subscribe(receiver, types=["event.*"])
        teller.approve("A")
        with teller.delivering(private=()):
            assert "allow_private_targets" in failed(teller).error
    assert receiver.asked == []


def test_a_subscription_begins_where_it_is_told_and_takes_many_in_pages(teller: Teller) -> None:
    teller.happen(*(("host.added", {"host": "a"}),) * 1200, ("event.started", {"event": "E"}))
    with receiving() as receiver, teller.delivering():
        teller.subscribe(receiver, types=["event.*"], after=0)
        receiver.until(lambda receiver: receiver.taken, seconds=2)


def test_on_postgresql_other_processes_take_over(migrated_postgres_url: str) -> None:
    with (
        closing(open_store(migrated_postgres_url, migrate=False)) as store,
        closing(open_store(migrated_postgres_url, migrate=False)) as another,
        receiving() as receiver,
    ):
        mine, theirs = Teller(store), Teller(another)
        mine.subscribe(receiver, types=["event.*"])
        with mine.delivering():
            mine.approve("A", "B")
            receiver.until(lambda receiver: len(receiver.taken) == 2)
        theirs.approve("A", "B")
        with theirs.delivering():
            receiver.until(lambda receiver: len(receiver.taken) == 4)
            mine.until(pending=0)
        assert receiver.lanes() == {"A": mine.positions(event="A"), "B": mine.positions(event="B")}
