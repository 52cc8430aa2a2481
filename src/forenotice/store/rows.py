"""Rows by name: a column is the field of the same name, and the field's type says how its value is kept."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from sqlalchemy import Column

from forenotice.core import timing

T = TypeVar("T")
Row = tuple[Any, ...]
Convert = Callable[[Any], Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
CACHED = 1024
"""Many rows of one transaction hold the same time, and a fleet has few different policies, labels and facts."""

encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=CACHED)
def number(moment: datetime | None) -> int | None:
    """Whole microseconds since 1970."""
    return None if moment is None else (timing.require_aware(moment) - EPOCH) // MICROSECOND


@lru_cache(maxsize=CACHED)
def moment(number: int) -> datetime:
    return EPOCH + timedelta(microseconds=number)


@lru_cache(maxsize=CACHED)
def optional_moment(number: int | None) -> datetime | None:
    return None if number is None else moment(number)


def microseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // MICROSECOND


def duration(number: int | None) -> timedelta | None:
    return None if number is None else timedelta(microseconds=number)


def json_text(value: object) -> str:
    return encode(value).decode()


class Codec(NamedTuple):
    """How a value is read from its column, and written there; None: as it is."""

    read: Convert | None = None
    write: Convert | None = None


def amount(value: float | None) -> float | None:
    """Whole numbers as such, as they were given."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


AMOUNT = Codec(amount)
_BY_TYPE = {
    str: Codec(),
    int: Codec(),
    float: Codec(),
    bytes: Codec(bytes),
    bool: Codec(bool),
    datetime: Codec(optional_moment, number),
    timedelta: Codec(duration, microseconds),
}


def json_codec(hint: Any, *, empty: Callable[[], Any], nullable: bool, cached: bool = False) -> Codec:
    """As JSON; what is empty is NULL where the column allows it."""
    decode: Convert = msgspec.json.Decoder(hint).decode
    if cached:
        decode = lru_cache(maxsize=CACHED)(decode)
    if not nullable:
        return Codec(decode, json_text)
    nothing = empty()
    return Codec(
        lambda text: decode(text) if text else empty(),
        lambda value: None if value is nothing or value == nothing else json_text(value),
    )


def _codec(hint: Any, column: Column[Any]) -> Codec:
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    is_optional = len(kinds) == 1 and type(None) in get_args(hint)
    kind = kinds[0] if is_optional else hint
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Codec({member.value: member for member in kind}.__getitem__, attrgetter("value"))
    if is_optional:
        return json_codec(kind, empty=lambda: None, nullable=True)
    origin = get_origin(kind) or kind
    empty: Callable[[], Any] = tuple if origin is tuple else dict
    return json_codec(kind, empty=empty, nullable=bool(column.nullable))


class Mapper(Generic[T]):
    """Rows that begin with these columns, as objects with fields of their names, or of those that are `renamed`.

    Columns that are no field are passed over; fields that are no column may be `computed` from the row.
    """

    def __init__(
        self,
        columns: Iterable[Column[Any]],
        made: type[T],
        *,
        renamed: Mapping[str, str] | None = None,
        codecs: Mapping[str, Codec] | None = None,
        computed: Mapping[str, Convert] | None = None,
    ) -> None:
        hints, renamed, codecs = get_type_hints(made), renamed or {}, codecs or {}
        fields = [(renamed.get(column.name, column.name), place, column) for place, column in enumerate(columns)]
        fields = [(name, place, column) for name, place, column in fields if name in hints]
        self.columns = tuple(column.name for _, _, column in fields)
        # Written out as one expression, as `dataclasses` does: a loop over the fields takes three times as long.
        known: dict[str, Any] = {"made": made}
        reads, writes = [], []
        for name, place, column in fields:
            codec = codecs.get(name) or _codec(hints[name], column)
            known |= {f"read_{name}": codec.read, f"write_{name}": codec.write}
            reads.append(f"{name}=" + (f"read_{name}(row[{place}])" if codec.read else f"row[{place}]"))
            writes.append(f"write_{name}(one.{name})" if codec.write else f"one.{name}")
        for name, compute in (computed or {}).items():
            known[f"read_{name}"] = compute
            reads.append(f"{name}=read_{name}(row)")
        self.read: Callable[[Row], T] = eval(f"lambda row: made({', '.join(reads)})", known)  # noqa: S307 (our names)
        self.row: Callable[[T], Row] = eval(f"lambda one: ({', '.join(writes)},)", known)  # noqa: S307 (our names)
        self._pick = itemgetter(*(place for _, place, _ in fields))
        self._places = [place for _, place, _ in fields]
        self._share = lru_cache(maxsize=CACHED)(self._read_picked)

    def shared(self, row: Row) -> T:
        """One object for all rows with equal columns."""
        return self._share(self._pick(row))

    def _read_picked(self, values: Row) -> T:
        return self.read(dict(zip(self._places, values, strict=True)))  # type: ignore[arg-type]
