"""Events in their table."""

from collections.abc import Collection
from functools import cache

import msgspec
from sqlalchemy import bindparam, func, select, tuple_, update

from notbefore.core.operations import Event, EventType, Source, Status
from notbefore.core.selecting import Selector
from notbefore.store import moments, schema
from notbefore.store.operations import STATUSES
from notbefore.store.session import Among, Matching, Query, Row, Session, Upsert, patterns

_E, _O = schema.events.c, schema.operations.c
_LIVE = _E.ended_at.is_(None)

NAMED = Query(select(schema.events).where(Among(_E.id, "names")))
OF = Query(select(schema.events).where(Among(_E.operation, "names")))
OF_LIVE_OPERATIONS = Query(select(schema.events).where(_E.operation.in_(select(_O.id).where(_O.ended_at.is_(None)))))
LIVE_IN = Query(select(schema.events).where(Among(_E.scope, "names"), _LIVE))
ENDED_IN = Query(select(schema.events).where(Among(_E.scope, "names"), _E.ended_at >= bindparam("since")))

_MADE_WITH = ("operation", "scope", "update_domain", "type", "source", "description", "duration", "created_at")
_PUT = Upsert(schema.events, fixed=(*_MADE_WITH, "status", "ended_at"))
# Apart, so that an approval touches no index.
_MOVE_ON = Query(
    update(schema.events)
    .where(_E.id == bindparam("event"))
    .values(status=bindparam("now"), ended_at=bindparam("ended"))
)
_COUNTS = Query(select(_E.type, _E.status, func.count()).where(_LIVE).group_by(_E.type, _E.status))

_TYPES = {kind.value: kind for kind in EventType}
_SOURCES = {source.value: source for source in Source}
_names = msgspec.json.Decoder(tuple[str, ...])
_encode = msgspec.json.Encoder().encode


def event(row: Row) -> Event:
    return Event(
        id=row[0],
        operation=row[1],
        scope=row[2],
        resources=_names.decode(row[3]),
        update_domain=row[4],
        type=_TYPES[row[5]],
        source=_SOURCES[row[6]],
        description=row[7],
        duration=row[8],
        status=STATUSES[row[9]],
        created_at=moments.required(row[10]),
        not_before=moments.required(row[11]),
        approved_at=moments.optional(row[12]),
        approved_by=row[13],
        implied=bool(row[14]),
        ended_at=moments.optional(row[15]),
    )


def put(session: Session, events: Collection[Event]) -> None:
    session.upsert(_PUT, [_row(event) for event in events])
    # Status only moves forward: what is Scheduled has been so from the start.
    if moved := [event for event in events if event.status is not Status.SCHEDULED]:
        session.run_each(_MOVE_ON, [_moved(event) for event in moved])


def _moved(event: Event) -> dict[str, object]:
    return {"event": event.id, "now": str(event.status), "ended": moments.to_number(event.ended_at)}


def _row(event: Event) -> Row:
    return (
        event.id,
        event.operation,
        event.scope,
        _encode(event.resources).decode(),
        event.update_domain,
        str(event.type),
        str(event.source),
        event.description,
        event.duration,
        str(event.status),
        moments.to_number(event.created_at),
        moments.to_number(event.not_before),
        moments.to_number(event.approved_at),
        event.approved_by,
        event.implied,
        moments.to_number(event.ended_at),
    )


def counts(session: Session) -> dict[tuple[str, str], int]:
    return {(row[0], row[1]): row[2] for row in session.rows(_COUNTS)}


def page(
    session: Session,
    after: str | None,
    limit: int,
    live: bool | None,
    scope: str | None,
    vm: str | None,
    seen: Selector | None,
) -> list[Event]:
    query = _page(after is not None, live, scope is not None, vm is not None, seen is not None)
    quoted = None if vm is None else _encode(vm).decode()
    after = None if after is None else after.upper()
    rows = session.rows(query, after=after, limit=limit, scope=scope, vm=quoted, **patterns(seen))
    return [event(row) for row in rows]


@cache
def _page(after: bool, live: bool | None, by_scope: bool, by_vm: bool, by_selector: bool) -> Query:
    query = select(schema.events)
    if by_selector:
        query = query.where(Matching(_E.scope))
    if after:
        last = schema.events.alias("last")
        place = select(last.c.created_at, last.c.id).where(last.c.id == bindparam("after"))
        if by_selector:
            place = place.where(Matching(last.c.scope))
        query = query.where(tuple_(_E.created_at, _E.id) > place.scalar_subquery())
    if live is not None:
        query = query.where(_LIVE if live else ~_LIVE)
    if by_scope:
        query = query.where(_E.scope == bindparam("scope"))
    if by_vm:
        # Names hold no character that JSON escapes, so the quoted name is found exactly where it is listed.
        query = query.where(func.replace(_E.resources, bindparam("vm"), "") != _E.resources)
    return Query(query.order_by(_E.created_at, _E.id).limit(bindparam("limit")))
