"""Operations in their table: what is due, who has claimed it."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, bindparam, case, exists, func, or_, select, update

from forenotice.core.operations import Kind, Operation, Source, Status
from forenotice.store import former, moments, schema
from forenotice.store.pages import Listing, equal, living
from forenotice.store.queries import Among, Executor, Matching, Query, Row, Upsert

_O, _E, _V = schema.operations.c, schema.events.c, schema.vms.c
_LIVE = _O.ended_at.is_(None)

NAMED = Query(select(schema.operations).where(Among(_O.id, "names")))
LIVE = Query(select(schema.operations).where(_LIVE))
ASKED_BY = Query(
    select(_O.author, func.count())
    .where(_LIVE, or_(*(_O.kind == kind.value for kind in Kind if kind.traits.source is Source.USER)))
    .group_by(_O.author)
)
LIVE_ON = Query(select(schema.operations).where(Among(_O.host, "names"), _LIVE))
STARTED_ON = Query(select(schema.operations).where(Among(_O.host, "names"), _LIVE, _O.status == Status.STARTED.value))
# Targets are a JSON object from VM to host, and names hold no character that JSON escapes.
_MOVING_TO = Query(
    select(_O.id)
    .where(_LIVE, func.replace(_O.targets, bindparam("target", type_=schema.NAME), "") != _O.targets)
    .order_by(_O.id)
)

_MOVES = Query(select(_O.targets, _O.done).where(_LIVE, _O.status == Status.STARTED.value, _O.targets.is_not(None)))
_ANNOUNCED_HOSTS = Query(
    select(_O.host)
    .where(_LIVE, _O.status == Status.SCHEDULED.value)
    .where(or_(*(_O.kind == kind.value for kind in Kind if kind.traits.keeps_others_away)))
    .distinct()
)

_PUT = Upsert(schema.operations, fixed=("kind", "created_at", "author", "reason", "rollout", "notice"))
_DUE = Query(
    select(_O.id)
    .where(_LIVE, _O.due_at <= bindparam("now"))
    .where(_O.claimed_until.is_(None) | (_O.claimed_until <= bindparam("now")))
    .order_by(_O.not_before, _O.created_at, _O.id)
    .limit(bindparam("limit"))
)
_NEXT_UNCLAIMED = Query(
    select(_O.due_at)
    .where(_LIVE, _O.due_at.is_not(None), _O.claimed_until.is_(None))
    .order_by(_O.due_at)
    .limit(bindparam("limit"))
)
_NEXT_CLAIMED = Query(
    select(func.min(case((_O.due_at > _O.claimed_until, _O.due_at), else_=_O.claimed_until))).where(
        _LIVE, _O.due_at.is_not(None), _O.claimed_by.is_not(None)
    )
)
_WAKE = Query(
    update(schema.operations)
    .where(_LIVE, _O.held, _O.status == Status.SCHEDULED.value, _O.due_at > bindparam("now"))
    .where(_O.id.in_(select(_E.operation).where(Among(_E.scope, "names"), _E.ended_at.is_(None))))
    .values(due_at=bindparam("now"))
)
_REPLAN = Query(
    update(schema.operations)
    .where(_LIVE, _O.status == Status.PLANNED.value, _O.due_at > bindparam("now"))
    .where(_O.host.in_(select(_V.host).where(Among(_V.scope, "names"))))
    .values(due_at=bindparam("now"))
)
_WAKE_HELD = Query(
    update(schema.operations).where(_LIVE, _O.held, _O.due_at > bindparam("now")).values(due_at=bindparam("now"))
)
_RENEW = Query(
    update(schema.operations)
    .where(_O.claimed_by == bindparam("process"), Among(_O.id, "names"))
    .values(claimed_until=bindparam("until"))
    .returning(_O.id)
)
_FREE = {"claimed_by": None, "claimed_until": None}
_RELEASE = Query(update(schema.operations).where(_O.claimed_by == bindparam("process")).values(_FREE))
_RELEASE_ALL = Query(update(schema.operations).where(_O.claimed_by.is_not(None)).values(_FREE))

_ANNOUNCED = _O.not_before + _O.clock_jumped > bindparam("before")
_WITHHOLD = Query(
    update(schema.operations)
    .where(_LIVE, _O.status == Status.SCHEDULED.value, _ANNOUNCED)
    .values(clock_jumped=_O.clock_jumped + bindparam("by"))
)
_PROLONG = Query(
    update(schema.operations)
    .where(_O.claimed_by.is_not(None), _O.claimed_until > bindparam("before"))
    .values(claimed_until=_O.claimed_until + bindparam("by"))
)

_KINDS = {kind.value: kind for kind in Kind}
STATUSES = {status.value: status for status in Status}
_names = msgspec.json.Decoder(tuple[str, ...])
_texts = msgspec.json.Decoder(dict[str, str])
_encode = msgspec.json.Encoder().encode


def operation(row: Row) -> Operation:
    return Operation(
        id=row[0],
        kind=_KINDS[row[1]],
        host=row[2],
        vms=_names.decode(row[3]),
        status=STATUSES[row[4]],
        created_at=moments.required(row[5]),
        not_before=moments.required(row[6]),
        started_at=moments.optional(row[7]),
        ended_at=moments.optional(row[8]),
        due_at=moments.optional(row[9]),
        held=bool(row[10]),
        targets=_texts.decode(row[11]) if row[11] else {},
        done=_names.decode(row[12]) if row[12] else (),
        failures=_texts.decode(row[13]) if row[13] else {},
        attempt=row[14],
        claimed_by=row[15],
        claimed_until=moments.optional(row[16]),
        by=row[17],
        reason=row[18],
        rollout=row[19],
        clock_jumped=timedelta(microseconds=row[20]),
        notice=timedelta(microseconds=row[21]),
    )


def put(executor: Executor, operations: Iterable[Operation]) -> None:
    executor.upsert(_PUT, [_row(operation) for operation in operations])


def _row(operation: Operation) -> Row:
    return (
        operation.id,
        str(operation.kind),
        operation.host,
        _encode(operation.vms).decode(),
        str(operation.status),
        moments.to_number(operation.created_at),
        moments.to_number(operation.not_before),
        moments.to_number(operation.started_at),
        moments.to_number(operation.ended_at),
        moments.to_number(operation.due_at),
        operation.held,
        _encode(operation.targets).decode() if operation.targets else None,
        _encode(operation.done).decode() if operation.done else None,
        _encode(operation.failures).decode() if operation.failures else None,
        operation.attempt,
        operation.claimed_by,
        moments.to_number(operation.claimed_until),
        operation.by,
        operation.reason,
        operation.rollout,
        moments.duration_to_number(operation.clock_jumped),
        operation.notice // moments.MICROSECOND,
    )


def due(executor: Executor, now: datetime, limit: int) -> list[str]:
    return [row[0] for row in executor.rows(_DUE, now=moments.to_number(now), limit=limit)]


def next_due(executor: Executor, now: datetime) -> datetime | None:
    rows = (executor.row(_NEXT_UNCLAIMED, limit=1), executor.row(_NEXT_CLAIMED))
    numbers = [row[0] for row in rows if row is not None and row[0] is not None]
    return max(now, moments.required(min(numbers))) if numbers else None


def moving_to(executor: Executor, host: str) -> list[str]:
    return [row[0] for row in executor.rows(_MOVING_TO, target=":" + _encode(host).decode())]


def moves(executor: Executor) -> dict[str, str]:
    """VMs on their way, and where to."""
    found: dict[str, str] = {}
    for targets, done in executor.rows(_MOVES):
        arrived = _names.decode(done) if done else ()
        found.update((name, host) for name, host in _texts.decode(targets).items() if name not in arrived)
    return found


def announced_hosts(executor: Executor) -> list[str]:
    return [row[0] for row in executor.rows(_ANNOUNCED_HOSTS)]


def wake(executor: Executor, scopes: Collection[str], now: datetime) -> int:
    return executor.run(_WAKE, names=list(scopes), now=moments.to_number(now))


def replan(executor: Executor, scopes: Collection[str], now: datetime) -> int:
    return executor.run(_REPLAN, names=list(scopes), now=moments.to_number(now))


def wake_held(executor: Executor, now: datetime) -> int:
    return executor.run(_WAKE_HELD, now=moments.to_number(now))


def renew_claims(executor: Executor, process: str, ids: Collection[str], until: datetime) -> list[str]:
    rows = executor.rows(_RENEW, process=process, names=list(ids), until=moments.to_number(until))
    return [row[0] for row in rows]


def withhold(executor: Executor, by: timedelta, before: datetime) -> None:
    bound = {"by": moments.duration_to_number(by), "before": moments.to_number(before)}
    executor.run(_WITHHOLD, **bound)
    executor.run(_PROLONG, **bound)


def release_claims(executor: Executor, process: str | None) -> None:
    if process is None:
        executor.run(_RELEASE_ALL)
    else:
        executor.run(_RELEASE, process=process)


def page(executor: Executor, after: str | None, limit: int, live: bool | None, **how: Any) -> list[Operation]:
    rows = _LISTING.page(executor, after=after, limit=limit, **living(live), **how)
    return [operation(row) for row in rows]


def _tells(operation: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether one of the scopes of a selector was told of it."""
    told = schema.events.alias()
    is_of_last = former.of_last_bearer(told.c.scope, told.c.created_at)
    return exists(select(told.c.id).where(told.c.operation == operation, Matching(told.c.scope), is_of_last))


_LISTING = Listing(
    select(schema.operations),
    schema.operations,
    by=("created_at", "id"),
    filters={
        "live": lambda columns: columns.ended_at.is_(None),
        "ended": lambda columns: columns.ended_at.is_not(None),
        "status": equal("status", "status"),
        "host": equal("host", "host"),
        "kind": equal("kind", "kind"),
        "rollout": equal("rollout", "rollout"),
        "seen": lambda columns: _tells(columns.id),
    },
)
