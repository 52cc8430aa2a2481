"""The journal: entries at positions that grow by one in the order of commits."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from operator import itemgetter
from typing import Any

from forenotice.core.journal import SYSTEM, Entry
from forenotice.core.selectors import Selector
from forenotice.store import fleet, rows, schema
from forenotice.store.queries import Repository, patterns
from forenotice.store.rows import Mapper, Row

_IS_BEFORE = """coalesce((SELECT journal.at FROM journal WHERE journal.position >= (low + high) / 2
        ORDER BY journal.position LIMIT 1) < :moment, FALSE)"""
_FIRST_SINCE = f"""
WITH RECURSIVE halves (low, high) AS (
    SELECT CAST(0 AS BIGINT), coalesce(max(journal.position), 0) + 1 FROM journal
    UNION ALL SELECT CASE WHEN {_IS_BEFORE} THEN (low + high) / 2 + 1 ELSE low END,
        CASE WHEN {_IS_BEFORE} THEN high ELSE (low + high) / 2 END FROM halves WHERE low < high
) SELECT min(high) FROM halves
"""
_FILTERS = {
    "after": "journal.position > :after",
    "before": "journal.position < :before",
    "action": "journal.action = :action",
    "actions": "substr(journal.action, 1, length(:actions)) = :actions",
    "without": "substr(journal.action, 1, length(:without)) <> :without",
    "scope": "journal.scope = :scope",
    # Every event is of an operation, by which its entries are found.
    "event": "journal.event = :event AND journal.operation = (SELECT operation FROM events WHERE id = :event)",
    "operation": "journal.operation = :operation",
    "host": "journal.host = :host",
    "rollout": "(journal.rollout = :rollout"
    " OR journal.operation IN (SELECT operations.id FROM operations WHERE operations.rollout = :rollout))",
    # In the words of the index, without which it would not be used; what the service did itself is everywhere.
    "author": f"journal.author = :author AND journal.author <> '{SYSTEM}'",
    "system": "journal.author = :system",
    "authors": "(journal.author = :authors"
    " OR substr(journal.author, 1, length(:authors) + 1) = CAST(:authors AS TEXT) || ':')",
    "seen": "FITS(journal.scope, seen)",
    "of_latest": fleet.of_latest("journal.scope", "journal.at"),
}
_NAMED = "SELECT journal.position FROM journal JOIN vm_operations ON journal.operation = vm_operations.operation"
# Each found by an index of its own.
_PARTS = {
    "vm": (
        "SELECT journal.position FROM journal WHERE journal.vm = :vm",
        f"{_NAMED} WHERE vm_operations.vm = :vm AND journal.event = vm_operations.event",
        f"{_NAMED} WHERE vm_operations.vm = :vm AND journal.event IS NULL AND journal.vm IS NULL",
    ),
    "rollout": (
        "SELECT journal.position FROM journal WHERE journal.rollout = :rollout",
        "SELECT journal.position FROM journal JOIN operations ON journal.operation = operations.id"
        " WHERE operations.rollout = :rollout",
    ),
}
_COLUMNS = ("action", "without", "scope", "event", "operation", "host", "vm", "rollout")
_WINDOW, _WIDER = 200_000, 8
"""A VM's entries are looked for among so many positions first, then among so many times more, and so on."""
_FEW = 20
"""Scopes that are asked for one by one."""

_ENTRIES = Mapper(schema.journal.c, Entry, renamed={"author": "by"})


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
        given = {name: value for name in _COLUMNS if (value := getattr(self, name)) is not None}
        if self.event is not None:
            given["event"] = self.event.upper()
        if self.by is not None:
            given["author"] = self.by
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
        row = self._db.row("SELECT position, at FROM journal ORDER BY position DESC LIMIT 1")
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

    def since(
        self, position: int, actions: Collection[str], *, hosts: Collection[str], vms: Collection[str]
    ) -> list[int]:
        """The positions behind it at which one of these actions names one of these hosts or VMs."""
        where = "position > :position AND action IN :actions AND (host IN :hosts OR vm IN :vms)"
        query = f"SELECT position FROM journal WHERE {where} ORDER BY position"
        return self._db.column(query, position=position, actions=actions, hosts=hosts, vms=vms)

    def append(self, entries: Sequence[Entry]) -> int:
        """Gives the newest position."""
        position = self._newest[0] if self._newest else 0
        if entries:
            numbered = enumerate(entries, position + 1)
            self._db.upsert(schema.journal, [(number, *_ENTRIES.row(entry)) for number, entry in numbered])
            position += len(entries)
            self._newest = (position, entries[-1].at)
        return position

    def first_since(self, moment: datetime) -> int:
        """The first position whose entry, and those of all later positions, are of this moment or later.

        By halves over the primary key: time never falls along it, so that no index of times has to be kept.
        """
        return int(self._db.value(_FIRST_SINCE, moment=moment))

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
        return self._db.rows(_page(frozenset(names), newest_first), limit=limit, **given, **patterns(seen))

    def _rows_of_scopes(
        self, limit: int, newest_first: bool, given: dict[str, Any], scopes: Iterable[str]
    ) -> list[Row]:
        """Scope by scope, each by the index, so that a scope with few entries does not read those of all others."""
        query = _page(frozenset({*given, "scope", "of_latest"}), newest_first)
        found: list[Row] = []
        for scope in scopes:
            if given.get("scope", scope) == scope:
                found += self._db.rows(query, limit=limit, **given | {"scope": scope})
        return sorted(found, key=itemgetter(0), reverse=newest_first)[:limit]


def _named_by(seen: Selector) -> list[str] | None:
    """The scopes that it fits, if it names few and all without a wildcard."""
    if len(seen.named) < len(seen.wanted) or len(seen.wanted) > _FEW:
        return None
    return [key for key in dict.fromkeys(seen.wanted) if key in seen]


@cache
def _page(filters: frozenset[str], newest_first: bool) -> str:
    order = f"ORDER BY position{' DESC' if newest_first else ''} LIMIT :limit"
    noun = next((name for name in _PARTS if name in filters), "")
    where = " AND ".join(_FILTERS[name] for name in sorted(filters & _FILTERS.keys() - {noun})) or "TRUE"
    found = ""
    if noun == "vm":
        # Sorted after it is found: PostgreSQL would otherwise scan all entries in order.
        every = " UNION ".join(f"{part} AND {where}" for part in _PARTS[noun])
        found = f"WITH every AS MATERIALIZED ({every}) "
        where = f"journal.position IN (SELECT position FROM every {order})"
    elif noun:
        nearest = (f"SELECT position FROM ({part} AND {where} {order}) AS part" for part in _PARTS[noun])
        where = f"journal.position IN ({' UNION '.join(nearest)})"
    return f"{found}SELECT journal.* FROM journal WHERE {where} {order}"
