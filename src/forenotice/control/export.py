"""The history as files: JSON lines, and CSV for spreadsheets."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import chain

import msgspec
from starlette.responses import StreamingResponse

from forenotice.core import errors
from forenotice.views.history import Entry

Rendering = Callable[[Iterable[list[Entry]]], Iterator[bytes]]

COLUMNS = Entry.__struct_fields__
FORMULAS = (*"=+-@", *"\uff1d\uff0b\uff0d\uff20", "\t", "\r")
"""A spreadsheet takes what begins so for a formula, full-width signs too."""

_encode = msgspec.json.Encoder().encode


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"


def as_lines(pages: Iterable[list[Entry]]) -> Iterator[bytes]:
    for page in pages:
        yield b"".join(_encode(entry) + b"\n" for entry in page)


def as_csv(pages: Iterable[list[Entry]]) -> Iterator[bytes]:
    """With a head, lines that end as RFC 4180 has them, and an apostrophe before what could be taken for a formula."""
    yield _written([COLUMNS])
    for page in pages:
        yield _written([[_cell(getattr(entry, column)) for column in COLUMNS] for entry in page])


def _written(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict):
        return _encode(value).decode() if value else ""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value


RENDERINGS: Mapping[Format, tuple[str, Rendering]] = {
    Format.JSONL: ("application/jsonl", as_lines),
    Format.CSV: ("text/csv; charset=utf-8", as_csv),
}


def streamed(form: Format, pages: Iterator[list[Entry]], is_allowed: Callable[[], bool]) -> StreamingResponse:
    """As a file, as slowly as it is taken, while whoever takes it may see it."""
    kind, render = RENDERINGS[form]
    # What goes wrong at once is answered as everywhere; what goes wrong later breaks the stream off.
    first = next(pages, [])
    rest = _while_allowed(pages, is_allowed)
    name = f'attachment; filename="history.{form}"'
    return StreamingResponse(render(chain([first], rest)), media_type=kind, headers={"Content-Disposition": name})


def _while_allowed(pages: Iterator[list[Entry]], is_allowed: Callable[[], bool]) -> Iterator[list[Entry]]:
    for page in pages:
        if not is_allowed():
            raise errors.UnauthorizedError
        yield page
