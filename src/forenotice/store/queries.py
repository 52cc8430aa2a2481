"""SQL for both databases, translated once for each and run on the driver itself.

`:name` is a parameter, and `hosts.*` stands for the columns of that table in the order of the schema.
`column IN :names` takes a list of any length. `FITS(column, name)` is true for what fits the selector of that name,
`FITS(column, name, labels)` for what fits it by a label, too, where a column holds labels as a JSON object.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from functools import cache
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql

from forenotice.core import errors
from forenotice.core.operations import Kind, Traits
from forenotice.core.selectors import WILDCARD, Selector
from forenotice.store import schema
from forenotice.store.rows import Mapper, Row, json_text, microseconds, number

T = TypeVar("T")
Filter = TypeVar("Filter")

LAST_CHARACTER = "\U0010ffff"
_MANY = 10
_ROWS_AT_ONCE = 5_000


class Connection(Protocol):
    """What the two drivers have in common."""

    def execute(self, statement: Any, parameters: Sequence[Any], /) -> Any: ...
    def cursor(self) -> Any: ...


class Flavour(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


_COLUMNS = re.compile(r"\b(\w+)\.\*")
_AMONG = re.compile(r"([\w.]+) IN (:\w+)")
_FITS = re.compile(r"FITS\(([\w.]+), (\w+)(?:, ([\w.]+))?\)")
_PARAMETER = re.compile(r"(?<!:):(\w+)")


@cache
def translated(sql: str, flavour: Flavour) -> tuple[str, tuple[str, ...]]:
    """For the driver, with the order of its parameters."""
    is_sqlite = flavour is Flavour.SQLITE
    sql = _COLUMNS.sub(lambda found: ", ".join(_names(schema.metadata.tables[found[1]], f"{found[1]}.")), sql)
    sql = _FITS.sub(lambda found: _fits(*found.groups(), glob=is_sqlite), sql)
    sql = _AMONG.sub(r"\1 IN (SELECT value FROM json_each(\2))" if is_sqlite else r"\1 = ANY (\2::text[])", sql)
    sql = sql if is_sqlite else sql.replace("%", "%%")
    return _PARAMETER.sub("?" if is_sqlite else "%s", sql), tuple(_PARAMETER.findall(sql))


def _names(table: Table, prefix: str = "") -> list[str]:
    return [f'{prefix}"{column.name}"' for column in table.columns]


# Selectors hold no character but * and ? that means something to GLOB, nor one but _ that does to LIKE.
_LIKE = r"LIKE translate(replace(pattern.value, '_', '\_'), '*?', '%_')"


def _fits(column: str, name: str, labels: str | None, *, glob: bool) -> str:
    if glob:
        listed, matches = "json_each({0}) AS pattern", "GLOB pattern.value"
    else:
        listed, matches = "unnest({0}::text[]) AS pattern (value)", _LIKE
    fits = f"EXISTS (SELECT 1 FROM {listed} WHERE {column} {matches})"
    if glob:
        # To open a list for each row costs ten times what one pattern does, and most selectors have just one.
        one = f"{column} GLOB json_extract({{0}}, '$[0]')"
        fits = f"CASE json_array_length({{0}}) WHEN 0 THEN 0 WHEN 1 THEN {one} ELSE {fits} END"
    if labels:
        each = f"json_each({labels})" if glob else f"json_each_text({labels}::json)"
        by_label = f"EXISTS (SELECT 1 FROM {each} AS label, {listed} WHERE label.key || '=' || label.value {matches})"
        fits = f"({fits} OR {by_label.replace('{0}', '{1}')})"
    wanted, unwanted = (fits.format(f":{name}_{which}", f":{name}_{which}_labels") for which in ("wanted", "unwanted"))
    return f"({wanted} AND NOT {unwanted})"


def patterns(selector: Selector | None, name: str = "seen") -> dict[str, Sequence[str]]:
    """The parameters that `FITS` takes."""
    parts = ("wanted", "unwanted", "wanted_labels", "unwanted_labels") if selector else ()
    return {f"{name}_{part}": getattr(selector, part) for part in parts}


def kinds(which: Callable[[Traits], bool]) -> str:
    """The kinds of operations with such traits, for `kind IN`."""
    return "(" + ", ".join(f"'{kind.value}'" for kind in Kind if which(kind.traits)) + ")"


@cache
def _upsert(table: Table, fixed: Sequence[str], flavour: Flavour, listed: bool) -> str:
    names, key = _names(table), [f'"{column.name}"' for column in table.primary_key.columns]
    if listed:
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        types = [column.type.compile(dialect).partition(" COLLATE")[0] for column in table.columns]
        read = ", ".join(f"CAST(given ->> {place} AS {kind})" for place, kind in enumerate(types))
        rows = f"SELECT {read} FROM jsonb_array_elements(%s::jsonb) AS given"
    else:
        rows = f"VALUES ({', '.join(['?' if flavour is Flavour.SQLITE else '%s'] * len(names))})"
    changing = [name for name in names if name not in key and name.strip('"') not in fixed]
    changes = ", ".join(f"{name} = excluded.{name}" for name in changing)
    then = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
    return f"INSERT INTO {table.name} ({', '.join(names)}) {rows} ON CONFLICT ({', '.join(key)}) {then}"


class Executor:
    """One transaction on one connection. Parameters may be times, enums and collections of strings."""

    def __init__(
        self,
        connection: Connection,
        flavour: Flavour,
        *,
        check: Callable[[], None] = lambda: None,
        statement_seconds: float = math.inf,
    ) -> None:
        self._connection = connection
        self.flavour = flavour
        self._check = check
        self._statement_seconds = statement_seconds
        self._statement_end = math.inf

    def is_to_end(self) -> bool:
        """SQLite's progress handler: true, or raising, stops the statement."""
        self._check()
        return monotonic() > self._statement_end

    def _begin(self) -> None:
        self._check()
        self._statement_end = monotonic() + self._statement_seconds

    def rows(self, sql: str, **parameters: Any) -> Iterable[Row]:
        """To be read once: a large result is turned into objects row by row, and the collector has less to look at."""
        found: Iterable[Row] = self._execute(sql, parameters)
        return found

    def row(self, sql: str, **parameters: Any) -> Row | None:
        row: Row | None = self._execute(sql, parameters).fetchone()
        return row

    def value(self, sql: str, **parameters: Any) -> Any:
        """Of the first column of the first row; None: there is none."""
        row = self.row(sql, **parameters)
        return None if row is None else row[0]

    def column(self, sql: str, **parameters: Any) -> list[Any]:
        """The first of every row."""
        return [row[0] for row in self._execute(sql, parameters)]

    def run(self, sql: str, **parameters: Any) -> int:
        """How many rows it touched."""
        return int(self._execute(sql, parameters).rowcount)

    def run_each(self, sql: str, each: Iterable[Mapping[str, Any]]) -> None:
        self._begin()
        text, order = translated(sql, self.flavour)
        self._connection.cursor().executemany(text, [[self._sent(one[name]) for name in order] for one in each])

    def upsert(self, table: Table, rows: Sequence[Row], *, fixed: Sequence[str] = ()) -> None:
        """Rows in the order of the table's columns, that replace those with the same key.

        Columns that are `fixed` keep what they were made with; so do the indexes on them, which is most of the writing.
        """
        self._begin()
        # PostgreSQL takes a thousand rows as one parameter in the time of a few dozen single ones.
        if self.flavour is Flavour.POSTGRESQL and len(rows) >= _MANY:
            for some in chunks(rows, _ROWS_AT_ONCE):
                self._check()
                self._connection.execute(_upsert(table, fixed, self.flavour, True), (json_text(some),))
        elif rows:
            self._connection.cursor().executemany(_upsert(table, fixed, self.flavour, False), rows)

    def _execute(self, sql: str, parameters: Mapping[str, Any]) -> Any:
        self._begin()
        text, order = translated(sql, self.flavour)
        return self._connection.execute(text, [self._sent(parameters[name]) for name in order])

    def _sent(self, value: Any) -> Any:
        if value is None or type(value) in (str, int, bool):
            return value
        match value:
            case Enum():
                return value.value
            case datetime():
                return number(value)
            case timedelta():
                return microseconds(value)
        return json_text(list(value)) if self.flavour is Flavour.SQLITE else list(value)


