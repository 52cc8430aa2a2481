"""Subscriptions, and the deliveries that each still waits for."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from forenotice.core.journal import SubscriptionState
from forenotice.core.selectors import Selector
from forenotice.store import rows, schema
from forenotice.store.queries import Listed, Listing
from forenotice.store.rows import Mapper


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    id: str
    name: str
    url: str
    secret: str = field(repr=False)
    types: tuple[str, ...]
    groups: str
    """A selector of scopes; empty: all, and what is of none."""
    statuses: tuple[str, ...]
    status: SubscriptionState
    why: str
    """Why it is parked."""
    position: int
    """Entries after it have not been turned into deliveries yet."""
    created_at: datetime
    by: str
    claimed_by: str | None = None
    claimed_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    subscription: str
    position: int
    lane: str
    """Deliveries of one lane are sent in order."""
    due_at: datetime
    attempt: int = 0
    """Attempts so far."""
    tried_since: datetime | None = None
    error: str = ""


_SUBSCRIPTIONS = Mapper(schema.subscriptions.c, Subscription, renamed={"author": "by"})
_DELIVERIES = Mapper(schema.deliveries.c, Delivery)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionFilter:
    name: Selector | None = None


class Subscriptions(Listed[Subscription, SubscriptionFilter]):
    """Listed by name."""

    _list = Listing(schema.subscriptions, _SUBSCRIPTIONS.read, by=("name",))

    def active(self) -> list[Subscription]:
        """All that are not parked, oldest first."""
        query = "SELECT subscriptions.* FROM subscriptions WHERE status = 'active' ORDER BY created_at, id"
        return self._all(_SUBSCRIPTIONS, query)

    def named(self, wanted: str) -> Subscription | None:
        """By id, or by name."""
        query = "SELECT subscriptions.* FROM subscriptions WHERE id = :wanted OR name = :wanted ORDER BY id <> :wanted"
        return self._find(_SUBSCRIPTIONS, query, wanted=wanted)

    def count(self) -> int:
        return int(self._db.value("SELECT count(*) FROM subscriptions"))

    def put(self, subscription: Subscription) -> None:
        self._db.upsert(schema.subscriptions, [_SUBSCRIPTIONS.row(subscription)], fixed=("created_at", "author"))

    def set_back(self, by: timedelta) -> None:
        self._db.run("UPDATE deliveries SET due_at = due_at - :by, tried_since = tried_since - :by", by=by)

    def release_claims(self) -> None:
        """Of all processes."""
        self._db.run("UPDATE subscriptions SET claimed_by = NULL, claimed_until = NULL")

    def remove(self, subscription: str) -> None:
        """By id, with its deliveries."""
        self._db.run("DELETE FROM deliveries WHERE subscription = :id", id=subscription)
        self._db.run("DELETE FROM subscriptions WHERE id = :id", id=subscription)

    def pending(self, subscription: str, after: int = 0, limit: int = 100) -> list[Delivery]:
        """By position, beyond `after`."""
        which = "deliveries.position > :after ORDER BY deliveries.position LIMIT :limit"
        return self._deliveries(subscription, which, after=after, limit=limit)

    def count_pending(self, subscription: str) -> int:
        return int(self._db.value("SELECT count(*) FROM deliveries WHERE subscription = :id", id=subscription))

    def last_failed(self, subscription: str) -> Delivery | None:
        """The failed delivery whose next attempt is latest."""
        found = self._deliveries(subscription, "attempt > 0 ORDER BY due_at DESC, deliveries.position LIMIT 1")
        return found[0] if found else None

    def heads(self, subscription: str, now: datetime, limit: int) -> list[Delivery]:
        """The first of each lane, of those that are due by `now`, the longest due first."""
        earlier = (
            "SELECT 1 FROM deliveries AS earlier WHERE earlier.subscription = deliveries.subscription"
            " AND earlier.lane = deliveries.lane AND earlier.position < deliveries.position"
        )
        which = f"due_at <= :now AND NOT EXISTS ({earlier}) ORDER BY due_at, deliveries.position LIMIT :limit"
        return self._deliveries(subscription, which, now=now, limit=limit)

    def next_due(self, subscription: str, now: datetime) -> datetime | None:
        """When the next delivery becomes due."""
        query = "SELECT min(due_at) FROM deliveries WHERE subscription = :id AND due_at > :now"
        return rows.optional_moment(self._db.value(query, id=subscription, now=now))

    def put_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        self._db.upsert(schema.deliveries, [_DELIVERIES.row(each) for each in deliveries], fixed=("lane",))

    def retry_deliveries(self, subscription: str, now: datetime) -> None:
        """All are due now, as if none had failed."""
        query = "UPDATE deliveries SET attempt = 0, tried_since = NULL, due_at = :now WHERE subscription = :id"
        self._db.run(query, id=subscription, now=now)

    def drop_deliveries(self, subscription: str, positions: Collection[int]) -> None:
        self._db.run_each(
            "DELETE FROM deliveries WHERE subscription = :id AND position = :position",
            [{"id": subscription, "position": position} for position in positions],
        )

    def drop_deliveries_after(self, subscription: str, position: int) -> None:
        query = "DELETE FROM deliveries WHERE subscription = :id AND position > :after"
        self._db.run(query, id=subscription, after=position)

    def _deliveries(self, subscription: str, which: str, **parameters: Any) -> list[Delivery]:
        query = f"SELECT deliveries.* FROM deliveries WHERE deliveries.subscription = :id AND {which}"
        return self._all(_DELIVERIES, query, id=subscription, **parameters)
