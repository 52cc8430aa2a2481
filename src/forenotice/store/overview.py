"""What is going on at a glance: live events, the most urgent first, and those that ended last, as small rows."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Select, bindparam, case, func, select

from forenotice.core.operations import EventType, Kind, Status
from forenotice.core.selectors import Selector
from forenotice.store import former, moments, schema
from forenotice.store.queries import Among, Executor, Matching, Query, Row, patterns

_E, _O = schema.events.c, schema.operations.c
_LIVE = _E.ended_at.is_(None)


class Life(NamedTuple):
    """An event, and of its operation as much as a picture shows. Thousands are made for one page: so it is no more."""

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


_ROWS = select(
    *(_E.id, _E.operation, _E.scope, _E.resources, _E.type, _E.status, _E.created_at, _E.not_before),
    *(_E.ended_at, _O.kind, _O.started_at),
).join_from(schema.events, schema.operations, _O.id == _E.operation)
_URGENT = (case((_E.status == Status.STARTED.value, 0), else_=1), _E.not_before, _E.created_at, _E.id)
_COUNTS = select(_E.status, func.count()).where(_LIVE).group_by(_E.status)

# By the index of scopes where they are named, be it at the price of a look at each: theirs may be few of millions.
_FILTERS: Mapping[str, ColumnElement[bool]] = {
    "scope": _E.scope == bindparam("scope"),
    "named": Among(_E.scope, "named"),
    "seen": Matching(_E.scope) & former.of_last_bearer(_E.scope, _E.created_at),
}
_TYPES = {each.value: each for each in EventType}
_STATUSES = {each.value: each for each in Status}
_KINDS = {each.value: each for each in Kind}
_names = msgspec.json.Decoder(tuple[str, ...])


class Overview:
    """Of one scope, or of those that are `seen`; None: of all."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def live(
        self, limit: int, *, offset: int = 0, scope: str | None = None, seen: Selector | None = None
    ) -> list[Life]:
        """What has started first, then by NotBefore."""
        return self._lives(_live, scope, seen, limit=limit, offset=offset)

    def ended(
        self, since: datetime, limit: int, *, scope: str | None = None, seen: Selector | None = None
    ) -> list[Life]:
        """At that moment or later, the last first."""
        return self._lives(_ended, scope, seen, limit=limit, since=moments.to_number(since))

    def counts(self, *, scope: str | None = None, seen: Selector | None = None) -> dict[Status, int]:
        """How many events are live, by status."""
        given = _given(scope, seen)
        rows = self._executor.rows(_counts(frozenset(given)), **_values(given))
        return {_STATUSES[row[0]]: row[1] for row in rows}

    def _lives(self, query: Any, scope: str | None, seen: Selector | None, **parameters: Any) -> list[Life]:
        given = _given(scope, seen)
        return [_life(row) for row in self._executor.rows(query(frozenset(given)), **parameters, **_values(given))]


def _given(scope: str | None, seen: Selector | None) -> dict[str, Any]:
    """The filters, by name."""
    given: dict[str, Any] = {} if scope is None else {"scope": scope}
    if seen is not None:
        given["seen"] = seen
        if len(seen.named) == len(seen.wanted):
            given["named"] = list(seen.named)
    return given


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    seen = given.get("seen")
    return {**{name: value for name, value in given.items() if name != "seen"}, **patterns(seen)}


@cache
def _live(given: frozenset[str]) -> Query:
    rows = _filtered(_ROWS.where(_LIVE), given).order_by(*_URGENT)
    return Query(rows.limit(bindparam("limit")).offset(bindparam("offset")))


@cache
def _ended(given: frozenset[str]) -> Query:
    rows = _filtered(_ROWS.where(_E.ended_at >= bindparam("since")), given)
    return Query(rows.order_by(_E.ended_at.desc(), _E.id.desc()).limit(bindparam("limit")))


@cache
def _counts(given: frozenset[str]) -> Query:
    return Query(_filtered(_COUNTS, given))


def _filtered(rows: Select[Any], given: frozenset[str]) -> Select[Any]:
    return rows.where(*(_FILTERS[name] for name in sorted(given)))


def _life(row: Row) -> Life:
    return Life(
        row[0],
        row[1],
        row[2],
        _names.decode(row[3]),
        _TYPES[row[4]],
        _STATUSES[row[5]],
        moments.required(row[6]),
        moments.required(row[7]),
        moments.optional(row[8]),
        _KINDS[row[9]],
        moments.optional(row[10]),
    )
