"""The journal: entries at positions that grow by one in the order of commits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from operator import itemgetter
from typing import Any

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
from forenotice.store import fleet, rows, schema
from forenotice.store.pages import WILD
from forenotice.store.queries import Matching, Query, Repository, Upsert, given, patterns
from forenotice.store.rows import Mapper, Row

_J, _N, _E, _O = schema.journal.c, schema.vm_operations.c, schema.events.c, schema.operations.c

_APPEND = Upsert(schema.journal)
_LAST = Query(select(_J.position, _J.at).order_by(_J.position.desc()).limit(given.limit))


def _by_halves() -> Select[tuple[int]]:
    halves = select(
        cast(literal_column("0"), BigInteger).label("low"), (func.coalesce(func.max(_J.position), 0) + 1).label("high")
    ).cte("halves", recursive=True)
    low, high = halves.c.low, halves.c.high
    middle, there = (low + high) // 2, schema.journal.alias()
    at = select(there.c.at).where(there.c.position >= middle).order_by(there.c.position).limit(literal_column("1"))
    is_before = func.coalesce(at.scalar_subquery() < given.moment, false())
    halves = halves.union_all(
        select(case((is_before, middle + 1), else_=low), case((is_before, high), else_=middle)).where(low < high)
    )
    return select(func.min(halves.c.high))


def _begins_with(column: ColumnElement[str], name: str) -> ColumnElement[bool]:
    beginning = bindparam(name, type_=schema.NAME)
    return func.substr(column, 1, func.length(beginning)) == beginning


_FIRST_SINCE = Query(_by_halves())
_FILTERS: dict[str, ColumnElement[bool]] = {
    "after": _J.position > given.after,
    "before": _J.position < given.before,
    "action": _J.action == given.action,
    "actions": _begins_with(_J.action, "actions"),
    "without": ~_begins_with(_J.action, "without"),
    "scope": _J.scope == given.scope,
    # Every event is of an operation, by which its entries are found.
    "event": (_J.event == given.event)
    & (_J.operation == select(_E.operation).where(_E.id == given.event).scalar_subquery()),
    "operation": _J.operation == given.operation,
    "host": _J.host == given.host,
    "rollout": (_J.rollout == given.rollout) | _J.operation.in_(select(_O.id).where(_O.rollout == given.rollout)),
    # In the words of the index, without which it would not be used; what the service did itself is everywhere.
    "author": (_J.author == given.author) & (_J.author != literal_column(f"'{SYSTEM}'")),
    "system": _J.author == given.system,
    "authors": (_J.author == given.authors)
    | (
        func.substr(_J.author, 1, func.length(bindparam("authors", type_=schema.NAME)) + 1)
        == bindparam("authors", type_=schema.NAME) + ":"
    ),
    "seen": Matching(_J.scope),
    "of_latest": fleet.of_latest(_J.scope, _J.at),
}
_told = select(_J.position).join(schema.vm_operations, _J.operation == _N.operation).where(_N.vm == given.vm)
# Each found by an index of its own.
_PARTS = {
    "vm": (
        select(_J.position).where(_J.vm == given.vm),
        _told.where(_J.event == _N.event),
        _told.where(_J.event.is_(None), _J.vm.is_(None)),
    ),
    "rollout": (
        select(_J.position).where(_J.rollout == given.rollout),
        select(_J.position).join(schema.operations, _J.operation == _O.id).where(_O.rollout == given.rollout),
    ),
}
_WINDOW, _WIDER = 200_000, 8
"""A VM's entries are looked for among so many positions first, then among so many times more, and so on."""
_FEW = 20
"""Scopes that are asked for one by one."""

