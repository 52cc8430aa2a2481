"""Statements written once, compiled once for each database, and run on the driver itself.

SQLAlchemy's own execution of a statement costs more than SQLite needs for it; its compiled text costs next to nothing.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from time import monotonic
from typing import Any, Protocol, TypeVar

from sqlalchemy import Column, Dialect, Table, bindparam, cast, func, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSONB, psycopg
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import BindParameter, ColumnElement

from forenotice.core.selectors import Selector
from forenotice.store.rows import Mapper, Row, json_text

T = TypeVar("T")

_MANY = 10
_ROWS_AT_ONCE = 5_000


class Connection(Protocol):
    """What the two drivers have in common."""

    def execute(self, statement: Any, parameters: Sequence[Any], /) -> Any: ...
    def cursor(self) -> Any: ...


class Flavour(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


_untyped: Any = psycopg.dialect
_DIALECTS: dict[Flavour, Dialect] = {
    Flavour.SQLITE: sqlite.dialect(paramstyle="qmark"),
    Flavour.POSTGRESQL: _untyped(paramstyle="format"),
}


class _Given:
    """The parameters of a statement, by name: `column == given.host`."""

    def __getattr__(self, name: str) -> BindParameter[Any]:
        return bindparam(name)


given = _Given()


class Among(ColumnElement[bool]):
    """Whether a column is among the strings of one parameter, a list of any length."""

    inherit_cache = False

    def __init__(self, column: Column[Any], name: str) -> None:
        self.column = column
        self.parameter: BindParameter[Any] = BindParameter(name, required=True)


@compiles(Among, "sqlite")
def _among_json(element: Among, compiler: SQLCompiler, **options: Any) -> str:
    column, parameter = compiler.process(element.column, **options), compiler.process(element.parameter, **options)
    return f"{column} IN (SELECT value FROM json_each({parameter}))"  # noqa: S608 (made of compiled parts)


@compiles(Among, "postgresql")
def _among_array(element: Among, compiler: SQLCompiler, **options: Any) -> str:
    column, parameter = compiler.process(element.column, **options), compiler.process(element.parameter, **options)
    return f"{column} = ANY ({parameter}::text[])"


class Matching(ColumnElement[bool]):
    """Whether a column fits a selector: one of the patterns of a list, and none of those of another.

    Or a label does, where a column holds labels as a JSON object.
    """

    inherit_cache = False

    def __init__(self, column: Column[Any], name: str = "seen", labels: Column[Any] | None = None) -> None:
        self.column, self.labels = column, labels
        self.wanted, self.unwanted, self.wanted_labels, self.unwanted_labels = (
            BindParameter[Any](f"{name}_{patterns}", required=True)
            for patterns in ("wanted", "unwanted", "wanted_labels", "unwanted_labels")
        )


def patterns(selector: Selector | None, name: str = "seen") -> dict[str, list[str]]:
    """The parameters that `Matching` takes."""
    if selector is None:
        return {}
    return {
        f"{name}_wanted": list(selector.wanted),
        f"{name}_unwanted": list(selector.unwanted),
        f"{name}_wanted_labels": list(selector.wanted_labels),
        f"{name}_unwanted_labels": list(selector.unwanted_labels),
    }


# Selectors hold no character but * and ? that means something to GLOB, nor one but _ that does to LIKE.
@compiles(Matching, "sqlite")
def _matching_glob(element: Matching, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.column, **options)
    fits = f"EXISTS (SELECT 1 FROM json_each({{0}}) WHERE {column} GLOB value)"  # noqa: S608 (made of compiled parts)
    # To open a list for each row costs ten times what one pattern does, and most selectors have just one.
    fits = (
        f"CASE json_array_length({{0}}) WHEN 0 THEN 0 WHEN 1 THEN {column} GLOB json_extract({{0}}, '$[0]') "
        f"ELSE {fits} END"
    )
    labelled = "EXISTS (SELECT 1 FROM json_each({1}) AS label, json_each({0}) AS pattern "
    return _wanted_not_unwanted(
        fits, labelled + "WHERE label.key || '=' || label.value GLOB pattern.value)", element, compiler, options
    )


@compiles(Matching, "postgresql")
def _matching_like(element: Matching, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.column, **options)
    pattern = r"translate(replace(pattern, '_', '\_'), '*?', '%%_')"
    fits = f"EXISTS (SELECT 1 FROM unnest({{}}::text[]) AS pattern WHERE {column} LIKE {pattern})"  # noqa: S608
    labelled = "EXISTS (SELECT 1 FROM json_each_text({1}::json) AS label, unnest({0}::text[]) AS pattern "
    return _wanted_not_unwanted(
        fits, labelled + f"WHERE label.key || '=' || label.value LIKE {pattern})", element, compiler, options
    )


def _wanted_not_unwanted(
    fits: str, labelled: str, element: Matching, compiler: SQLCompiler, options: dict[str, Any]
) -> str:
    def one_of(names: BindParameter[Any], labels: BindParameter[Any]) -> str:
        found = fits.format(compiler.process(names, **options))
        if element.labels is None:
            return found
        column = compiler.process(element.labels, **options)
        return f"({found} OR {labelled.format(compiler.process(labels, **options), column)})"

    wanted = one_of(element.wanted, element.wanted_labels)
    return f"({wanted} AND NOT {one_of(element.unwanted, element.unwanted_labels)})"


class Query:
    """A statement with named parameters."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._compiled: dict[Flavour, tuple[str, tuple[str, ...], dict[str, Any]]] = {}

    def on(self, flavour: Flavour) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        """Its text, the order of its parameters, and those that are constant."""
        if flavour not in self._compiled:
            compiled = self._statement.compile(dialect=_DIALECTS[flavour])
            assert isinstance(compiled, SQLCompiler)
            constant = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
            self._compiled[flavour] = (str(compiled), tuple(compiled.positiontup or ()), constant)
        return self._compiled[flavour]