class Repository:
    """What is kept of one noun. What is read is of one moment; what writes is for transactions alone."""

    def __init__(self, executor: Executor) -> None:
        self._db = executor

    def _all(self, mapper: Mapper[T], sql: str, **parameters: Any) -> list[T]:
        return [mapper.read(row) for row in self._db.rows(sql, **parameters)]

    def _find(self, mapper: Mapper[T], sql: str, **parameters: Any) -> T | None:
        row = self._db.row(sql, **parameters)
        return None if row is None else mapper.read(row)


def chunks(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(things), size):
        yield things[start : start + size]


class Listing(Generic[T]):
    """A list page by page, in either direction of a key that never changes, of what fits a filter.

    A filter is a dataclass; its fields are columns, or have a condition of their own (`{0}` is the table, or another
    view of it). A field that is None does not filter.
    """

    def __init__(
        self,
        table: Table,
        read: Callable[[Row], T],
        *,
        by: tuple[str, ...],
        more: str = "",
        where: str = "TRUE",
        labels: str = "",
        **conditions: str,
    ) -> None:
        """By one column, of which `after` is a value; or by several, and `after` is the id of a row.

        The condition `seen` holds for that row, too: a caller learns nothing of rows that it does not see by naming
        them. The filter `name` is a selector of the first key, and of `labels` where a column holds them.
        """
        self._table, self._read, self._by, self._where = table.name, read, by, where
        self._columns = f"{table.name}.*{more}"
        key = f"{{0}}.{by[0]}"
        self._conditions = {
            # What the patterns begin with keeps a page of a large table from looking through all of it.
            "name": f"FITS({key}, name{labels}) AND {key} >= :name_first AND {key} <= :name_last",
            "live": "{0}.ended_at IS NULL",
            "ended": "{0}.ended_at IS NOT NULL",
            **conditions,
        }
        self._query = cache(self._make_query)

    def page(
        self, executor: Executor, after: str | None, limit: int, wanted: Any = None, *, descending: bool = False
    ) -> list[T]:
        """The row `after` which the page begins must be there, and be seen."""
        given = {each.name: getattr(wanted, each.name) for each in (fields(wanted) if wanted else ())}
        if given.get("live") is False:
            given |= {"live": None, "ended": True}
        given = {name: value for name, value in given.items() if value is not None}
        query = self._query(frozenset(given), after is not None, descending)
        parameters: dict[str, Any] = {"after": after, "limit": limit}
        for name, value in given.items():
            parameters |= _parameters(name, value)
        found = [self._read(row) for row in executor.rows(query, **parameters)]
        if found or after is None or len(self._by) == 1:
            return found
        if executor.row(self._place("seen" in given), **parameters) is None:
            raise errors.RefusedError(f"the list has no {after!r} to continue after: begin again without `after`")
        return found

    def _condition(self, name: str, table: str) -> str:
        return self._conditions.get(name, f"{{0}}.{name} = :{name}").format(table)

    def _make_query(self, filters: frozenset[str], after: bool, descending: bool) -> str:
        conditions = [self._where, *(self._condition(name, self._table) for name in sorted(filters))]
        key = [f"{self._table}.{name}" for name in self._by]
        if after:
            place = ":after" if len(key) == 1 else f"({self._place('seen' in filters)})"
            conditions.append(f"({', '.join(key)}) {'<' if descending else '>'} {place}")
        order = ", ".join(f"{column} DESC" if descending else column for column in key)
        where = " AND ".join(conditions)
        return f"SELECT {self._columns} FROM {self._table} WHERE {where} ORDER BY {order} LIMIT :limit"

    def _place(self, seen: bool) -> str:
        key = ", ".join(f"last.{name}" for name in self._by)
        visible = f" AND {self._condition('seen', 'last')}" if seen else ""
        return f"SELECT {key} FROM {self._table} AS last WHERE last.id = :after{visible}"


def _parameters(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Selector):
        return {name: value}
    # What all names that it fits begin with, as far as that is plain to see.
    plain = len(value.wanted) == 1 and not value.wanted_labels
    begins = WILDCARD.split(value.wanted[0])[0] if plain else ""
    return {**patterns(value, name), f"{name}_first": begins, f"{name}_last": begins + LAST_CHARACTER}


class Listed(Repository, Generic[T, Filter]):
    """A repository with a list."""

    _list: Listing[T]

    def page(self, after: str | None, limit: int, wanted: Filter | None = None, *, descending: bool = False) -> list[T]:
        """In the order of its keys, or `descending`, beyond `after`, which is a key or the id of a row."""
        return self._list.page(self._db, after, limit, wanted, descending=descending)
