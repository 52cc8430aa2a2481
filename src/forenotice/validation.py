"""What msgspec finds wrong with something that was sent or written, as a sentence that says what would be right."""

import re
import types
import typing
from enum import Enum

import msgspec

NOUNS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
    "datetime": "a time such as 2026-01-31T12:00:00Z",
}
LENGTHS = {"str": "characters", "array": "items", "object": "entries"}
SENTENCES: dict[str, str] = {}
"""What to say in place of a regular expression that does not match."""
REPLACED: dict[str, str] = {}
"""Keys that are no longer known, and what to give instead."""

_PLACED = re.compile(r"(?P<what>.*) - at `(?:key` in `)?\$(?P<path>.*)`", re.DOTALL)
_KEY = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_LENGTH = re.compile(r"Expected `(\w+)` of length ([<>]=) (\d+)")
_BOUND = re.compile(r"Expected `\w+` ([<>]=?) (\S+)")
_TYPE = re.compile(r"Expected `(.+)`, got `(.+)`")


def pattern(expression: str, sentence: str, **constraints: typing.Any) -> msgspec.Meta:
    """The whole of a string must match; `sentence` goes on after the field's name, such as `must be ...`."""
    whole = rf"^{expression}\Z"
    assert SENTENCES.setdefault(whole, sentence) == sentence, "a form has one sentence"
    return msgspec.Meta(pattern=whole, **constraints)


class Problem(typing.NamedTuple):
    what: str
    """As msgspec says it."""
    path: str
    """To what it is said of, such as `names[0]`."""
    missing: str | None
    """The key that is missing there."""
    unknown: str | None
    """The key that is not known there."""

    @property
    def keys(self) -> tuple[str | int, ...]:
        """The parts of the path, such as `names` and 0."""
        return tuple(int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]]+", self.path))


def problem(error: msgspec.ValidationError) -> Problem:
    placed = _PLACED.fullmatch(str(error))
    what, path = (placed["what"], placed["path"].lstrip(".")) if placed else (str(error), "")
    verb, key = found.groups() if (found := _KEY.fullmatch(what)) else ("", None)
    return Problem(what, path, key if verb == "missing required" else None, key if verb == "contains unknown" else None)


def sentence(error: msgspec.ValidationError, kind: typing.Any, place: str) -> str:
    """`place` is where it was found, such as `the body`."""
    what, path, missing, unknown = problem(error)
    if missing is not None:
        return f"{f'{path}.{missing}'.lstrip('.')} in {place} is missing"
    if unknown is not None:
        other = REPLACED.get(unknown)
        return f"{f'{path}.{unknown}'.lstrip('.')} in {place} is not known" + (
            f" any more: give {other}" if other else ""
        )
    return f"{f'{path} in {place}' if path else place}{_complaint(what, kind, path)}"


def _complaint(what: str, kind: typing.Any, path: str) -> str:
    if found := _LENGTH.fullmatch(what):
        return f" must have at {'most' if found[2] == '<=' else 'least'} {found[3]} {LENGTHS.get(found[1], 'items')}"
    if found := _BOUND.fullmatch(what):
        relation = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}[found[1]]
        return f" must be {relation} {found[2].removesuffix('.0')}"
    if found := _TYPE.fullmatch(what):
        wanted = " or ".join(NOUNS.get(each, each) for each in found[1].split(" | "))
        return f" must be {wanted}, not {NOUNS.get(found[2], found[2])}"
    if "matching regex" in what:
        return next((f" {told}" for key, told in SENTENCES.items() if repr(key) in what), " has another form")
    if what.startswith("Invalid enum value"):
        return f" must be one of {', '.join(_choices(kind, path))}"
    if "datetime" in what:
        return f" must be {NOUNS['datetime']}"
    # What a type of ours says itself.
    return f": {what}"


def _choices(kind: typing.Any, path: str) -> list[str]:
    """The values that an enumeration at this path has."""
    for part in [None, *re.findall(r"[^.\[\]]+|\[[^\]]*\]", path)]:
        options = [kind] if part is None else [_within(each, part) for each in _options(kind)]
        kind = typing.Union[tuple(option for option in options if option is not None)]  # noqa: UP007
    found: list[str] = []
    for each in _options(kind):
        if isinstance(each, type) and issubclass(each, Enum):
            found += [str(member.value) for member in each]
        elif typing.get_origin(each) is typing.Literal:
            found += [str(value) for value in typing.get_args(each)]
    return found


def _options(kind: typing.Any) -> list[typing.Any]:
    if typing.get_origin(kind) is typing.Annotated:
        return _options(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [each for part in typing.get_args(kind) for each in _options(part)]
    return [kind]


def _within(kind: typing.Any, part: str) -> typing.Any:
    if part.startswith("[") or part == "...":
        arguments = [each for each in typing.get_args(kind) if each is not ...]
        return arguments[-1] if arguments else None
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
        return hints.get(names.get(part, ""))
    return None
