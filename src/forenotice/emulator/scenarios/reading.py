"""From TOML to a scenario. What is wrong is refused with its line and column, and with what would be right."""

import re
import tomllib
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from forenotice.core.fleet import ScopeKind
from forenotice.core.operations import Kind
from forenotice.emulator.scenarios import checking, positions
from forenotice.emulator.scenarios.format import ACTS, NESTING, VERBS, Heading, Scenario, Step, Table, Vm
from forenotice.emulator.scenarios.positions import Path, Place
from forenotice.emulator.scenarios.text import ScenarioError, Text, nearest

LARGEST = 256 * 1024
"""Bytes of a file, or characters of a text."""
DEEPEST = 8
"""Repetitions within repetitions."""

_SYNTAX = re.compile(r"(?P<said>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)
_PLACED = re.compile(r"(?P<said>.*) - at `\$(?P<path>.*)`", re.DOTALL)
_PART = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_OF_KEY = re.compile(r"Object (?P<what>contains unknown|missing required) field `(?P<key>.*)`", re.DOTALL)
_OF_TYPE = re.compile(r"(Expected `|Invalid (enum )?value )")

_WORDS: Mapping[object, str] = {
    str: 'a text in quotes, such as "a"',
    int: "a whole number",
    bool: "true or false",
    Vm: 'a table, such as { name = "web-0", update_domain = 1 }',
}


def read(text: str, source: str, *, name: str = "") -> Scenario:
    """`source` is the file that complaints speak of, `name` what the scenario is called."""
    written = Text(source, text)
    content = _parsed(written)
    steps = _steps(written, content.pop("step", []), ("step",))
    heading = _converted(written, content, Heading, ())
    vms = checking.vms(heading, written)
    resources = heading.resources or tuple(vm.name for vm in vms)
    scenario = Scenario(
        name=name or source,
        title=heading.title,
        description=heading.description,
        timing=heading.timing,
        resources=resources,
        vms=vms,
        caller=heading.caller or resources[0],
        group=ScopeKind(heading.group),
        listening=heading.listening,
        seed=heading.seed,
        repeat=heading.repeat,
        steps=steps,
        text=written,
    )
    checking.check(scenario)
    return scenario


def decode(content: bytes, source: str) -> str:
    """What is in a file; it need not have been read further than `LARGEST`."""
    if len(content) > LARGEST:
        raise _too_large(source)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        raise Text(source, before).complaint_at(
            positions.place(before, len(before)), f"this is not UTF-8: the byte 0x{content[error.start]:02x}"
        ) from None


def _too_large(source: str) -> ScenarioError:
    return ScenarioError(f"{source} is too large for a scenario: at most {LARGEST // 1024} KiB")


def _parsed(text: Text) -> dict[str, Any]:
    if len(text.content) > LARGEST:
        raise _too_large(text.source)
    try:
        return tomllib.loads(text.content)
    except RecursionError:
        raise text.complaint_at(positions.deep(text.content), "this is nested too deeply") from None
    except ValueError as error:
        found = _SYNTAX.fullmatch(str(error))
        if found is None and (number := positions.long_number(text.content)):
            raise text.complaint_at(number, "this number has too many digits") from None
        if found is None:
            raise ScenarioError(f"{text.source} is not TOML: {error}") from None
        lines = text.content.split("\n")
        place = Place(int(found["line"] or len(lines)), int(found["column"] or len(lines[-1]) + 1))
        raise text.complaint_at(place, f"this is not TOML: {found['said'][:1].lower()}{found['said'][1:]}") from None


def _steps(text: Text, tables: object, path: Path) -> tuple[Step, ...]:
    if len(path) > 2 * DEEPEST:
        raise text.complaint(path, f"steps are nested too deeply: at most {DEEPEST}")
    header = ".".join(str(key) for key in path if isinstance(key, str))
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise text.complaint(path, f"begin each step with [[{header}]], in two brackets")
    if not tables:
        raise text.complaint(path[:-1], f"there are no steps: begin each with [[{header}]]")
    return tuple(_step(text, table, (*path, index)) for index, table in enumerate(tables))


def _step(text: Text, table: dict[str, Any], path: Path) -> Step:
    verbs = [key for key in table if key in VERBS]
    if not verbs:
        known = list(VERBS)
        strange = next((key for key in table if all(key not in act.__struct_encode_fields__ for act in ACTS)), None)
        if strange is None:
            raise text.complaint(path, f"the step does not say what to do: give one of {', '.join(known)}")
        raise text.complaint((*path, strange), nearest(strange, known, "step"))
    if len(verbs) > 1:
        raise text.complaint(
            (*path, verbs[1]), f"a step does one thing: begin another [[step]] for {verbs[1]!r}, after {verbs[0]!r}"
        )
    kind = VERBS[verbs[0]]
    if not issubclass(kind, NESTING):
        return Step(path, _converted(text, table, kind, path))
    nested = _steps(text, table.pop("step", []), (*path, "step"))
    return Step(path, _converted(text, table, kind, path), nested)


T = typing.TypeVar("T", bound=Table)


def _converted(text: Text, table: dict[str, Any], kind: type[T], path: Path) -> T:
    try:
        return msgspec.convert(table, kind, dec_hook=_hook)
    except msgspec.ValidationError as error:
        placed = _PLACED.fullmatch(str(error))
        said, within = (placed["said"], _split(placed["path"])) if placed else (str(error), ())
        if found := _OF_KEY.fullmatch(said):
            raise _about_key(text, found, kind if not within else Vm, (*path, *within)) from None
        if _OF_TYPE.match(said):
            raise text.complaint((*path, *within), _about_type(said, kind, table, within)) from None
        raise text.complaint((*path, *within), said) from None


def _hook(kind: type, written: object) -> object:
    """All that is not plain TOML is a duration."""
    for each in written if isinstance(written, list) else [written]:
        if not isinstance(each, str):
            raise ValueError(f'{_shown(each)} is not a duration: give one such as "30s", "5m" or "2h"')
    return kind.read(written)  # type: ignore[attr-defined]


def _split(path: str) -> Path:
    return tuple(key or int(index) for key, index in _PART.findall(path))


def _about_key(text: Text, found: re.Match[str], kind: type[Table], path: Path) -> ScenarioError:
    if found["what"] == "missing required":
        return text.complaint(path, f"the key {found['key']!r} is missing")
    known = [*kind.__struct_encode_fields__, *(["step"] if issubclass(kind, (Heading, *NESTING)) else [])]
    return text.complaint((*path, found["key"]), nearest(found["key"], known, "key"))


def _about_type(said: str, kind: type[Table], table: object, within: Path) -> str:
    """`repeat must be a whole number or "forever", not "never"`"""
    hint: Any = kind
    for part in within:
        table = table[part]  # type: ignore[index]
        hint = _inside(hint, part)
    bound = re.search(r"([<>])= (.*)", said)
    words = f"at {'least' if bound[1] == '>' else 'most'} {bound[2]}" if bound else _words(hint)
    key = next(part for part in reversed(within) if isinstance(part, str))
    meant = [kind for kind in Kind if hint is Kind and kind.traits.type.lower() == str(table).lower()]
    remedy = f": did you mean {' or '.join(meant)}?" if meant else ""
    return f"{key} must be {words}, not {_shown(table)}{remedy}"


def _inside(hint: Any, part: str | int) -> Any:
    if isinstance(part, int):
        return typing.get_args(hint)[0]
    tables = [each for each in (hint, *typing.get_args(hint)) if isinstance(each, type) and issubclass(each, Table)]
    fields = msgspec.structs.fields(tables[0])
    return next(field.type for field in fields if field.encode_name == part)


def _words(hint: Any) -> str:
    match typing.get_origin(hint):
        case None:
            if isinstance(hint, type) and issubclass(hint, Enum):
                return f"one of {', '.join(hint)}"
            return _WORDS.get(hint, str(hint))
        case types.UnionType | typing.Union:
            return " or ".join(_words(each) for each in typing.get_args(hint) if each is not types.NoneType)
        case typing.Literal:
            return " or ".join(f'"{each}"' for each in typing.get_args(hint))
        case _ if typing.get_origin(hint) is tuple:
            return 'a list, such as ["web-0", "web-1"]'
        case _:
            return _words(typing.get_args(hint)[0])


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
