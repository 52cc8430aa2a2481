"""From TOML to a scenario. Whatever is wrong is refused with its line and column, and with what would be right."""

import typing
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import msgspec

from forenotice import toml, validation
from forenotice.core import errors, fleet
from forenotice.core.fleet import ScopeKind
from forenotice.core.operations import Kind
from forenotice.emulator import faults
from forenotice.emulator.scenarios import format as actions
from forenotice.emulator.scenarios.format import (
    FROZEN,
    NESTING,
    Action,
    Header,
    Scenario,
    ScenarioError,
    Step,
    Table,
    Until,
    Vm,
)
from forenotice.toml import Path, Text, nearest

LARGEST = 256 * 1024
"""Bytes of a file, or characters of a text."""
DEEPEST = 8
"""Repetitions within repetitions."""
MOST_VMS = 1000
MOST_STEPS = 2000
"""Played in one round, repetitions counted."""


Labels = dict[str, actions.AnnounceAction]
Problem = tuple[Path, str]
T = typing.TypeVar("T", bound=Table)


def read(text: str, source: str, *, name: str = "") -> Scenario:
    """`source` is the file that errors name, `name` what the scenario is called."""
    if len(text) > LARGEST:
        raise _too_large(source)
    written = Text(source, text, ScenarioError)
    content = written.parse()
    steps = _steps(written, content.pop("step", []), ("step",))
    header = _converted(written, content, Header, ())
    vms = _vms(header, written)
    resources = header.resources or tuple(vm.name for vm in vms)
    filled = {"vms": vms, "resources": resources, "caller": header.caller or resources[0], "steps": steps}
    known = msgspec.structs.asdict(header) | filled
    scenario = Scenario(**{**known, "name": name or source, "group": ScopeKind(header.group), "text": written})
    if sum(_played(step) for step in steps) > MOST_STEPS:
        raise written.complaint(("step",), f"one round plays more than {MOST_STEPS} steps: repeat fewer")
    for path, problem in _problems(scenario, steps, {}):
        raise written.complaint(path, problem)
    return scenario


def decode(content: bytes, source: str) -> str:
    """The text of a file, which need not have been read further than `LARGEST`."""
    if len(content) > LARGEST:
        raise _too_large(source)
    return toml.decode(content, source, ScenarioError).content


def _too_large(source: str) -> ScenarioError:
    return ScenarioError(f"{source} is too large for a scenario: at most {LARGEST // 1024} KiB")


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
    verbs = [key for key in table if key in actions.VERBS]
    if not verbs:
        known = list(actions.VERBS)
        strange = next(
            (key for key in table if all(key not in kind.__struct_encode_fields__ for kind in actions.ACTIONS)), None
        )
        if strange is None:
            raise text.complaint(path, f"the step does not say what to do: give one of {', '.join(known)}")
        raise text.complaint((*path, strange), nearest(strange, known, "step"))
    if len(verbs) > 1:
        raise text.complaint(
            (*path, verbs[1]), f"a step does one thing: begin another [[step]] for {verbs[1]!r}, after {verbs[0]!r}"
        )
    kind = actions.VERBS[verbs[0]]
    nested = _steps(text, table.pop("step", []), (*path, "step")) if issubclass(kind, NESTING) else ()
    return Step(path, _converted(text, table, kind, path), nested)


def _converted(text: Text, table: dict[str, Any], kind: type[T], path: Path) -> T:
    try:
        return msgspec.convert(table, kind, dec_hook=_read_duration)
    except msgspec.ValidationError as error:
        found = validation.problem(error)
        what, within = found.what, found.keys
        if found.missing is not None:
            raise text.complaint((*path, *within), f"the key {found.missing!r} is missing") from None
        if found.unknown is not None:
            struct: type[Table] = Vm if within else kind
            known = [*struct.__struct_encode_fields__, *(["step"] if issubclass(kind, (Header, *NESTING)) else [])]
            raise text.complaint((*path, *within, found.unknown), nearest(found.unknown, known, "key")) from None
        if what.startswith(("Expected `", "Invalid ")):
            what = validation.sentence(error, kind, "the scenario") + _meant(kind, table, within)
        raise text.complaint((*path, *within), what) from None


def _meant(kind: type[Table], table: dict[str, Any], within: Path) -> str:
    """The kinds of operation for the type of an event, which somebody may have given instead."""
    if kind is not actions.AnnounceAction or within != ("announce",):
        return ""
    meant = [each for each in Kind if each.traits.type.lower() == str(table["announce"]).lower()]
    return f": did you mean {' or '.join(meant)}?" if meant else ""


