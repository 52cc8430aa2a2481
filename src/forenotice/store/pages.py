"""Lists page by page: in either direction of a key that never changes, of what fits every filter that is given."""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, select, tuple_

from forenotice.core import errors
from forenotice.core.selectors import Selector
from forenotice.store.queries import Executor, Matching, Query, Row, patterns

Filter = Callable[[Any], ColumnElement[bool]]
"""Of the columns of the table, or of another view of it."""

LAST_CHARACTER = "\U0010ffff"
WILD = "*?"


class Listing:
    def __init__(self, rows: Select[Any], table: Table, *, by: tuple[str, ...], filters: Mapping[str, Filter]) -> None:
        """By one column, of which `after` is a value; or by several, and `after` is the id of a row.

        The filter `seen` holds for that row, too: nobody learns of what he does not see by going on behind it.
        """
        self._rows, self._table, self._by, self._filters = rows, table, by, filters
        self.query = cache(self._query)
        self.place = cache(lambda seen: Query(self._place(seen)))

    def page(
        self, executor: Executor, *, after: str | None, limit: int, descending: bool = False, **given: object
    ) -> Iterable[Row]:
        """A filter that is None does not filter. The row that one goes on behind must be there, and be seen."""
        there = {name: value for name, value in given.items() if value is not None}
        query = self.query(frozenset(there), after is not None, descending)
        values: dict[str, object] = {}
        for name, value in there.items():
            values |= _parameters(name, value)
        rows = executor.rows(query, after=after, limit=limit, **values)
        if after is None or len(self._by) == 1:
            return rows
        found = list(rows)
        if not found and executor.row(self.place("seen" in there), after=after, **values) is None:
            raise errors.RefusedError(f"the list has no {after!r} to go on behind: begin it anew")
        return found

    def _query(self, given: frozenset[str], after: bool, descending: bool) -> Query:
        columns = self._table.c
        key = [columns[name] for name in self._by]
        page = self._rows.where(*(self._filters[name](columns) for name in sorted(given)))
        if after:
            mine: ColumnElement[Any] = tuple_(*key) if len(key) > 1 else key[0]
            one = bindparam("after", type_=key[0].type)
            place = self._place("seen" in given).scalar_subquery() if len(key) > 1 else one
            page = page.where(mine < place if descending else mine > place)
        page = page.order_by(*(column.desc() if descending else column for column in key))
        return Query(page.limit(bindparam("limit")))

    def _place(self, seen: bool) -> Select[Any]:
        last = self._table.alias("last")
        place = select(*(last.c[name] for name in self._by)).where(last.c.id == bindparam("after"))
        return place.where(self._filters["seen"](last.c)) if seen else place


def living(live: bool | None) -> dict[str, Any]:
    """For the filters `live` and `ended`; None is neither."""
    return {"live": live or None, "ended": None if live is None else not live or None}


def equal(column: str, name: str) -> Filter:
    return lambda columns: columns[column] == bindparam(name, type_=columns[column].type)


def named(column: str, name: str = "name", *, labels: str | None = None) -> Filter:
    """By a selector, which may name labels where a column holds them.

    What its patterns begin with keeps a page of a large table from looking through all of it.
    """

    def fits(columns: Any) -> ColumnElement[bool]:
        found = columns[column]
        first, last = (bindparam(f"{name}_{end}", type_=found.type) for end in ("first", "last"))
        of_labels = columns[labels] if labels else None
        return and_(Matching(found, name, of_labels), found >= first, found <= last)

    return fits


def _parameters(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, Selector):
        return {name: value.value if isinstance(value, Enum) else value}
    begins = _beginning(value)
    return {**patterns(value, name), f"{name}_first": begins, f"{name}_last": begins + LAST_CHARACTER}


def _beginning(selector: Selector) -> str:
    """What all names that it fits begin with, as far as that is plain to see."""
    if len(selector.wanted) != 1 or selector.wanted_labels:
        return ""
    pattern = selector.wanted[0]
    return pattern[: next((place for place, char in enumerate(pattern) if char in WILD), len(pattern))]
