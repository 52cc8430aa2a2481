"""Events in their table, and which VMs they named."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from forenotice.core.draft import Changes
from forenotice.core.operations import Event, EventType, Kind, Status
from forenotice.core.selectors import Selector
from forenotice.store import fleet, schema
from forenotice.store.queries import Listed, Listing, patterns
from forenotice.store.rows import Mapper, Row

OF_LATEST = fleet.of_latest("events.scope", "events.created_at")
_MADE_WITH = ("operation", "scope", "update_domain", "type", "source", "description", "duration", "created_at")
_EVENTS = Mapper(schema.events.c, Event)
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
    duration: int


_OF_OPERATION = ("kind", "started_at")
_SUMMARY_COLUMNS = [
    (schema.operations if name in _OF_OPERATION else schema.events).c[name] for name in EventSummary._fields
]
_SUMMARIES = Mapper(_SUMMARY_COLUMNS, EventSummary)
_SUMMARY = ", ".join(map(str, _SUMMARY_COLUMNS))
_WITH_OPERATIONS = "events JOIN operations ON operations.id = events.operation"
_URGENT = (
    "CASE WHEN events.status = 'Started' THEN 0 ELSE 1 END, events.not_before, events.created_at, events.id"
    " LIMIT :limit OFFSET :offset"
)


class Events(Listed[Event, EventFilter]):
    """Listed by age."""

    _list = Listing(
        schema.events,
        read,
        by=("created_at", "id"),
        # Names hold no character that JSON escapes, so the quoted name is found exactly where it is listed.
        vm="{0}.id IN (SELECT event FROM vm_operations WHERE vm_operations.vm = :vm)"
        " AND replace({0}.resources, '\"' || :vm || '\"', '') <> {0}.resources",
        seen="FITS({0}.scope, seen) AND " + fleet.of_latest("{0}.scope", "{0}.created_at"),
    )

    def page(
        self, after: str | None, limit: int, wanted: EventFilter | None = None, *, descending: bool = False
    ) -> list[Event]:
        return super().page(None if after is None else after.upper(), limit, wanted, descending=descending)

    def live(
        self, limit: int, *, offset: int = 0, scope: str | None = None, seen: Selector | None = None
    ) -> list[EventSummary]:
        """Of one scope, or of those that are `seen`: what has started first, then by NotBefore."""
        query = f"SELECT {_SUMMARY} FROM {_WITH_OPERATIONS} WHERE events.ended_at IS NULL"
        found = self._selected(query, f"ORDER BY {_URGENT}", scope, seen, limit=limit, offset=offset)
        return [_SUMMARIES.read(row) for row in found]

    def ended(
        self, since: datetime, limit: int, *, scope: str | None = None, seen: Selector | None = None
    ) -> list[EventSummary]:
        """At that moment or later, the last first."""
        query = f"SELECT {_SUMMARY} FROM {_WITH_OPERATIONS} WHERE events.ended_at >= :since"
        order = "ORDER BY events.ended_at DESC, events.id DESC LIMIT :limit"
        return [_SUMMARIES.read(row) for row in self._selected(query, order, scope, seen, limit=limit, since=since)]

    def counts(self, *, scope: str | None = None, seen: Selector | None = None) -> dict[Status, int]:
        """How many events are live, by status."""
        query = "SELECT status, count(*) FROM events WHERE events.ended_at IS NULL"
        return {Status(status): count for status, count in self._selected(query, "GROUP BY status", scope, seen)}

    def counts_by_type(self) -> dict[tuple[str, str], int]:
        """How many events are live, by type and status."""
        query = "SELECT type, status, count(*) FROM events WHERE ended_at IS NULL GROUP BY type, status"
        return {(kind, status): count for kind, status, count in self._db.rows(query)}

    def resources(self, scopes: Collection[str]) -> list[tuple[Status, tuple[str, ...]]]:
        """The live events of these scopes, each as its status and the VMs that it names."""
        query = "SELECT status, resources FROM events WHERE scope IN :names AND ended_at IS NULL"
        return [(Status(status), _names(resources)) for status, resources in self._db.rows(query, names=scopes)]

    def on_host(self, host: str, limit: int) -> dict[str, str]:
        """Ids of live events about what is done to this host or on it, each with its operation's; the started first."""
        found: Iterable[Any] = self._db.rows(
            f"SELECT events.id, events.operation FROM {_WITH_OPERATIONS} WHERE operations.host = :host"
            " AND operations.ended_at IS NULL AND events.ended_at IS NULL"
            " ORDER BY operations.status DESC, operations.not_before, operations.created_at, events.id LIMIT :limit",
            host=host,
            limit=limit,
        )
        return dict(found)

    def put(self, events: Collection[Event]) -> None:
        rows = [_EVENTS.row(event) for event in events]
        self._db.upsert(schema.events, rows, fixed=(*_MADE_WITH, "status", "ended_at"))
        # Status only moves forward: what is Scheduled has been so from the start. Apart, so that an approval touches
        # no index.
        if moved := [event for event in events if event.status is not Status.SCHEDULED]:
            self._db.run_each(
                "UPDATE events SET status = :status, ended_at = :ended WHERE id = :id",
                [{"id": event.id, "status": event.status, "ended": event.ended_at} for event in moved],
            )

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
        self._db.upsert(schema.vm_operations, list(told.values()))
        self._db.upsert(schema.vm_operations, untold, fixed=("event",))

    def _selected(
        self, query: str, order: str, scope: str | None, seen: Selector | None, **parameters: Any
    ) -> Iterable[Row]:
        if scope is not None:
            query += " AND events.scope = :scope"
        if seen is not None:
            # Named scopes are found by their index, although each is looked up: they may have few events among
            # millions.
            named = " AND events.scope IN :seen_wanted" if len(seen.named) == len(seen.wanted) else ""
            query += f"{named} AND FITS(events.scope, seen) AND {OF_LATEST}"
        return self._db.rows(f"{query} {order}", scope=scope, **parameters, **patterns(seen))