class Upsert:
    """Rows of a table, in the order of its columns, that replace those with the same key.

    Columns that are `fixed` keep what they were made with; so do the indexes on them, which is most of the writing.
    """

    def __init__(self, table: Table, fixed: Collection[str] = ()) -> None:
        self._table = table
        self._fixed = frozenset(fixed)
        self._texts: dict[Flavour, str] = {}

    def on(self, flavour: Flavour) -> str:
        if flavour not in self._texts:
            here = sqlite if flavour is Flavour.SQLITE else postgresql
            self._texts[flavour] = self._text(here.insert(self._table), flavour)
        return self._texts[flavour]

    @cached_property
    def listed(self) -> str:
        """All rows as one parameter: PostgreSQL takes a thousand so in the time of a few dozen single ones."""
        columns = self._table.columns
        given = func.jsonb_array_elements(cast(bindparam("rows"), JSONB)).column_valued("given")
        values = [
            cast(given.op("->>")(literal_column(str(place))), column.type) for place, column in enumerate(columns)
        ]
        listed = postgresql.insert(self._table).from_select([column.name for column in columns], select(*values))
        return self._text(listed, Flavour.POSTGRESQL)

    def _text(self, insert: sqlite.Insert | postgresql.Insert, flavour: Flavour) -> str:
        changing = [
            column.name for column in self._table.columns if not column.primary_key and column.name not in self._fixed
        ]
        key = list(self._table.primary_key.columns)
        if changing:
            replaced = {name: insert.excluded[name] for name in changing}
            upsert = insert.on_conflict_do_update(index_elements=key, set_=replaced)
        else:
            upsert = insert.on_conflict_do_nothing(index_elements=key)
        return str(upsert.compile(dialect=_DIALECTS[flavour]))


class Executor:
    """One transaction on one connection."""

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

    def rows(self, query: Query, **parameters: Any) -> Iterable[Row]:
        """To be read once: a large result is turned into objects row by row, and the collector has less to look at."""
        found: Iterable[Row] = self._execute(query, parameters)
        return found

    def row(self, query: Query, **parameters: Any) -> Row | None:
        row: Row | None = self._execute(query, parameters).fetchone()
        return row

    def value(self, query: Query, **parameters: Any) -> Any:
        """Of the first column of the first row; None: there is none."""
        row = self.row(query, **parameters)
        return None if row is None else row[0]

    def column(self, query: Query, **parameters: Any) -> list[Any]:
        """The first of every row."""
        return [row[0] for row in self._execute(query, parameters)]

    def run(self, query: Query, **parameters: Any) -> int:
        """How many rows it touched."""
        return int(self._execute(query, parameters).rowcount)

    def run_text(self, text: str, *parameters: Any) -> None:
        self._begin()
        self._connection.execute(text, parameters)

    def upsert(self, upsert: Upsert, rows: list[Row]) -> None:
        self._begin()
        if self.flavour is Flavour.POSTGRESQL and len(rows) >= _MANY:
            for some in chunks(rows, _ROWS_AT_ONCE):
                self._check()
                self._connection.execute(upsert.listed, (json_text(some),))
        elif rows:
            self._connection.cursor().executemany(upsert.on(self.flavour), rows)

    def run_each(self, query: Query, each: Iterable[dict[str, Any]]) -> None:
        self._begin()
        text, order, constant = query.on(self.flavour)
        rows = [tuple([values[name] for name in order]) for values in (constant | one for one in each)]
        self._connection.cursor().executemany(text, rows)

    def _execute(self, query: Query, parameters: dict[str, Any]) -> Any:
        self._begin()
        text, order, constant = query.on(self.flavour)
        if constant:
            parameters = constant | parameters
        values = [parameters[name] for name in order]
        if self.flavour is Flavour.SQLITE:
            values = [json_text(value) if isinstance(value, list) else value for value in values]
        return self._connection.execute(text, values)


class Repository:
    """What is kept of one noun. What is read is of one moment; what writes is for transactions alone."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def _all(self, mapper: Mapper[T], query: Query, **parameters: Any) -> list[T]:
        return [mapper.read(row) for row in self._executor.rows(query, **parameters)]

    def _find(self, mapper: Mapper[T], query: Query, **parameters: Any) -> T | None:
        row = self._executor.row(query, **parameters)
        return None if row is None else mapper.read(row)


def chunks(things: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(things), size):
        yield things[start : start + size]
