"""Who is told of what happens, and what each has still to be told."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import and_, bindparam, delete, exists, func, null, or_, select, update

from forenotice.core.journal import SubscriptionState
from forenotice.core.selectors import Selector
from forenotice.store import moments, schema
from forenotice.store.pages import Listing, equal, named
from forenotice.store.queries import Executor, Query, Row, Upsert

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
    """It is parked."""
    position: int
    """What is behind it in the journal has not been looked at."""
    created_at: datetime
    by: str
    claimed_by: str | None = None
    claimed_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    subscription: str
    position: int
    lane: str
    """What is of one lane is delivered in order."""
    due_at: datetime
    attempt: int = 0
    """How often it was tried."""
    tried_since: datetime | None = None
    error: str = ""


_PUT = Upsert(schema.subscriptions, fixed=("created_at", "author"))
_PUT_DELIVERY = Upsert(schema.deliveries, fixed=("lane",))
_LISTING = Listing(
    select(schema.subscriptions),
    schema.subscriptions,
    by=("name",),
    filters={"status": equal("status", "status"), "name": named("name")},
)
_ACTIVE = Query(
    select(schema.subscriptions).where(_S.status == SubscriptionState.ACTIVE.value).order_by(_S.created_at, _S.id)
)
_NAMED = Query(
    select(schema.subscriptions)
    .where(or_(_S.id == bindparam("wanted", type_=schema.NAME), _S.name == bindparam("wanted", type_=schema.NAME)))
    .order_by((_S.id == bindparam("wanted", type_=schema.NAME)).desc())
)
_COUNT = Query(select(func.count()).select_from(schema.subscriptions))
_SET_BACK = Query(
    update(schema.deliveries).values(due_at=_D.due_at - bindparam("by"), tried_since=_D.tried_since - bindparam("by"))
)
_RELEASE = Query(update(schema.subscriptions).values(claimed_by=null(), claimed_until=null()))
_REMOVE = Query(delete(schema.subscriptions).where(_S.id == bindparam("wanted")))
_OF = _D.subscription == bindparam("subscription")
_DROP_ALL = Query(delete(schema.deliveries).where(_OF))
_DROP_AFTER = Query(delete(schema.deliveries).where(_OF, _D.position > bindparam("after")))
_DROP = Query(delete(schema.deliveries).where(_OF, _D.position == bindparam("place")))
_PENDING = Query(
    select(schema.deliveries)
    .where(_OF, _D.position > bindparam("after"))
    .order_by(_D.position)
    .limit(bindparam("limit"))
)
_COUNT_PENDING = Query(select(func.count()).select_from(schema.deliveries).where(_OF))
_LAST_FAILED = Query(
    select(schema.deliveries).where(_OF, _D.attempt > 0).order_by(_D.due_at.desc(), _D.position).limit(1)
)
_EARLIER = schema.deliveries.alias("earlier")
_HEADS = Query(
    select(schema.deliveries)
    .where(_OF, _D.due_at <= bindparam("now"))
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
    .limit(bindparam("limit"))
)
_NEXT_DUE = Query(select(func.min(_D.due_at)).where(_OF, _D.due_at > bindparam("now")))

_names = msgspec.json.Decoder(tuple[str, ...])
_encode = msgspec.json.Encoder().encode


class Subscriptions:
    """What is read is of one moment; what writes is for transactions alone."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def page(
        self,
        after: str | None,
        limit: int,
        *,
        descending: bool = False,
        name: Selector | None = None,
        status: SubscriptionState | None = None,
    ) -> list[Subscription]:
        """By name, beyond the name `after`, or `descending` before it."""
        rows = _LISTING.page(self._executor, after=after, limit=limit, descending=descending, name=name, status=status)
        return [_subscription(row) for row in rows]

    def active(self) -> list[Subscription]:
        """All that are not parked, oldest first."""
        return [_subscription(row) for row in self._executor.rows(_ACTIVE)]

    def named(self, wanted: str) -> Subscription | None:
        """By id, or by name."""
        row = self._executor.row(_NAMED, wanted=wanted)
        return None if row is None else _subscription(row)

    def count(self) -> int:
        return self._number(_COUNT) or 0

    def put(self, subscription: Subscription) -> None:
        self._executor.upsert(_PUT, [_row(subscription)])

    def set_back(self, by: timedelta) -> None:
        self._executor.run(_SET_BACK, by=moments.duration_to_number(by))

    def release_claims(self) -> None:
        """Of all processes."""
        self._executor.run(_RELEASE)

    def remove(self, subscription: str) -> None:
        """By id, with all that it has still to be told."""
        self._executor.run(_DROP_ALL, subscription=subscription)
        self._executor.run(_REMOVE, wanted=subscription)

    def pending(self, subscription: str, after: int = 0, limit: int = 100) -> list[Delivery]:
        """By position, beyond `after`."""
        rows = self._executor.rows(_PENDING, subscription=subscription, after=after, limit=limit)
        return [_delivery(row) for row in rows]

    def count_pending(self, subscription: str) -> int:
        return self._number(_COUNT_PENDING, subscription=subscription) or 0

    def last_failed(self, subscription: str) -> Delivery | None:
        """What was refused, and is to be tried again last."""
        row = self._executor.row(_LAST_FAILED, subscription=subscription)
        return None if row is None else _delivery(row)

    def heads(self, subscription: str, now: datetime, limit: int) -> list[Delivery]:
        """The first of each lane, of those that are due by `now`, the longest due first."""
        rows = self._executor.rows(_HEADS, subscription=subscription, now=moments.to_number(now), limit=limit)
        return [_delivery(row) for row in rows]

    def next_due(self, subscription: str, now: datetime) -> datetime | None:
        """When something is due that is not yet."""
        return moments.optional(self._number(_NEXT_DUE, subscription=subscription, now=moments.to_number(now)))

    def put_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        self._executor.upsert(_PUT_DELIVERY, [_delivery_row(each) for each in deliveries])

    def drop_deliveries(self, subscription: str, positions: Collection[int]) -> None:
        if positions:
            each = [{"subscription": subscription, "place": position} for position in positions]
            self._executor.run_each(_DROP, each)

    def drop_deliveries_after(self, subscription: str, position: int) -> None:
        self._executor.run(_DROP_AFTER, subscription=subscription, after=position)

    def _number(self, query: Query, **parameters: object) -> int | None:
        row = self._executor.row(query, **parameters)
        return None if row is None or row[0] is None else int(row[0])