def _read_duration(kind: type, written: object) -> object:
    """All that is not plain TOML is a duration."""
    for each in written if isinstance(written, list) else [written]:
        if not isinstance(each, str):
            shown = str(each).lower() if isinstance(each, bool) else str(each)
            raise ValueError(f'{shown:.80} is not a duration: give one such as "30s", "5m" or "2h"')
    return kind.read(written)  # type: ignore[attr-defined]


def _vms(header: Header, text: Text) -> tuple[Vm, ...]:
    """All that there are; without `vms`, the resources in one update domain."""
    key = "vms" if header.vms else "resources"
    found: dict[str, Vm] = {}
    for index, each in enumerate(header.vms or header.resources):
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
    for index, name in enumerate(header.resources):
        if name not in found:
            raise text.complaint(("resources", index), nearest(name, list(found), "VM"))
    if header.caller and header.caller not in found:
        raise text.complaint(("as",), nearest(header.caller, list(found), "VM"))
    return tuple(found.values())


def _played(step: Step) -> int:
    times = step.action.repeat if isinstance(step.action, actions.RepeatAction) else 1
    return times * (1 + sum(_played(each) for each in step.steps))


def _labels(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        if isinstance(step.action, actions.AnnounceAction) and step.action.id:
            yield step.action.id
        yield from _labels(step.steps)


def _problems(scenario: Scenario, steps: Iterable[Step], labels: Labels) -> Iterator[Problem]:
    """What is wrong with the steps, found without playing them. `labels` are those announced so far, and grow."""
    for step in steps:
        verb = (*step.path, step.action.verb)
        match step.action:
            case actions.AnnounceAction() as action:
                yield from _announcement_problems(step.path, action, [vm.name for vm in scenario.vms], labels)
                if action.id:
                    labels[action.id] = action
            case actions.ApproveAction() | actions.CancelAction() | actions.WaitForAction() as action:
                label = getattr(action, action.verb)
                yield from ((verb, problem) for problem in _label_problems(scenario, action, label, labels))
            case actions.FaultAction(fault=name, amount=amount, lasts=lasts):
                yield from _fault_problems(verb, name)
                yield from _fault_problems((*step.path, "amount"), name, amount)
                yield from _fault_problems((*step.path, "lasts"), name, amount, lasts)
            case actions.FrozenAction(frozen=amount):
                yield from _fault_problems(verb, FROZEN, amount)
            case actions.ClearAction(clear=name):
                yield from _fault_problems(verb, name)
            case actions.RepeatAction():
                yield from _problems(scenario, step.steps, labels)
            case actions.ChooseAction(choose=number):
                if number > len(step.steps):
                    yield verb, f"{number} steps cannot be chosen from {len(step.steps)}"
                for each in step.steps:
                    yield from _problems(scenario, [each], dict(labels))


def _announcement_problems(
    path: Path, action: actions.AnnounceAction, names: list[str], labels: Labels
) -> Iterator[Problem]:
    for index, name in enumerate(action.resources):
        if name not in names:
            yield (*path, "resources", index), nearest(name, names, "VM")
        if name in action.resources[:index]:
            yield (*path, "resources", index), f"{name!r} is named twice"
    if action.notice is not None and action.announce is Kind.HARDWARE_FAILURE:
        yield (*path, "notice"), "hardware fails without notice: leave this out"
    if action.id in labels:
        yield (*path, "id"), f"the label {action.id!r} is given twice: choose another"


def _label_problems(scenario: Scenario, action: Action, label: str, labels: Labels) -> Iterator[str]:
    if label not in labels:
        later = label in _labels(scenario.steps)
        uncertain = f"{label!r} is not certain to have been announced by then"
        yield uncertain if later else nearest(label, list(labels), "event")
    elif labels[label].announce is Kind.HARDWARE_FAILURE:
        match action:
            case actions.CancelAction():
                yield f"{label!r} is Started at once: it cannot be cancelled"
            case actions.ApproveAction() | actions.WaitForAction(until=Until.APPROVED):
                yield f"{label!r} is Started at once: nobody can approve it"


def _fault_problems(
    path: Path, name: str, amount: timedelta | None = None, lasts: timedelta | None = None
) -> Iterator[Problem]:
    try:
        faults.find(name).accept(amount=amount, lasts=lasts)
    except errors.RefusedError as refusal:
        yield path, refusal.message
