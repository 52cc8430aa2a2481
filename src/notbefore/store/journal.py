"""The journal: entries at positions that grow by one in the order of commits."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, bindparam, func, select, union

from notbefore.core.journal import Entry
from notbefore.core.selecting import Selector
from notbefore.store import moments, schema
from notbefore.store.session import Matching, Query, Row, Session, Upsert, patterns

_J, _N, _E = schema.journal.c, schema.vm_operations.c, schema.events.c

_APPEND = Upsert(schema.journal)
_LAST = Query(select(_J.position, _J.at).order_by(_J.position.desc()).limit(bindparam("limit")))
_FROM = Query(
    select(_J.position, _J.at).where(_J.position >= bindparam("least")).order_by(_J.position).limit(bindparam("limit"))
)

_FILTERS: dict[str, ColumnElement[bool]] = {
    "after": _J.position > bindparam("after"),
    "before": _J.position < bindparam("before"),
    "action": _J.action == bindparam("action"),
    "actions": func.substr(_J.action, 1, func.length(bindparam("actions", type_=schema.NAME)))
    == bindparam("actions", type_=schema.NAME),
    "scope": _J.scope == bindparam("scope"),
    "event": _J.event == bindparam("event"),
    "host": _J.host == bindparam("host"),
    "rollout": _J.rollout == bindparam("rollout"),
    "author": _J.author == bindparam("author"),
    "seen": Matching(_J.scope),
}
# What is found in several places, each by an index of its own. An operation's index leaves out the entries of its
# events, which are most of them and have theirs.
_PLACES: dict[str, tuple[Select[tuple[int]], ...]] = {
    "operation": (
        select(_J.position).where(_J.operation == bindparam("operation"), _J.event.is_(None)),
        select(_J.position).where(_J.event.in_(select(_E.id).where(_E.operation == bindparam("operation")))),
    ),
    "vm": (
        select(_J.position).where(_J.vm == bindparam("vm")),
        select(_J.position).where(_J.event.in_(select(_N.event).where(_N.vm == bindparam("vm")))),
        select(_J.position).where(
            _J.operation.in_(select(_N.operation).where(_N.vm == bindparam("vm"))),
            _J.event.is_(None),
            _J.vm.is_(None),
        ),
    ),
}

_encode = msgspec.json.Encoder().encode
_data = msgspec.json.Decoder(dict[str, object])


def last(session: Session) -> tuple[int, datetime] | None:
    row = session.row(_LAST, limit=1)
    return None if row is None else (row[0], moments.required(row[1]))


def append(session: Session, entries: Sequence[Entry], position: int) -> int:
    """Behind that position; gives the newest."""
    session.upsert(_APPEND, [_row(number, entry) for number, entry in enumerate(entries, position + 1)])
    return position + len(entries)


def page(
    session: Session,
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
        given["after"] = max(given.get("after", 0), first_since(session, since) - 1)
    if until is not None:
        first = first_since(session, until)
        given["before"] = min(given.get("before", first), first)
    if given.get("action", "").endswith("."):
        given["actions"] = given.pop("action")
    names = {*given, *(() if seen is None else ("seen",))}
    rows = session.rows(_page(frozenset(names), newest_first), limit=limit, **given, **patterns(seen))
    return [(row[0], _entry(row)) for row in rows]


@cache
def _page(filters: frozenset[str], newest_first: bool) -> Query:
    order = _J.position.desc() if newest_first else _J.position
    wanted = [_FILTERS[name] for name in sorted(filters & _FILTERS.keys())]
    for place in sorted(filters & _PLACES.keys()):
        found = union(*(part.where(*wanted) for part in _PLACES[place])).subquery()
        wanted = [_J.position.in_(select(found.c.position))]
    if filters & _PLACES.keys():
        nearest = found.c.position.desc() if newest_first else found.c.position
        wanted = [_J.position.in_(select(found.c.position).order_by(nearest).limit(bindparam("limit")))]
    return Query(select(schema.journal).where(*wanted).order_by(order).limit(bindparam("limit")))


def first_since(session: Session, moment: datetime) -> int:
    """A position from which on all entries are of this moment or later, and none before it is.

    By halves over the primary key: time never falls along it, so that no index of times has to be kept.
    """
    newest = session.row(_LAST, limit=1)
    low, high = 0, newest[0] + 1 if newest else 1
    wanted = moments.to_number(moment)
    while low < high:
        middle = (low + high) // 2
        row = session.row(_FROM, least=middle, limit=1)
        if row is None or row[1] >= wanted:
            high = middle
        else:
            low = row[0] + 1
    return high


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
