"""The journal: entries at positions that grow by one in the order of commits."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache

import msgspec
from sqlalchemy import bindparam, func, select

from notbefore.core.journal import Entry
from notbefore.store import moments, schema
from notbefore.store.session import Query, Row, Session, Upsert

_J = schema.journal.c

_APPEND = Upsert(schema.journal)
_LAST = Query(select(_J.position, _J.at).order_by(_J.position.desc()).limit(bindparam("limit")))

_FILTERS = {
    "after": _J.position > bindparam("after"),
    "before": _J.position < bindparam("before"),
    "action": _J.action == bindparam("action"),
    "actions": func.substr(_J.action, 1, func.length(bindparam("actions", type_=schema.NAME)))
    == bindparam("actions", type_=schema.NAME),
    "scope": _J.scope == bindparam("scope"),
    "event": _J.event == bindparam("event"),
    "operation": _J.operation == bindparam("operation"),
    "host": _J.host == bindparam("host"),
    "vm": _J.vm == bindparam("vm"),
    "rollout": _J.rollout == bindparam("rollout"),
    "author": _J.author == bindparam("author"),
    "since": _J.at >= bindparam("since"),
    "until": _J.at < bindparam("until"),
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


def page(session: Session, *, limit: int, newest_first: bool, filters: Mapping[str, object]) -> list[tuple[int, Entry]]:
    """Entries that match every filter; one that is None does not filter."""
    given = {name: value for name, value in filters.items() if value is not None}
    match given:
        case {"action": str() as action} if action.endswith("."):
            given["actions"] = given.pop("action")
    rows = session.rows(_page(frozenset(given), newest_first), limit=limit, **given)
    return [(row[0], _entry(row)) for row in rows]


@cache
def _page(filters: frozenset[str], newest_first: bool) -> Query:
    order = _J.position.desc() if newest_first else _J.position
    wanted = [_FILTERS[name] for name in sorted(filters)]
    return Query(select(schema.journal).where(*wanted).order_by(order).limit(bindparam("limit")))


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
