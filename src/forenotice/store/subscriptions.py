"""Subscriptions, and the deliveries that each still waits for."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import and_, bindparam, delete, exists, func, null, or_, select, update

from forenotice.core.journal import SubscriptionState
from forenotice.core.selectors import Selector
from forenotice.store import rows, schema
from forenotice.store.pages import Listing
from forenotice.store.queries import Query, Repository, Upsert, given
from forenotice.store.rows import Mapper

_S, _D = schema.subscriptions.c, schema.deliveries.c


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


_PUT = Upsert(schema.subscriptions, fixed=("created_at", "author"))
_PUT_DELIVERY = Upsert(schema.deliveries, fixed=("lane",))
_ACTIVE = Query(
    select(schema.subscriptions).where(_S.status == SubscriptionState.ACTIVE.value).order_by(_S.created_at, _S.id)
)
_NAMED = Query(
    select(schema.subscriptions)
    .where(or_(_S.id == bindparam("wanted", type_=schema.NAME), _S.name == bindparam("wanted", type_=schema.NAME)))
    .order_by((_S.id == bindparam("wanted", type_=schema.NAME)).desc())
)
_COUNT = Query(select(func.count()).select_from(schema.subscriptions))
_SET_BACK = Query(update(schema.deliveries).values(due_at=_D.due_at - given.by, tried_since=_D.tried_since - given.by))
_RELEASE = Query(update(schema.subscriptions).values(claimed_by=null(), claimed_until=null()))
_REMOVE = Query(delete(schema.subscriptions).where(_S.id == given.wanted))
_OF = _D.subscription == given.subscription
_DROP_ALL = Query(delete(schema.deliveries).where(_OF))
_DROP_AFTER = Query(delete(schema.deliveries).where(_OF, _D.position > given.after))
_DROP = Query(delete(schema.deliveries).where(_OF, _D.position == given.place))
_PENDING = Query(
    select(schema.deliveries).where(_OF, _D.position > given.after).order_by(_D.position).limit(given.limit)
)
_COUNT_PENDING = Query(select(func.count()).select_from(schema.deliveries).where(_OF))
_LAST_FAILED = Query(
    select(schema.deliveries).where(_OF, _D.attempt > 0).order_by(_D.due_at.desc(), _D.position).limit(1)
)
_EARLIER = schema.deliveries.alias("earlier")
_HEADS = Query(
    select(schema.deliveries)
    .where(_OF, _D.due_at <= given.now)
    .where(
        ~exists().where(
            and_(
                _EARLIER.c.subscription == _D.subscription,
                _EARLIER.c.lane == _D.lane,
                _EARLIER.c.position < _D.position,
            )
        )
    )
    .order_by(_D.due_at, _D.position)
    .limit(given.limit)
)
_NEXT_DUE = Query(select(func.min(_D.due_at)).where(_OF, _D.due_at > given.now))
_SUBSCRIPTIONS = Mapper(_S, Subscription, renamed={"author": "by"})
_DELIVERIES = Mapper(_D, Delivery)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionFilter:
    name: Selector | None = None


_LIST = Listing(select(schema.subscriptions), schema.subscriptions, _SUBSCRIPTIONS.read, by=("name",))


class Subscriptions(Repository):
    def page(
        self,
        after: str | None,
        limit: int,
        wanted: SubscriptionFilter | None = None,
        *,
        descending: bool = False,
    ) -> list[Subscription]:
        """By name, beyond the name `after`, or `descending` before it."""
        return _LIST.page(self._executor, after, limit, wanted, descending=descending)

    def active(self) -> list[Subscription]:
        """All that are not parked, oldest first."""
        return self._all(_SUBSCRIPTIONS, _ACTIVE)

    def named(self, wanted: str) -> Subscription | None:
        """By id, or by name."""
        return self._find(_SUBSCRIPTIONS, _NAMED, wanted=wanted)

    def count(self) -> int:
        return int(self._executor.value(_COUNT))

    def put(self, subscription: Subscription) -> None:
        self._executor.upsert(_PUT, [_SUBSCRIPTIONS.row(subscription)])

    def set_back(self, by: timedelta) -> None:
        self._executor.run(_SET_BACK, by=rows.microseconds(by))

    def release_claims(self) -> None:
        """Of all processes."""
        self._executor.run(_RELEASE)

    def remove(self, subscription: str) -> None:
        """By id, with its deliveries."""
        self._executor.run(_DROP_ALL, subscription=subscription)
        self._executor.run(_REMOVE, wanted=subscription)

    def pending(self, subscription: str, after: int = 0, limit: int = 100) -> list[Delivery]:
        """By position, beyond `after`."""
        return self._all(_DELIVERIES, _PENDING, subscription=subscription, after=after, limit=limit)

    def count_pending(self, subscription: str) -> int:
        return int(self._executor.value(_COUNT_PENDING, subscription=subscription))

    def last_failed(self, subscription: str) -> Delivery | None:
        """The failed delivery whose next attempt is latest."""
        return self._find(_DELIVERIES, _LAST_FAILED, subscription=subscription)

    def heads(self, subscription: str, now: datetime, limit: int) -> list[Delivery]:
        """The first of each lane, of those that are due by `now`, the longest due first."""
        return self._all(_DELIVERIES, _HEADS, subscription=subscription, now=rows.number(now), limit=limit)

    def next_due(self, subscription: str, now: datetime) -> datetime | None:
        """When the next delivery becomes due."""
        return rows.optional_moment(self._executor.value(_NEXT_DUE, subscription=subscription, now=rows.number(now)))

    def put_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        self._executor.upsert(_PUT_DELIVERY, [_DELIVERIES.row(each) for each in deliveries])

    def drop_deliveries(self, subscription: str, positions: Collection[int]) -> None:
        if positions:
            each = [{"subscription": subscription, "place": position} for position in positions]
            self._executor.run_each(_DROP, each)

    def drop_deliveries_after(self, subscription: str, position: int) -> None:
        self._executor.run(_DROP_AFTER, subscription=subscription, after=position)
