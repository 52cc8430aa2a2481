"""What a scenario may say. docs/scenarios.md has every key, and a test compares."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

import msgspec

from forenotice.core import errors, fleet
from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.operations import Kind
from forenotice.emulator import faults
from forenotice.settings.values import Span
from forenotice.toml import Path, Text
from forenotice.views.emulator import MOST_TIMES

FOREVER = "forever"
FROZEN = "frozen"
"""The fault that a step of this name switches on."""

Names = tuple[str, ...]
Times = Annotated[int, msgspec.Meta(ge=1, le=MOST_TIMES)]
Domain = Annotated[int, msgspec.Meta(ge=0, le=999)]


class ScenarioError(errors.RefusedError):
    """The scenario cannot be played."""

    code = "scenario"


class Origin(StrEnum):
    """Where the durations of a scenario come from."""

    MEASURED = "measured"
    DOCUMENTED = "documented"
    OURS = "ours"


class Group(StrEnum):
    """What the VMs are to each other; they share one document."""

    AVAILABILITY_SET = "availability-set"
    PLACEMENT_GROUP = "placement-group"
    CLOUD_SERVICE = "cloud-service"


class Until(StrEnum):
    """How far an event has come."""

    APPROVED = "approved"
    STARTED = "started"
    GONE = "gone"


class SpanRange:
    """A fixed time, or one between two that the seed decides."""

    def __init__(self, least: Span, most: Span) -> None:
        self.least, self.most = least, most

    @classmethod
    def read(cls, written: object) -> "SpanRange":
        if not isinstance(written, list):
            span = Span.read(written)
            return cls(span, span)
        spans = [Span.read(each) for each in written]
        if len(spans) != 2 or spans[0] > spans[1]:
            raise ValueError('a random wait is a list of the shortest and the longest, such as ["5m", "15m"]')
        return cls(*spans)


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Vm(Table, frozen=True, kw_only=True):
    name: str
    update_domain: Domain = 0


class Action(Table, frozen=True, kw_only=True):
    verb: ClassVar[str]
    at: Span | None = None
    """Not before this long after the start of the scenario, or of the repetition it is in."""


class AnnounceAction(Action, frozen=True, kw_only=True):
    verb = "announce"
    announce: Kind
    id: str = ""
    """A label, for later steps to speak of the event."""
    resources: Names = ()
    notice: Span | None = None
    takes: Span | None = None
    """How long it is Started."""
    description: str | None = None
    duration: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    """DurationInSeconds."""


class WaitAction(Action, frozen=True, kw_only=True):
    verb = "wait"
    wait: SpanRange


class WaitForAction(Action, frozen=True, kw_only=True):
    verb = "wait_for"
    wait_for: str
    until: Until = Until.GONE
    at_most: Span | None = None


class ApproveAction(Action, frozen=True, kw_only=True):
    verb = "approve"
    approve: str


class CancelAction(Action, frozen=True, kw_only=True):
    verb = "cancel"
    cancel: str


class FaultAction(Action, frozen=True, kw_only=True):
    verb = "fault"
    fault: str
    amount: faults.Amount | None = None
    lasts: Span | None = None
    times: Times | None = None
    on: faults.On | None = None


class ClearAction(Action, frozen=True, kw_only=True):
    verb = "clear"
    clear: str


class FrozenAction(Action, frozen=True, kw_only=True):
    verb = "frozen"
    frozen: Span


class RepeatAction(Action, frozen=True, kw_only=True):
    verb = "repeat"
    repeat: Times


class ChooseAction(Action, frozen=True, kw_only=True):
    verb = "choose"
    choose: Times


ACTIONS: tuple[type[Action], ...] = (
    *(AnnounceAction, WaitAction, WaitForAction, ApproveAction, CancelAction),
    *(FaultAction, ClearAction, FrozenAction, RepeatAction, ChooseAction),
)
VERBS = {act.verb: act for act in ACTIONS}
NESTING = (RepeatAction, ChooseAction)
"""These have steps of their own."""


@dataclass(frozen=True, slots=True)
class Step:
    path: Path
    """Where it is written."""
    action: Action
    steps: "tuple[Step, ...]" = ()


class Header(Table, frozen=True, kw_only=True):
    """All that comes before the steps."""

    title: str
    description: str = ""
    timing: Origin = Origin.OURS
    resources: Names = ()
    vms: tuple[str | Vm, ...] = ()
    caller: str = msgspec.field(name="as", default="")
    group: Group = Group.AVAILABILITY_SET
    listening: Listening = Listening.ALWAYS
    seed: int = 0
    repeat: Times | Literal["forever"] = 1


class Scenario(Header, frozen=True, kw_only=True):
    """One that has been read: everything is filled in, and names only what there is."""

    name: str
    vms: tuple[Vm, ...]
    group: ScopeKind  # type: ignore[assignment]
    steps: tuple[Step, ...]
    text: Text
    unchecked_from: Step | None = None
    """How far it was rehearsed, if not to its end."""

    def on(self, names: Names) -> "Scenario":
        """The same, with other VMs in place of its resources."""
        if len(names) != len(self.resources) and any(_names_resources(step) for step in self.steps):
            raise errors.RefusedError(
                f"{self.name} speaks of each of its resources: give {len(self.resources)} names, not {len(names)}"
            )
        if len(set(names)) < len(names) or not names:
            raise errors.RefusedError("give each resource once, and at least one")
        renamed = dict(zip(self.resources, names, strict=False))
        domain = next(vm.update_domain for vm in self.vms if vm.name == self.resources[0])
        vms = [
            *(Vm(name=renamed[vm.name], update_domain=vm.update_domain) for vm in self.vms if vm.name in renamed),
            *(vm for vm in self.vms if vm.name not in self.resources),
            *(Vm(name=name, update_domain=domain) for name in names[len(self.resources) :]),
        ]
        known = [fleet.require_name("VM", vm.name) for vm in vms]
        if len(set(known)) < len(known):
            raise errors.RefusedError(f"{self.name} has a VM of that name beside its resources: give another name")
        return msgspec.structs.replace(
            self,
            resources=names,
            vms=tuple(vms),
            caller=renamed.get(self.caller, names[0] if self.caller in self.resources else self.caller),
            steps=tuple(_renamed(step, renamed) for step in self.steps),
        )


def _names_resources(step: Step) -> bool:
    named = isinstance(step.action, AnnounceAction) and bool(step.action.resources)
    return named or any(_names_resources(each) for each in step.steps)


def _renamed(step: Step, names: Mapping[str, str]) -> Step:
    action = step.action
    if isinstance(action, AnnounceAction):
        action = msgspec.structs.replace(action, resources=tuple(names.get(each, each) for each in action.resources))
    return replace(step, action=action, steps=tuple(_renamed(each, names) for each in step.steps))