_ENTRIES = Mapper(_J, Entry, renamed={"author": "by"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFilter:
    """Entries that match every field that is given."""

    action: str | None = None
    """One that ends in `.` matches all that begin so."""
    without: str | None = None
    """Leaves out the actions that begin so."""
    scope: str | None = None
    event: str | None = None
    operation: str | None = None
    host: str | None = None
    vm: str | None = None
    """What names it, what is of an event that named it, and what is of an operation that named it but of none of its
    events."""
    rollout: str | None = None
    by: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    """Before that moment."""
    seen: Selector | None = None
    """Of these scopes only."""

    def conditions(self) -> dict[str, Any]:
        """The parameters of the query's conditions."""
        given = {
            "action": self.action,
            "without": self.without,
            "scope": self.scope,
            "event": self.event.upper() if self.event else None,
            "operation": self.operation,
            "host": self.host,
            "vm": self.vm,
            "rollout": self.rollout,
            "author": self.by,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if self.action is not None and self.action.endswith("."):
            given["actions"] = given.pop("action")
        if self.seen is not None and self.by is not None and ":" not in self.by:
            # A caller who sees some scopes only is shown the role of others, not their names.
            given["authors"] = given.pop("author")
        elif self.by == SYSTEM:
            given["system"] = given.pop("author")
        return given


class Journal(Repository):
    @cached_property
    def _newest(self) -> tuple[int, datetime] | None:
        # A reader sees one moment, and nobody else appends during a transaction.
        row = self._executor.row(_LAST, limit=1)
        return None if row is None else (row[0], rows.moment(row[1]))

    def last(self) -> tuple[int, datetime] | None:
        """Position and time of the newest entry."""
        return self._newest

    def page(
        self,
        wanted: JournalFilter | None = None,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[tuple[int, Entry]]:
        """Entries with `after` < position < `before`, in order of position. `data` comes back as plain JSON values."""
        wanted = wanted or JournalFilter()
        given = wanted.conditions() | {"after": after}
        if wanted.since is not None:
            given["after"] = max(after, self.first_since(wanted.since) - 1)
        if wanted.until is not None:
            first = self.first_since(wanted.until)
            before = first if before is None else min(before, first)
        if before is not None:
            given["before"] = before
        find = self._rows_of_vm if wanted.vm is not None else self._rows
        return [(row[0], _ENTRIES.read(row)) for row in find(limit, newest_first, given, wanted.seen)]

    def append(self, entries: Sequence[Entry]) -> int:
        """Gives the newest position."""
        position = self._newest[0] if self._newest else 0
        if entries:
            numbered = enumerate(entries, position + 1)
            self._executor.upsert(_APPEND, [(number, *_ENTRIES.row(entry)) for number, entry in numbered])
            position += len(entries)
            self._newest = (position, entries[-1].at)
        return position

    def first_since(self, moment: datetime) -> int:
        """The first position whose entry, and those of all later positions, are of this moment or later.

        By halves over the primary key: time never falls along it, so that no index of times has to be kept.
        """
        return int(self._executor.value(_FIRST_SINCE, moment=rows.number(moment)))

    def _rows_of_vm(self, limit: int, newest_first: bool, given: dict[str, Any], seen: Selector | None) -> list[Row]:
        """Window by window: of a VM that much has happened to, only what is near is put in order."""
        after, before = given.pop("after"), given.pop("before", None)
        if before is None:
            newest = self.last()
            before = newest[0] + 1 if newest else 1
        found: list[Row] = []
        window = _WINDOW
        while len(found) < limit and after + 1 < before:
            start, end = (max(after, before - window), before) if newest_first else (after, min(before, after + window))
            found += self._rows(limit - len(found), newest_first, given | {"after": start, "before": end}, seen)
            after, before = (after, start + 1) if newest_first else (end - 1, before)
            window *= _WIDER
        return found

    def _rows(self, limit: int, newest_first: bool, given: dict[str, Any], seen: Selector | None) -> Iterable[Row]:
        if seen is not None and "vm" not in given and (scopes := _named_by(seen)) is not None:
            return self._rows_of_scopes(limit, newest_first, given, scopes)
        names = {*given, *(() if seen is None else ("seen", "of_latest"))}
        return self._executor.rows(_page(frozenset(names), newest_first), limit=limit, **given, **patterns(seen))

    def _rows_of_scopes(
        self, limit: int, newest_first: bool, given: dict[str, Any], scopes: Iterable[str]
    ) -> list[Row]:
        """Scope by scope, each by the index, so that a scope with few entries does not read those of all others."""
        query = _page(frozenset({*given, "scope", "of_latest"}), newest_first)
        found: list[Row] = []
        for scope in scopes:
            if given.get("scope", scope) == scope:
                found += self._executor.rows(query, limit=limit, **given | {"scope": scope})
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
        # Sorted after it is found: PostgreSQL would otherwise scan all entries in order.
        every = union(*(part.where(*wanted) for part in _PARTS[noun])).cte().prefix_with("MATERIALIZED")
        place = every.c.position.desc() if newest_first else every.c.position
        wanted = [_J.position.in_(select(every.c.position).order_by(place).limit(given.limit))]
    elif noun:
        nearest = [part.where(*wanted).order_by(order).limit(given.limit).subquery() for part in _PARTS[noun]]
        found = union(*(select(part.c.position) for part in nearest)).subquery()
        wanted = [_J.position.in_(select(found.c.position))]
    return Query(select(schema.journal).where(*wanted).order_by(order).limit(given.limit))
