"""What is going on at a glance: the most urgent first, what ended last, and only what is one's own."""

from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from tests.store.samples import MINUTE, NOW, Thing, event, keep, operation

from forenotice.core.operations import Kind, Status
from forenotice.core.selectors import of_scopes
from forenotice.store.database import Store

KEYS = ("group:web", "group:web-1", "group:db", "vm:web")


def lived(name: str, scope: str, status: Status = Status.SCHEDULED, **fields: Any) -> list[Thing]:
    started = NOW if status is Status.STARTED else None
    return [
        operation(name.lower(), status=status, started_at=started),
        event(name, name.lower(), scope, status, **fields),
    ]


@pytest.fixture
def busy(store: Store) -> Store:
    """Of each scope one event that is announced, one that has started and three that are over."""
    things: list[Thing] = []
    for place, key in enumerate(KEYS):
        things += lived(f"LATER-{place}", key, not_before=NOW + (10 - place) * MINUTE)
        things += lived(f"OUT-{place}", key, Status.STARTED, not_before=NOW + (20 - place) * MINUTE)
        for ago in range(3):
            ended = NOW - (10 * ago + place) * MINUTE
            things += lived(f"OVER-{ago}-{place}", key, Status.COMPLETED, ended_at=ended)
    keep(store, *things)
    return store


def test_all_that_is_shown_of_one(store: Store) -> None:
    mine = operation("mine", "b", Status.STARTED, kind=Kind.LIVE_MIGRATION, started_at=NOW + MINUTE)
    told = event("E", "mine", "group:web", Status.STARTED, resources=("web-0", "web-1"))
    keep(store, mine, told, operation("silent"))
    with store.read() as reader:
        [life] = reader.events.live(10)
    for field in life._fields:
        of_operation = field in ("kind", "started_at")
        assert getattr(life, field) == getattr(mine if of_operation else told, field), field


def test_the_most_urgent_first(busy: Store) -> None:
    wanted = ["OUT-3", "OUT-2", "OUT-1", "OUT-0", "LATER-3", "LATER-2", "LATER-1", "LATER-0"]
    with busy.read() as reader:
        assert [life.id for life in reader.events.live(100)] == wanted
        pages = [[life.id for life in reader.events.live(3, offset=offset)] for offset in range(0, 12, 3)]
        assert pages == [wanted[:3], wanted[3:6], wanted[6:], []]
        assert reader.events.counts() == {Status.SCHEDULED: 4, Status.STARTED: 4}


def test_what_ended_last_first(busy: Store) -> None:
    wanted = [f"OVER-{ago}-{place}" for ago in range(3) for place in range(4)]
    with busy.read() as reader:
        assert [life.id for life in reader.events.ended(NOW - timedelta(hours=1), 100)] == wanted
        assert [life.id for life in reader.events.ended(NOW - timedelta(hours=1), 5)] == wanted[:5]
        assert [life.id for life in reader.events.ended(NOW - 11 * MINUTE, 100)] == wanted[:6]
        assert reader.events.ended(NOW + MINUTE, 100) == []


def test_of_one_scope_and_of_what_is_seen(busy: Store) -> None:
    since = NOW - timedelta(hours=1)
    with busy.read() as reader:
        everything = reader.events.live(100) + reader.events.ended(since, 100)
        for scope, text in product(
            (None, "group:web", "vm:web", "group:none"),
            (None, "web", "web*", "*,vm:*", "web,vm:web,!web", "*,!web", "none"),
        ):
            seen = None if text is None else of_scopes(text)
            mine = [key for key in KEYS if (seen is None or key in seen) and scope in (None, key)]
            live = reader.events.live(100, scope=scope, seen=seen)
            ended = reader.events.ended(since, 100, scope=scope, seen=seen)
            assert live + ended == [life for life in everything if life.scope in mine], (scope, text)
            counts = {Status.SCHEDULED: len(mine), Status.STARTED: len(mine)} if mine else {}
            assert reader.events.counts(scope=scope, seen=seen) == counts
