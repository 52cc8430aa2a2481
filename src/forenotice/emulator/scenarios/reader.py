"""From TOML to a scenario. What is wrong is refused with its line and column, and with what would be right."""

import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any

import msgspec

from forenotice.core import errors, fleet
from forenotice.core.fleet import ScopeKind
from forenotice.core.operations import Kind
from forenotice.emulator import faults
from forenotice.emulator.scenarios.format import (
    ACTIONS,
    FROZEN,
    NESTING,
    VERBS,
    AnnounceAction,
    ApproveAction,
    CancelAction,
    ChooseAction,
    ClearAction,
    FaultAction,
    FrozenAction,
    Header,
    RepeatAction,
    Scenario,
    Step,
    Table,
    Until,
    Vm,
    WaitForAction,
)
from forenotice.emulator.scenarios.text import Path, Place, ScenarioError, Text, deep, long_number, nearest, place

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
    heading = _converted(written, content, Header, ())
    vms = _vms(heading, written)
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
    _check(scenario)
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
            place(before, len(before)), f"this is not UTF-8: the byte 0x{content[error.start]:02x}"
        ) from None


def _too_large(source: str) -> ScenarioError:
    return ScenarioError(f"{source} is too large for a scenario: at most {LARGEST // 1024} KiB")


def _parsed(text: Text) -> dict[str, Any]:
    if len(text.content) > LARGEST:
        raise _too_large(text.source)
    try:
        return tomllib.loads(text.content)
    except RecursionError:
        raise text.complaint_at(deep(text.content), "this is nested too deeply") from None
    except ValueError as error:
        found = _SYNTAX.fullmatch(str(error))
        if found is None and (number := long_number(text.content)):
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
        strange = next((key for key in table if all(key not in act.__struct_encode_fields__ for act in ACTIONS)), None)
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
    known = [*kind.__struct_encode_fields__, *(["step"] if issubclass(kind, (Header, *NESTING)) else [])]
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


MOST_VMS = 1000
MOST_STEPS = 2000
"""Played in one round, repetitions counted."""

Labels = dict[str, AnnounceAction]


def _vms(heading: Header, text: Text) -> tuple[Vm, ...]:
    """All that there are; without `vms`, the resources in one update domain."""
    key = "vms" if heading.vms else "resources"
    found: dict[str, Vm] = {}
    for index, each in enumerate(heading.vms or heading.resources):
        vm = Vm(name=each) if isinstance(each, str) else each
        path = (key, index, "name")
        try:
            fleet.require_name("VM", vm.name)
        except errors.RefusedError as error:
            raise text.complaint(path, error.message) from None
        if vm.name in found:
            raise text.complaint(path, f"two VMs are called {vm.name!r}")
        found[vm.name] = vm
    if not found:
        raise text.complaint((), 'say which VMs there are, such as resources = ["web-0"]')
    if len(found) > MOST_VMS:
        raise text.complaint((key,), f"there are {len(found)} VMs: at most {MOST_VMS}")
    for index, name in enumerate(heading.resources):
        if name not in found:
            raise text.complaint(("resources", index), nearest(name, list(found), "VM"))
    if heading.caller and heading.caller not in found:
        raise text.complaint(("as",), nearest(heading.caller, list(found), "VM"))
    return tuple(found.values())


def _check(scenario: Scenario) -> None:
    if sum(_played(step) for step in scenario.steps) > MOST_STEPS:
        raise scenario.text.complaint(("step",), f"one round plays more than {MOST_STEPS} steps: repeat fewer")
    _Steps(scenario).check(scenario.steps, {})


def _played(step: Step) -> int:
    times = step.action.repeat if isinstance(step.action, RepeatAction) else 1
    return times * (1 + sum(_played(each) for each in step.steps))


def _labels(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        if isinstance(step.action, AnnounceAction) and step.action.id:
            yield step.action.id
        yield from _labels(step.steps)


class _Steps:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._text = scenario.text
        self._names = [vm.name for vm in scenario.vms]

    def check(self, steps: Iterable[Step], labels: Labels) -> None:
        """`labels` are those announced so far, and grow."""
        for step in steps:
            match step.action:
                case AnnounceAction() as act:
                    self._check_announcement(step, act, labels)
                case ApproveAction(approve=label) | CancelAction(cancel=label) | WaitForAction(wait_for=label):
                    self._check_label(step, label, labels)
                case FaultAction(fault=name, amount=amount, lasts=lasts):
                    self._check_fault(step, name)
                    self._check_fault(step, name, "amount", amount=amount)
                    self._check_fault(step, name, "lasts", amount=amount, lasts=lasts)
                case FrozenAction(frozen=amount):
                    self._check_fault(step, FROZEN, amount=amount)
                case ClearAction(clear=name):
                    self._check_fault(step, name)
                case RepeatAction():
                    self.check(step.steps, labels)
                case ChooseAction(choose=number):
                    self._check_choice(step, number, labels)

    def _check_announcement(self, step: Step, act: AnnounceAction, labels: Labels) -> None:
        for index, name in enumerate(act.resources):
            if name not in self._names:
                raise self._text.complaint((*step.path, "resources", index), nearest(name, self._names, "VM"))
            if name in act.resources[:index]:
                raise self._text.complaint((*step.path, "resources", index), f"{name!r} is named twice")
        if act.notice is not None and act.announce is Kind.HARDWARE_FAILURE:
            raise self._text.complaint((*step.path, "notice"), "hardware fails without notice: leave this out")
        if act.id in labels:
            raise self._text.complaint((*step.path, "id"), f"the label {act.id!r} is given twice: choose another")
        if act.id:
            labels[act.id] = act

    def _check_label(self, step: Step, label: str, labels: Labels) -> None:
        path = (*step.path, step.action.verb)
        if label not in labels:
            if label in _labels(self._scenario.steps):
                raise self._text.complaint(path, f"{label!r} is not certain to have been announced by then")
            raise self._text.complaint(path, nearest(label, list(labels), "event"))
        if labels[label].announce is Kind.HARDWARE_FAILURE:
            match step.action:
                case CancelAction():
                    raise self._text.complaint(path, f"{label!r} is born Started: it cannot be cancelled")
                case ApproveAction() | WaitForAction(until=Until.APPROVED):
                    raise self._text.complaint(path, f"{label!r} is born Started: nobody can approve it")

    def _check_fault(
        self, step: Step, name: str, key: str = "", *, amount: timedelta | None = None, lasts: timedelta | None = None
    ) -> None:
        """`key` is what has been added since it was last checked."""
        try:
            faults.find(name).accept(amount=amount, lasts=lasts)
        except errors.RefusedError as refusal:
            raise self._text.complaint((*step.path, key or step.action.verb), refusal.message) from None

    def _check_choice(self, step: Step, number: int, labels: Labels) -> None:
        if number > len(step.steps):
            raise self._text.complaint(
                (*step.path, "choose"), f"{number} steps cannot be chosen from {len(step.steps)}"
            )
        for each in step.steps:
            self.check([each], dict(labels))
