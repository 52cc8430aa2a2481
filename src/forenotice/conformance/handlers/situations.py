"""What a handler is to live through: every scenario of the catalogue, a restart under every fault, two of our own."""

import itertools
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import msgspec

from forenotice.core import errors, fleet
from forenotice.core.fleet import Listening
from forenotice.emulator import faults
from forenotice.emulator.faults import ConnectionReset, Delay, DocumentChange, ErrorResponse, Fault, On, Since
from forenotice.emulator.scenarios import catalogue, preview, reader
from forenotice.emulator.scenarios.format import AnnounceAction, Scenario, Step
from forenotice.settings import SettingError
from forenotice.settings.values import Span
from forenotice.toml import nearest

HIDING = frozenset({faults.emptied, faults.halved, faults.stale})
"""Changes of the document behind which no event can be seen."""
BEFORE_THE_EVENT = timedelta(milliseconds=300)
"""A fault is switched on this long before."""
STARTED = 1.25
"""How long that lasts, as a share of the time to notice in: whoever is in time sees it."""
LEAST_NOTICE = timedelta(seconds=4)
TO_PREPARE = timedelta(seconds=2)
TO_BEGIN = timedelta(seconds=4)
"""For a handler that is started after the situation has begun."""
RETRY_AFTER = timedelta(seconds=1)
NO_TIME = timedelta(0)
LONGEST_NAME = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    name: str
    scenario: Scenario
    speed: float = 1
    fault: str = ""
    """What the handler has to get over."""
    hidden: timedelta = NO_TIME
    """For how long it keeps the handler from seeing the event."""
    again: timedelta = NO_TIME
    """How long an approval that was refused at first may take to come once more."""
    begins_first: bool = False
    """Before the handler does."""
    fails: bool = False
    """The hooks are told to fail."""

    @property
    def longest(self) -> timedelta:
        """How long it lasts if nobody approves."""
        planned = preview.compute(self.scenario)
        return max(each.ended for each in planned.events) / self.speed

    def allowed(self, within: timedelta) -> timedelta:
        """To notice in. Whoever was turned away asks ever more slowly, so a fault may cost its own length once more."""
        return within + 2 * self.hidden


def find(me: str, within: timedelta, only: Collection[str] = ()) -> list[Situation]:
    """All of them, or those of these names."""
    try:
        fleet.require_name("VM", me)
    except errors.RefusedError as error:
        raise SettingError(f"--name: {error.message}") from None
    found = {situation.name: situation for situation in _all(me, within)}
    for name in only:
        if name not in found:
            raise SettingError(f"--only: {nearest(name, list(found), 'situation')}")
    return [situation for name, situation in found.items() if not only or name in only]


def _all(me: str, within: timedelta) -> Iterator[Situation]:
    notice = max(LEAST_NOTICE, 2 * within)
    for name in catalogue.names():
        yield _of_catalogue(catalogue.load(name), me, notice, within * STARTED)
    for fault in faults.ALL:
        yield _under(fault, me, within, notice)
    yield Situation(name="others-event", scenario=_restart("others-event", me, neighbour(me), notice))
    yield Situation(name="failed-preparation", scenario=_restart("failed-preparation", me, me, notice), fails=True)


def _of_catalogue(scenario: Scenario, me: str, notice: timedelta, started: timedelta) -> Situation:
    begins_first = scenario.listening is Listening.AUTO
    if begins_first:
        notice += TO_BEGIN
    speed = _speed(scenario, notice)
    others = (name for number in itertools.count(1) if (name := f"other-{number}") != me)
    names = (me, *itertools.islice(others, len(scenario.resources) - 1))
    ours = msgspec.structs.replace(
        scenario,
        steps=tuple(_taking(step, started * speed) for step in scenario.steps),
        # One that it has beside its resources may be called as the handler's.
        vms=tuple(
            vm if vm.name != me or me in scenario.resources else msgspec.structs.replace(vm, name=next(others))
            for vm in scenario.vms
        ),
    )
    return Situation(name=scenario.name, scenario=ours.on(names), speed=speed, begins_first=begins_first)


def neighbour(me: str) -> str:
    """Another VM, the name of which is easily taken for this one's."""
    return f"{me}1" if len(me) < LONGEST_NAME else me[:-1]


def _taking(step: Step, takes: timedelta) -> Step:
    """The same, but that what it announces is Started for so long."""
    action = step.action
    if isinstance(action, AnnounceAction):
        action = msgspec.structs.replace(action, takes=Span(seconds=takes.total_seconds()))
    return replace(step, action=action, steps=tuple(_taking(each, takes) for each in step.steps))


def _speed(scenario: Scenario, notice: timedelta) -> float:
    """As fast as it may be: there is notice enough, and the whole is no blink."""
    events = preview.compute(scenario).events
    notices = [each.event.not_before - preview.START - each.announced for each in events]
    whole = max(each.ended for each in events)
    return min([whole, *filter(None, notices)]) / notice


def _under(fault: Fault, me: str, within: timedelta, notice: timedelta) -> Situation:
    begins_first = fault.effect == Delay(since=Since.FIRST)
    refuses = isinstance(fault.effect, ErrorResponse | ConnectionReset)
    again = within if refuses else NO_TIME
    amount, hidden, clear = None, NO_TIME, False
    match fault.effect:
        case Delay(since=Since.ARRIVAL):
            hidden = fault.amount or NO_TIME
        case Delay():
            amount = hidden = 2 * within if begins_first else within
        case ErrorResponse(retry=retry):
            amount, hidden, clear = RETRY_AFTER if retry else None, within, True
        case DocumentChange(document=document) if document not in HIDING:
            pass
        case _:
            hidden, clear = within, True
    notice = max(notice, within + 2 * hidden + TO_PREPARE + again) + (TO_BEGIN if begins_first else NO_TIME)
    given = {"amount": _written(amount)} if amount else {}
    before = _step(fault=fault.name, **given)
    before += _step(wait=_written(BEFORE_THE_EVENT))
    after = _step(wait=_written(hidden)) + _step(clear=fault.name) if clear else ""
    # Nobody approves what cannot be seen yet: so approvals meet it later.
    after += _step(fault=fault.name, **given, on=On.APPROVALS, times=1) if refuses else ""
    return Situation(
        name=fault.name,
        scenario=_restart(fault.name, me, me, notice, before=before, after=after),
        fault=fault.name,
        hidden=hidden,
        again=again,
        begins_first=begins_first,
    )


def _restart(name: str, me: str, whom: str, notice: timedelta, *, before: str = "", after: str = "") -> Scenario:
    vms = ", ".join(f'"{vm}"' for vm in dict.fromkeys((me, whom)))
    event = _step(announce="restart", notice=_written(notice), takes="2s")
    text = f'title = "{name}"\nresources = ["{whom}"]\nvms = [{vms}]\nas = "{me}"\n{before}{event}{after}'
    return reader.read(text, f"{name}.toml", name=name)


def _step(**keys: str | int) -> str:
    return "\n[[step]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def _written(span: timedelta) -> str:
    return f"{span / timedelta(milliseconds=1):.0f}ms"
