"""What can be told of a scenario without playing it: names, labels and sizes."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

from forenotice.core import errors, fleet
from forenotice.core.operations import Kind
from forenotice.emulator.faults import table as faults
from forenotice.emulator.scenarios.format import (
    FROZEN,
    Announce,
    Approve,
    Cancel,
    Choose,
    Clear,
    Fault,
    Frozen,
    Heading,
    Repeat,
    Scenario,
    Step,
    Until,
    Vm,
    WaitFor,
)
from forenotice.emulator.scenarios.text import Text, nearest

MOST_VMS = 1000
MOST_STEPS = 2000
"""Played in one round, repetitions counted."""

Labels = dict[str, Announce]


def vms(heading: Heading, text: Text) -> tuple[Vm, ...]:
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


def check(scenario: Scenario) -> None:
    if sum(_played(step) for step in scenario.steps) > MOST_STEPS:
        raise scenario.text.complaint(("step",), f"one round plays more than {MOST_STEPS} steps: repeat fewer")
    _Steps(scenario).check(scenario.steps, {})


def _played(step: Step) -> int:
    times = step.act.repeat if isinstance(step.act, Repeat) else 1
    return times * (1 + sum(_played(each) for each in step.steps))


def _labels(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        if isinstance(step.act, Announce) and step.act.id:
            yield step.act.id
        yield from _labels(step.steps)


class _Steps:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._text = scenario.text
        self._names = [vm.name for vm in scenario.vms]

    def check(self, steps: Iterable[Step], labels: Labels) -> None:
        """`labels` are those announced so far, and grow."""
        for step in steps:
            match step.act:
                case Announce() as act:
                    self._check_announcement(step, act, labels)
                case Approve(approve=label) | Cancel(cancel=label) | WaitFor(wait_for=label):
                    self._check_label(step, label, labels)
                case Fault(fault=name, amount=amount, lasts=lasts):
                    self._check_fault(step, name)
                    self._check_fault(step, name, "amount", amount=amount)
                    self._check_fault(step, name, "lasts", amount=amount, lasts=lasts)
                case Frozen(frozen=amount):
                    self._check_fault(step, FROZEN, amount=amount)
                case Clear(clear=name):
                    self._check_fault(step, name)
                case Repeat():
                    self.check(step.steps, labels)
                case Choose(choose=number):
                    self._check_choice(step, number, labels)

    def _check_announcement(self, step: Step, act: Announce, labels: Labels) -> None:
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
        path = (*step.path, step.act.verb)
        if label not in labels:
            if label in _labels(self._scenario.steps):
                raise self._text.complaint(path, f"{label!r} is not certain to have been announced by then")
            raise self._text.complaint(path, nearest(label, list(labels), "event"))
        if labels[label].announce is Kind.HARDWARE_FAILURE:
            match step.act:
                case Cancel():
                    raise self._text.complaint(path, f"{label!r} is born Started: it cannot be cancelled")
                case Approve() | WaitFor(until=Until.APPROVED):
                    raise self._text.complaint(path, f"{label!r} is born Started: nobody can approve it")

    def _check_fault(
        self, step: Step, name: str, key: str = "", *, amount: timedelta | None = None, lasts: timedelta | None = None
    ) -> None:
        """`key` is what has been added since it was last checked."""
        try:
            faults.find(name).accept(amount=amount, lasts=lasts)
        except errors.RefusedError as refusal:
            raise self._text.complaint((*step.path, key or step.act.verb), refusal.message) from None

    def _check_choice(self, step: Step, number: int, labels: Labels) -> None:
        if number > len(step.steps):
            raise self._text.complaint(
                (*step.path, "choose"), f"{number} steps cannot be chosen from {len(step.steps)}"
            )
        for each in step.steps:
            self.check([each], dict(labels))
