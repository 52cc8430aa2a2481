"""Events in their table, and which VMs they named."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Select, bindparam, case, func, literal, select, update

from forenotice.core.draft import Changes
from forenotice.core.operations import Event, EventType, Kind, Status
from forenotice.core.selectors import Selector
from forenotice.store import fleet, rows, schema
from forenotice.store.pages import Listing
from forenotice.store.queries import Among, Matching, Query, Repository, Upsert, given, patterns
from forenotice.store.rows import Mapper, Row

_E, _O = schema.events.c, schema.operations.c
_LIVE = _E.ended_at.is_(None)
_OF_LATEST = fleet.of_latest(_E.scope, _E.created_at)

NAMED = Query(select(schema.events).where(Among(_E.id, "names")))
OF = Query(select(schema.events).where(Among(_E.operation, "names")))
OPERATIONS = Query(select(_E.operation).where(Among(_E.id, "names")))
# In a fixed order, so that an explanation does not change from one request to the next.
OF_IN_ORDER = Query(select(schema.events).where(Among(_E.operation, "names")).order_by(_E.scope, _E.id))
OF_LIVE_OPERATIONS = Query(select(schema.events).where(_E.operation.in_(select(_O.id).where(_O.ended_at.is_(None)))))
LIVE_IN = Query(select(schema.events).where(Among(_E.scope, "names"), _LIVE))
IN_THE_WAY_IN = Query(
    select(schema.events)
    .where(Among(_E.scope, "names"), _LIVE)
    .where((_E.status == Status.STARTED.value) | (_E.type == EventType.TERMINATE.value))
    .order_by(_E.created_at, _E.id)
)
"""Only events that have started can block others, and deletions can block later events."""
ENDED_IN = Query(select(schema.events).where(Among(_E.scope, "names"), _E.ended_at >= given.since, _OF_LATEST))

_MADE_WITH = ("operation", "scope", "update_domain", "type", "source", "description", "duration", "created_at")
_PUT = Upsert(schema.events, fixed=(*_MADE_WITH, "status", "ended_at"))
# Apart, so that an approval touches no index.
_MOVE_ON = Query(update(schema.events).where(_E.id == given.event).values(status=given.now, ended_at=given.ended))
_COUNTS_BY_TYPE = Query(select(_E.type, _E.status, func.count()).where(_LIVE).group_by(_E.type, _E.status))
_NAME_VMS = Upsert(schema.vm_operations, fixed=("event",))
_TELL_VMS = Upsert(schema.vm_operations)
_RESOURCES = Query(select(_E.status, _E.resources).where(Among(_E.scope, "names"), _LIVE))
_ON_HOST = Query(
    select(_E.id, _E.operation)
    .join_from(schema.events, schema.operations, _O.id == _E.operation)
    .where(_O.host == given.host, _O.ended_at.is_(None), _LIVE)
    .order_by(_O.status.desc(), _O.not_before, _O.created_at, _E.id)
    .limit(given.limit)
)
_EVENTS = Mapper(_E, Event)
read = _EVENTS.read
_names = msgspec.json.Decoder(tuple[str, ...]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    live: bool | None = None
    status: Status | None = None
    type: EventType | None = None
    scope: str | None = None
    vm: str | None = None
    """Those that name it."""
    seen: Selector | None = None


_VM = bindparam("vm", type_=schema.NAME)
_NAMING = select(schema.vm_operations.c.event).where(schema.vm_operations.c.vm == _VM)


def _names_still(resources: ColumnElement[str]) -> ColumnElement[bool]:
    # Names hold no character that JSON escapes, so the quoted name is found exactly where it is listed.
    return func.replace(resources, literal('"') + _VM + '"', "") != resources


_LIST = Listing(
    select(schema.events),
    schema.events,
    read,
    by=("created_at", "id"),
    vm=lambda columns: columns.id.in_(_NAMING) & _names_still(columns.resources),
    seen=lambda columns: Matching(columns.scope) & fleet.of_latest(columns.scope, columns.created_at),
)


class EventSummary(NamedTuple):
    """An event with as much of its operation as a picture shows. A page makes thousands of them."""

    id: str
    operation: str
    scope: str
    resources: tuple[str, ...]
    type: EventType
    status: Status
    created_at: datetime
    not_before: datetime
    ended_at: datetime | None
    kind: Kind
    started_at: datetime | None


_SUMMARY_COLUMNS = (
    *(_E.id, _E.operation, _E.scope, _E.resources, _E.type, _E.status, _E.created_at, _E.not_before),
    *(_E.ended_at, _O.kind, _O.started_at),
)
_SUMMARIES = Mapper(_SUMMARY_COLUMNS, EventSummary)
_SUMMARY = select(*_SUMMARY_COLUMNS).join_from(schema.events, schema.operations, _O.id == _E.operation)
_URGENT = (case((_E.status == Status.STARTED.value, 0), else_=1), _E.not_before, _E.created_at, _E.id)
_SELECTED: dict[str, Select[Any]] = {
    "live": _SUMMARY.where(_LIVE).order_by(*_URGENT).limit(given.limit).offset(given.offset),
    "ended": _SUMMARY.where(_E.ended_at >= given.since).order_by(_E.ended_at.desc(), _E.id.desc()).limit(given.limit),
    "counts": select(_E.status, func.count()).where(_LIVE).group_by(_E.status),
}
# Named scopes are found by their index, although each is looked up: they may have few events among millions.
_CONDITIONS: dict[str, ColumnElement[bool]] = {
    "scope": _E.scope == given.scope,
    "named": Among(_E.scope, "named"),
    "seen": Matching(_E.scope) & _OF_LATEST,
}


@cache
def selected(what: str, given: frozenset[str]) -> Query:
    return Query(_SELECTED[what].where(*(_CONDITIONS[name] for name in sorted(given))))


class Events(Repository):
    def page(
        self, after: str | None, limit: int, wanted: EventFilter | None = None, *, descending: bool = False
    ) -> list[Event]:
        """Oldest first, or `descending`, beyond the one with id `after`."""
        after = None if after is None else after.upper()
        return _LIST.page(self._executor, after, limit, wanted, descending=descending)

    def live(
        self, limit: int, *, offset: int = 0, scope: str | None = None, seen: Selector | None = None
    ) -> list[EventSummary]:
        """Of one scope, or of those that are `seen`: what has started first, then by NotBefore."""
        found = self._selected("live", scope, seen, limit=limit, offset=offset)
        return [_SUMMARIES.read(row) for row in found]

    def ended(
        self, since: datetime, limit: int, *, scope: str | None = None, seen: Selector | None = None
    ) -> list[EventSummary]:
        """At that moment or later, the last first."""
        found = self._selected("ended", scope, seen, limit=limit, since=rows.number(since))
        return [_SUMMARIES.read(row) for row in found]

    def counts(self, *, scope: str | None = None, seen: Selector | None = None) -> dict[Status, int]:
        """How many events are live, by status."""
        return {Status(status): count for status, count in self._selected("counts", scope, seen)}

    def counts_by_type(self) -> dict[tuple[str, str], int]:
        """How many events are live, by type and status."""
        return {(kind, status): count for kind, status, count in self._executor.rows(_COUNTS_BY_TYPE)}

    def resources(self, scopes: Collection[str]) -> list[tuple[Status, tuple[str, ...]]]:
        """The live events of these scopes, each as its status and the VMs that it names."""
        found = self._executor.rows(_RESOURCES, names=list(scopes))
        return [(Status(status), _names(resources)) for status, resources in found]

    def on_host(self, host: str, limit: int) -> dict[str, str]:
        """Ids of live events about what is done to this host or on it, each with its operation's; the started first."""
        return dict(self._executor.rows(_ON_HOST, host=host, limit=limit))

    def put(self, events: Collection[Event]) -> None:
        self._executor.upsert(_PUT, [_EVENTS.row(event) for event in events])
        # Status only moves forward: what is Scheduled has been so from the start.
        if moved := [event for event in events if event.status is not Status.SCHEDULED]:
            each = [
                {"event": event.id, "now": event.status.value, "ended": rows.number(event.ended_at)} for event in moved
            ]
            self._executor.run_each(_MOVE_ON, each)

    def put_names(self, changes: Changes, newest: datetime | None) -> None:
        """Which VMs operations name, and which event told each VM; kept when an operation drops the VM later.

        Settled when they are made, which is not before the newest entry.
        """
        told: dict[tuple[str, str], Row] = {}
        for event in changes.events.values():
            if newest is None or event.created_at >= newest:
                told.update(((vm, event.operation), (vm, event.operation, event.id)) for vm in event.resources)
        untold = [
            (vm, operation.id, None)
            for operation in changes.operations.values()
            if newest is None or operation.created_at >= newest
            for vm in operation.vms
            if (vm, operation.id) not in told
        ]
        self._executor.upsert(_TELL_VMS, list(told.values()))
        self._executor.upsert(_NAME_VMS, untold)

    def _selected(self, what: str, scope: str | None, seen: Selector | None, **parameters: Any) -> Iterable[Row]:
        given: dict[str, Any] = {} if scope is None else {"scope": scope}
        if seen is not None and len(seen.named) == len(seen.wanted):
            given["named"] = list(seen.named)
        names = frozenset(given) | ({"seen"} if seen is not None else set())
        return self._executor.rows(selected(what, names), **parameters, **given, **patterns(seen))
