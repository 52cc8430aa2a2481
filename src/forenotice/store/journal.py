"""The journal: entries at positions that grow by one in the order of commits."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    bindparam,
    case,
    cast,
    false,
    func,
    literal_column,
    select,
    union,
)

from forenotice.core.journal import SYSTEM, Entry
from forenotice.core.selectors import Selector
from forenotice.store import former, moments, schema
from forenotice.store.pages import WILD
from forenotice.store.queries import Executor, Matching, Query, Row, Upsert, patterns

_J, _N, _E, _O = schema.journal.c, schema.vm_operations.c, schema.events.c, schema.operations.c

_APPEND = Upsert(schema.journal)
_LAST = Query(select(_J.position, _J.at).order_by(_J.position.desc()).limit(bindparam("limit")))


def _by_halves() -> Select[tuple[int]]:
    halves = select(
        cast(literal_column("0"), BigInteger).label("low"), (func.coalesce(func.max(_J.position), 0) + 1).label("high")
    ).cte("halves", recursive=True)
    low, high = halves.c.low, halves.c.high
    middle, there = (low + high) // 2, schema.journal.alias()
    at = select(there.c.at).where(there.c.position >= middle).order_by(there.c.position).limit(literal_column("1"))
    is_before = func.coalesce(at.scalar_subquery() < bindparam("moment"), false())
    halves = halves.union_all(
        select(case((is_before, middle + 1), else_=low), case((is_before, high), else_=middle)).where(low < high)
    )
    return select(func.min(halves.c.high))


_FIRST_SINCE = Query(_by_halves())
_FILTERS: dict[str, ColumnElement[bool]] = {
    "after": _J.position > bindparam("after"),
    "before": _J.position < bindparam("before"),
    "action": _J.action == bindparam("action"),
    "actions": func.substr(_J.action, 1, func.length(bindparam("actions", type_=schema.NAME)))
    == bindparam("actions", type_=schema.NAME),
    "without": func.substr(_J.action, 1, func.length(bindparam("without", type_=schema.NAME)))
    != bindparam("without", type_=schema.NAME),
    "scope": _J.scope == bindparam("scope"),
    # Every event is of an operation, by which its entries are found.
    "event": (_J.event == bindparam("event"))
    & (_J.operation == select(_E.operation).where(_E.id == bindparam("event")).scalar_subquery()),
    "operation": _J.operation == bindparam("operation"),
    "host": _J.host == bindparam("host"),
    "rollout": (_J.rollout == bindparam("rollout"))
    | _J.operation.in_(select(_O.id).where(_O.rollout == bindparam("rollout"))),
    # In the words of the index, without which it would not be used; what the service did itself is everywhere.
    "author": (_J.author == bindparam("author")) & (_J.author != literal_column(f"'{SYSTEM}'")),
    "system": _J.author == bindparam("system"),
    "authors": (_J.author == bindparam("authors"))
    | (
        func.substr(_J.author, 1, func.length(bindparam("authors", type_=schema.NAME)) + 1)
        == bindparam("authors", type_=schema.NAME) + ":"
    ),
    "seen": Matching(_J.scope),
    "last_bearer": former.of_last_bearer(_J.scope, _J.at),
}
_told = select(_J.position).join(schema.vm_operations, _J.operation == _N.operation).where(_N.vm == bindparam("vm"))
# Each found by an index of its own.
_PARTS = {
    "vm": (
        select(_J.position).where(_J.vm == bindparam("vm")),
        _told.where(_J.event == _N.event),
        _told.where(_J.event.is_(None), _J.vm.is_(None)),
    ),
    "rollout": (
        select(_J.position).where(_J.rollout == bindparam("rollout")),
        select(_J.position).join(schema.operations, _J.operation == _O.id).where(_O.rollout == bindparam("rollout")),
    ),
}
_WINDOW, _WIDER = 200_000, 8
"""A VM's entries are looked for among so many positions first, then among so many times more, and so on."""
_FEW = 20
"""Scopes that are asked for one by one."""

_encode = msgspec.json.Encoder().encode
_data = msgspec.json.Decoder(dict[str, object])


def last(executor: Executor) -> tuple[int, datetime] | None:
    row = executor.row(_LAST, limit=1)
    return None if row is None else (row[0], moments.required(row[1]))


def append(executor: Executor, entries: Sequence[Entry], position: int) -> int:
    """Behind that position; gives the newest."""
    executor.upsert(_APPEND, [_row(number, entry) for number, entry in enumerate(entries, position + 1)])
    return position + len(entries)


