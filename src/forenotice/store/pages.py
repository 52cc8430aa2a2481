"""Lists page by page: in either direction of a key that never changes, of what fits a filter.

A filter is a dataclass; its fields are columns, or have a condition of their own. A field that is None does not filter.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, select, tuple_

from forenotice.core import errors
from forenotice.core.selectors import Selector
from forenotice.store.queries import Executor, Matching, Query, given, patterns
from forenotice.store.rows import Row

T = TypeVar("T")
Condition = Callable[[Any], ColumnElement[bool]]
"""Of the columns of the table, or of another view of it."""

LAST_CHARACTER = "\U0010ffff"
WILD = "*?"
_LIVE, _ENDED = "live", "ended"


class Listing(Generic[T]):
    def __init__(
        self,
        rows: Select[Any],
        table: Table,
        read: Callable[[Row], T],
        *,
        by: tuple[str, ...],
        labels: str | None = None,
        **conditions: Condition,
    ) -> None:
        """By one column, of which `after` is a value; or by several, and `after` is the id of a row.

        The condition `seen` holds for that row, too: a caller learns nothing of rows that it does not see by naming
        them. The filter `name` is a selector of the first key, and of `labels` where a column holds them.
        """
        self._rows, self._table, self._read, self._by = rows, table, read, by
        self._conditions: Mapping[str, Condition] = {
            "name": _named(by[0], labels),
            _LIVE: lambda columns: columns.ended_at.is_(None),
            _ENDED: lambda columns: columns.ended_at.is_not(None),
            **conditions,
        }
        self.query = cache(self._query)
        self.place = cache(lambda seen: Query(self._place(seen)))

    def page(
        self, executor: Executor, after: str | None, limit: int, wanted: Any = None, *, descending: bool = False
    ) -> list[T]:
        """The row `after` which the page begins must be there, and be seen."""
        given = {each.name: getattr(wanted, each.name) for each in (fields(wanted) if wanted else ())}
        if given.get(_LIVE) is False:
            given |= {_LIVE: None, _ENDED: True}
        given = {name: value for name, value in given.items() if value is not None}
        query = self.query(frozenset(given), after is not None, descending)
        values: dict[str, object] = {}
        for name, value in given.items():
            values |= _parameters(name, value)
        found = [self._read(row) for row in executor.rows(query, after=after, limit=limit, **values)]
        if found or after is None or len(self._by) == 1:
            return found
        if executor.row(self.place("seen" in given), after=after, **values) is None:
            raise errors.RefusedError(f"the list has no {after!r} to continue after: begin again without `after`")
        return found

    def _condition(self, name: str, columns: Any) -> ColumnElement[bool]:
        if name in self._conditions:
            return self._conditions[name](columns)
        equal: ColumnElement[bool] = columns[name] == bindparam(name, type_=columns[name].type)
        return equal

    def _query(self, filters: frozenset[str], after: bool, descending: bool) -> Query:
        columns = self._table.c
        key = [columns[name] for name in self._by]
        page = self._rows.where(*(self._condition(name, columns) for name in sorted(filters)))
        if after:
            mine: ColumnElement[Any] = tuple_(*key) if len(key) > 1 else key[0]
            one = bindparam("after", type_=key[0].type)
            place = self._place("seen" in filters).scalar_subquery() if len(key) > 1 else one
            page = page.where(mine < place if descending else mine > place)
        page = page.order_by(*(column.desc() if descending else column for column in key))
        return Query(page.limit(given.limit))

    def _place(self, seen: bool) -> Select[Any]:
        last = self._table.alias("last")
        place = select(*(last.c[name] for name in self._by)).where(last.c.id == given.after)
        return place.where(self._condition("seen", last.c)) if seen else place


def _named(column: str, labels: str | None) -> Condition:
    """What the patterns begin with keeps a page of a large table from looking through all of it."""

    def fits(columns: Any) -> ColumnElement[bool]:
        found = columns[column]
        first, last = (bindparam(f"name_{end}", type_=found.type) for end in ("first", "last"))
        return and_(Matching(found, "name", columns[labels] if labels else None), found >= first, found <= last)

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