def _subscription(row: Row) -> Subscription:
    return Subscription(
        id=row[0],
        name=row[1],
        url=row[2],
        secret=row[3],
        types=_names.decode(row[4]),
        groups=row[5],
        statuses=_names.decode(row[6]),
        status=SubscriptionState(row[7]),
        why=row[8],
        position=row[9],
        created_at=moments.required(row[10]),
        by=row[11],
        claimed_by=row[12],
        claimed_until=moments.optional(row[13]),
    )


def _row(subscription: Subscription) -> Row:
    return (
        subscription.id,
        subscription.name,
        subscription.url,
        subscription.secret,
        _encode(subscription.types).decode(),
        subscription.groups,
        _encode(subscription.statuses).decode(),
        subscription.status.value,
        subscription.why,
        subscription.position,
        moments.to_number(subscription.created_at),
        subscription.by,
        subscription.claimed_by,
        moments.to_number(subscription.claimed_until),
    )


def _delivery(row: Row) -> Delivery:
    return Delivery(
        subscription=row[0],
        position=row[1],
        lane=row[2],
        attempt=row[3],
        tried_since=moments.optional(row[4]),
        due_at=moments.required(row[5]),
        error=row[6],
    )


def _delivery_row(delivery: Delivery) -> Row:
    return (
        delivery.subscription,
        delivery.position,
        delivery.lane,
        delivery.attempt,
        moments.to_number(delivery.tried_since),
        moments.to_number(delivery.due_at),
        delivery.error,
    )