def page(
    executor: Executor,
    *,
    limit: int,
    newest_first: bool,
    since: datetime | None,
    until: datetime | None,
    seen: Selector | None,
    filters: Mapping[str, Any],
) -> list[tuple[int, Entry]]:
    """Entries that match every filter; one that is None does not filter."""
    given = {name: value for name, value in filters.items() if value is not None}
    if since is not None:
        given["after"] = max(given.get("after", 0), first_since(executor, since) - 1)
    if until is not None:
        first = first_since(executor, until)
        given["before"] = min(given.get("before", first), first)
    if given.get("action", "").endswith("."):
        given["actions"] = given.pop("action")
    if seen is not None and ":" not in given.get("author", ":"):
        # To whoever sees some scopes alone, others are shown by what they are.
        given["authors"] = given.pop("author")
    if given.get("author") == SYSTEM:
        given["system"] = given.pop("author")
    rows = (_rows_of_vm if "vm" in given else _rows)(executor, limit, newest_first, given, seen)
    return [(row[0], _entry(row)) for row in rows]


def _rows_of_vm(
    executor: Executor, limit: int, newest_first: bool, given: dict[str, Any], seen: Selector | None
) -> list[Row]:
    """Window by window: of a VM that much has happened to, only what is near is put in order."""
    after, before = given.pop("after"), given.pop("before", None)
    if before is None:
        newest = last(executor)
        before = newest[0] + 1 if newest else 1
    found: list[Row] = []
    window = _WINDOW
    while len(found) < limit and after + 1 < before:
        start, end = (max(after, before - window), before) if newest_first else (after, min(before, after + window))
        found += _rows(executor, limit - len(found), newest_first, given | {"after": start, "before": end}, seen)
        after, before = (after, start + 1) if newest_first else (end - 1, before)
        window *= _WIDER
    return found


def _rows(
    executor: Executor, limit: int, newest_first: bool, given: dict[str, Any], seen: Selector | None
) -> Iterable[Row]:
    if seen is not None and "vm" not in given and (scopes := _named_by(seen)) is not None:
        return _rows_of_scopes(executor, limit, newest_first, given, scopes)
    names = {*given, *(() if seen is None else ("seen", "last_bearer"))}
    return executor.rows(_page(frozenset(names), newest_first), limit=limit, **given, **patterns(seen))


def _rows_of_scopes(
    executor: Executor, limit: int, newest_first: bool, given: dict[str, Any], scopes: Iterable[str]
) -> list[Row]:
    """Scope by scope, each by the index: those who have few entries need not look through everybody's."""
    query = _page(frozenset({*given, "scope", "last_bearer"}), newest_first)
    found: list[Row] = []
    for scope in scopes:
        if given.get("scope", scope) == scope:
            found += executor.rows(query, limit=limit, **given | {"scope": scope})
    return sorted(found, key=itemgetter(0), reverse=newest_first)[:limit]


def _named_by(seen: Selector) -> list[str] | None:
    """The scopes that it fits, if it names few and all without a wildcard."""
    wild = any(char in pattern for pattern in seen.wanted for char in WILD)
    return None if wild or len(seen.wanted) > _FEW else [key for key in dict.fromkeys(seen.wanted) if key in seen]


@cache
def _page(filters: frozenset[str], newest_first: bool) -> Query:
    order = _J.position.desc() if newest_first else _J.position
    noun = next((name for name in _PARTS if name in filters), "")
    wanted = [_FILTERS[name] for name in sorted(filters & _FILTERS.keys() - {noun})]
    if noun == "vm":
        # Put in order when it is found: PostgreSQL would bet on going through everybody's entries in order.
        every = union(*(part.where(*wanted) for part in _PARTS[noun])).cte().prefix_with("MATERIALIZED")
        place = every.c.position.desc() if newest_first else every.c.position
        wanted = [_J.position.in_(select(every.c.position).order_by(place).limit(bindparam("limit")))]
    elif noun:
        nearest = [part.where(*wanted).order_by(order).limit(bindparam("limit")).subquery() for part in _PARTS[noun]]
        found = union(*(select(part.c.position) for part in nearest)).subquery()
        wanted = [_J.position.in_(select(found.c.position))]
    return Query(select(schema.journal).where(*wanted).order_by(order).limit(bindparam("limit")))


def first_since(executor: Executor, moment: datetime) -> int:
    """A position from which on all entries are of this moment or later, and before which none is.

    By halves over the primary key: time never falls along it, so that no index of times has to be kept.
    """
    row = executor.row(_FIRST_SINCE, moment=moments.to_number(moment))
    assert row is not None
    position: int = row[0]
    return position


def _row(position: int, entry: Entry) -> Row:
    return (
        position,
        moments.to_number(entry.at),
        entry.action,
        entry.by,
        entry.scope,
        entry.event,
        entry.operation,
        entry.host,
        entry.vm,
        entry.rollout,
        _encode(entry.data).decode() if entry.data else None,
        entry.origin,
        entry.reason,
    )


def _entry(row: Row) -> Entry:
    return Entry(
        at=moments.required(row[1]),
        action=row[2],
        by=row[3],
        scope=row[4],
        event=row[5],
        operation=row[6],
        host=row[7],
        vm=row[8],
        rollout=row[9],
        data=_data.decode(row[10]) if row[10] else {},
        origin=row[11],
        reason=row[12],
    )
