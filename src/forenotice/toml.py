"""TOML files: reading them, and the line and column of what is wrong, which tomllib tells of syntax errors only."""

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any, NamedTuple

from forenotice import secret_files
from forenotice.core import errors

Path = tuple[str | int, ...]
"""`("step", 2, "notice")`: keys, and indexes into arrays."""

_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[A-Za-z0-9_-]+')
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_STRING = (
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
)
_SCALAR = re.compile(
    _STRING + r"|\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]+"
    r"|[^\s,\]}#]+",
    re.DOTALL,
)
_TOKEN = re.compile(_STRING + r"|#[^\n]*|(?P<bracket>[\[\]{}])|(?P<word>[^\s\[\]{},=#\"']+)", re.DOTALL)
_SYNTAX = re.compile(r"(?P<said>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d[\d_]*")
DEEP = 100
"""Brackets within brackets: where tomllib has given up, it is more."""


class Place(NamedTuple):
    line: int
    column: int


FIRST = Place(1, 1)


def places(text: str) -> dict[Path, Place]:
    """Of every key, table and element of an array in a text that tomllib has accepted."""
    text = text.replace("\r\n", "\n")
    found: dict[Path, Place] = {}
    line, start = 1, 0
    for path, offset in sorted(_Scanner(text).offsets.items(), key=lambda each: each[1]):
        line += text.count("\n", start, offset)
        start = offset
        found[path] = Place(line, offset - text.rfind("\n", 0, offset))
    return found


def place(text: str, offset: int) -> Place:
    return Place(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def deep(text: str) -> Place:
    """Where a text is nested too deeply for tomllib."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token["bracket"]:
            depth += 1 if token["bracket"] in "[{" else -1
        if depth > DEEP:
            return place(text, token.start())
    return FIRST


def long_number(text: str) -> Place | None:
    """Where a number has more digits than Python reads."""
    for token in _TOKEN.finditer(text):
        word = token["word"] or ""
        if _INTEGER.fullmatch(word) and sum(map(str.isdigit, word)) > sys.get_int_max_str_digits() > 0:
            return place(text, token.start())
    return None


def nearest_place(found: dict[Path, Place], path: Path) -> Place:
    """Of the path, or of what would hold it: what is missing has no place of its own."""
    while path and path not in found:
        path = path[:-1]
    return found.get(path, FIRST)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.offsets: dict[Path, int] = {}
        self._text = text
        self._at = 0
        self._tables: dict[Path, int] = {}
        """How many each array of tables has so far."""
        self._scan()

    def _scan(self) -> None:
        table: Path = ()
        while self._skip(_GAP) < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        start = self._at
        many = self._text.startswith("[[", start)
        self._at += 2 if many else 1
        path: Path = ()
        for key, _ in self._keys():
            path = (*self._latest(path), key)
            self.offsets.setdefault(path, start)
        if many:
            self._tables[path] = self._tables.get(path, 0) + 1
            path = self._latest(path)
            self.offsets[path] = start
        self._at = self._text.index("]", self._at) + (2 if many else 1)
        return path

    def _latest(self, path: Path) -> Path:
        return (*path, self._tables[path] - 1) if path in self._tables else path

    def _pair(self, path: Path) -> None:
        for key, offset in self._keys():
            path = (*path, key)
            self.offsets.setdefault(path, offset)
        self._skip(_GAP)
        self._at += len("=")
        self._value(path)

    def _keys(self) -> Iterator[tuple[str, int]]:
        """A dotted key, part by part."""
        while True:
            self._skip(_GAP)
            start = self._at
            raw = self._text[start : self._skip(_KEY)]
            yield (raw if raw[0] not in "\"'" else next(iter(tomllib.loads(f"{raw} = 0")))), start
            if self._skip(_DOT) == start + len(raw):
                return

    def _value(self, path: Path) -> None:
        self._skip(_GAP)
        opening = self._text[self._at]
        if opening not in "[{":
            self._skip(_SCALAR)
            return
        self._at += 1
        index = 0
        while self._text[self._skip(_GAP)] not in "]}":
            if opening == "{":
                self._pair(path)
            else:
                self.offsets[*path, index] = self._at
                self._value((*path, index))
                index += 1
            self._skip(_GAP)
            self._at += self._text[self._at] == ","
        self._at += 1

    def _skip(self, pattern: re.Pattern[str]) -> int:
        """Past what the pattern matches here, if it does."""
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._at


@dataclass(frozen=True, slots=True)
class Text:
    source: str
    """The name of the file."""
    content: str = field(repr=False)
    error: type[errors.RefusedError] = errors.RefusedError
    """What is raised when something is wrong."""

    def parse(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self.content)
        except RecursionError:
            raise self.complaint_at(deep(self.content), "this is nested too deeply") from None
        except ValueError as error:
            found = _SYNTAX.fullmatch(str(error))
            if found is None and (number := long_number(self.content)):
                raise self.complaint_at(number, "this number has too many digits") from None
            if found is None:
                raise self.error(f"{self.source} is not TOML: {error}") from None
            lines = self.content.split("\n")
            place = Place(int(found["line"] or len(lines)), int(found["column"] or len(lines[-1]) + 1))
            sentence = f"this is not TOML: {found['said'][:1].lower()}{found['said'][1:]}"
            raise self.complaint_at(place, sentence) from None

    def place(self, path: Path) -> Place:
        # Only for those who erred: nobody else needs it.
        return nearest_place(places(self.content), path)

    def complaint(self, path: Path, sentence: str) -> errors.RefusedError:
        return self.complaint_at(self.place(path), sentence)

    def complaint_at(self, place: Place, sentence: str) -> errors.RefusedError:
        return self.error(
            f"{self.source}:{place.line}:{place.column}: {sentence}",
            source=self.source,
            line=place.line,
            column=place.column,
        )


def decode(content: bytes, source: str, error: type[errors.RefusedError] = errors.RefusedError) -> Text:
    try:
        return Text(source, content.decode(), error)
    except UnicodeDecodeError as found:
        before = content[: found.start].decode()
        raise Text(source, before, error).complaint_at(
            place(before, len(before)), f"this is not UTF-8: the byte 0x{content[found.start]:02x}"
        ) from None


def read(path: File, noun: str, error: type[errors.RefusedError], *, secret: bool = False, links: bool = False) -> Text:
    """A file that other users cannot change, or with `secret` read."""
    try:
        return decode(secret_files.read(path, noun, secret=secret, links=links), str(path), error)
    except errors.RefusedError as refused:
        raise refused if isinstance(refused, error) else error(refused.message) from None


def nearest(word: str, known: list[str], noun: str) -> str:
    """`there is no VM 'web-O'; did you mean 'web-0'?`"""
    # Only for those who erred: it is not needed otherwise.
    from difflib import get_close_matches

    near = get_close_matches(word, known, 1)
    remedy = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}" if known else "there are none"
    return f"there is no {noun} {word[:80]!r}; {remedy}"
