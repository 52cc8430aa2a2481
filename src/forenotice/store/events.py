"""Events in their table."""

from collections.abc import Collection
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, bindparam, func, literal, select, update

from forenotice.core.operations import Event, EventType, Source, Status
from forenotice.store import former, moments, schema
from forenotice.store.operations import STATUSES
from forenotice.store.pages import Listing, equal, living
from forenotice.store.queries import Among, Executor, Matching, Query, Row, Upsert

_E, _O = schema.events.c, schema.operations.c
_LIVE = _E.ended_at.is_(None)
_BEARERS = former.of_last_bearer(_E.scope, _E.created_at)

NAMED = Query(select(schema.events).where(Among(_E.id, "names")))
OF = Query(select(schema.events).where(Among(_E.operation, "names")))
OPERATIONS = Query(select(_E.operation).where(Among(_E.id, "names")))
# In an order of their own, so that whoever asks is told the same in the same words.
OF_IN_ORDER = Query(select(schema.events).where(Among(_E.operation, "names")).order_by(_E.scope, _E.id))
OF_LIVE_OPERATIONS = Query(select(schema.events).where(_E.operation.in_(select(_O.id).where(_O.ended_at.is_(None)))))
LIVE_IN = Query(select(schema.events).where(Among(_E.scope, "names"), _LIVE))
IN_THE_WAY_IN = Query(
    select(schema.events)
    .where(Among(_E.scope, "names"), _LIVE)
    .where((_E.status == Status.STARTED.value) | (_E.type == EventType.TERMINATE.value))
    .order_by(_E.created_at, _E.id)
)
"""Only what has started is in anybody's way, and a deletion in that of later ones."""
ENDED_IN = Query(select(schema.events).where(Among(_E.scope, "names"), _E.ended_at >= bindparam("since"), _BEARERS))

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


def put(executor: Executor, events: Collection[Event]) -> None:
    executor.upsert(_PUT, [_row(event) for event in events])
    # Status only moves forward: what is Scheduled has been so from the start.
    if moved := [event for event in events if event.status is not Status.SCHEDULED]:
        executor.run_each(_MOVE_ON, [_moved(event) for event in moved])


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


def counts(executor: Executor) -> dict[tuple[str, str], int]:
    return {(row[0], row[1]): row[2] for row in executor.rows(_COUNTS)}


def page(
    executor: Executor, after: str | None, limit: int, live: bool | None, vm: str | None, **how: Any
) -> list[Event]:
    after = None if after is None else after.upper()
    rows = _LISTING.page(executor, after=after, limit=limit, vm=vm, **living(live), **how)
    return [event(row) for row in rows]


_VM = bindparam("vm", type_=schema.NAME)
_NAMING = select(schema.vm_operations.c.event).where(schema.vm_operations.c.vm == _VM)


def _names_still(resources: ColumnElement[str]) -> ColumnElement[bool]:
    # Names hold no character that JSON escapes, so the quoted name is found exactly where it is listed.
    return func.replace(resources, literal('"') + _VM + '"', "") != resources


_LISTING = Listing(
    select(schema.events),
    schema.events,
    by=("created_at", "id"),
    filters={
        "live": lambda columns: columns.ended_at.is_(None),
        "ended": lambda columns: columns.ended_at.is_not(None),
        "status": equal("status", "status"),
        "type": equal("type", "type"),
        "scope": equal("scope", "scope"),
        "vm": lambda columns: columns.id.in_(_NAMING) & _names_still(columns.resources),
        "seen": lambda columns: Matching(columns.scope) & former.of_last_bearer(columns.scope, columns.created_at),
    },
)
