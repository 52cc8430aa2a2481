"""`forenotice emulate` as a whole: the emulator, its control, what it prints, and its end by a signal."""

import functools
import itertools
import textwrap
import threading
from collections.abc import Iterable, Iterator, Mapping, Reversible
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TypeVar

import msgspec

from forenotice.core import errors
from forenotice.core.journal import Entry
from forenotice.emulator import foreground
from forenotice.emulator.control import Control
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.foreground import LogLine
from forenotice.emulator.player import Deviation, Player
from forenotice.emulator.request_log import LoggedRequest
from forenotice.emulator.scenarios import catalogue, preview
from forenotice.emulator.scenarios.format import Scenario
from forenotice.emulator.simulation import Simulation
from forenotice.settings import EmulatorSettings
from forenotice.toml import nearest

T = TypeVar("T")

AS_VM = "web-0"
DEFAULT_CONTROL = "http://127.0.0.1:8255"
LOOK = 0.2
"""Seconds at most until new requests are seen, which change nothing by themselves."""


def load_scenario(name_or_path: str, settings: EmulatorSettings) -> Scenario:
    """With what the settings change in it."""
    found = catalogue.load_any(name_or_path, settings.resources or (), settings.seed)
    if settings.as_vm is not None:
        names = [vm.name for vm in found.vms]
        if settings.as_vm not in names:
            raise errors.RefusedError(nearest(settings.as_vm, names, "VM"))
        found = msgspec.structs.replace(found, caller=settings.as_vm)
    return found


def run(settings: EmulatorSettings, scenario: Scenario | None, *, as_json: bool) -> None:
    """Until SIGTERM or Ctrl-C."""
    stopping = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(foreground.interrupting(stopping.set))
        file = stack.enter_context(foreground.ReadyFile(settings.ready_file)) if settings.ready_file else None
        emulator, control = stack.enter_context(_emulating(settings, scenario))
        ready = foreground.ready(emulator.address, control=f"http://{control.address}")
        if file is not None:
            file.write(ready)
            as_json = True

        def report() -> None:
            first = foreground.line(ready) if as_json else introduction(emulator, scenario, ready)
            foreground.report(first, _lines(emulator, stopping), as_json=as_json)

        # Afterwards, and in a thread: a program that waits for the ready file may send requests already.
        emulator.runtime.start_thread(report, "report")
        foreground.sleep(until=stopping)


def _lines(emulator: Emulator, stopping: threading.Event) -> Iterator[LogLine]:
    log = ActivityLog(emulator)
    while not stopping.is_set():
        yield from log.wait()


@contextmanager
def _emulating(settings: EmulatorSettings, scenario: Scenario | None) -> Iterator[tuple[Emulator, Control]]:
    others = settings.resources or ()
    as_vm = scenario.caller if scenario else settings.as_vm or (*others, AS_VM)[0]
    emulator = Emulator(as_vm=as_vm, speed=settings.speed)
    with ExitStack() as stack:
        control = Control(emulator, settings.control_at, to_others=settings.open_control)
        stack.callback(control.stop)
        emulator.start(settings.guests_at, settings.metadata_name)
        # The control stops first: requests to it are still answered.
        stack.pop_all()
        stack.callback(emulator.stop)
        stack.callback(control.stop)
        if scenario is not None:
            emulator.play(scenario)
        else:
            for name in others:
                emulator.change(functools.partial(emulator.simulation.add_vm, name))
        control.start()
        yield emulator, control


def introduction(emulator: Emulator, scenario: Scenario | None, ready: Mapping[str, object]) -> str:
    control = ready["control"]
    command = (
        "forenotice emulator" if control == DEFAULT_CONTROL else f"FORENOTICE_CONTROL={control} forenotice emulator"
    )
    others = [vm.name for vm in emulator.simulation.vms if vm.name != emulator.as_vm]
    beside = f"; the other VMs are {', '.join(others)}" if others else ""
    if scenario is None:
        plan = "Nothing happens until you say so; `forenotice emulate --list` shows scenarios.\n"
    else:
        faster = f", {emulator.timing.speed:g} times as fast" if emulator.timing.speed != 1 else ""
        about = f"{scenario.title}{faster}. {scenario.description}".strip()
        plan = f"{textwrap.fill(about, 100)}\n\n" + "\n".join(preview.timeline(scenario)) + "\n"
    return f"""\
forenotice emulates Scheduled Events at {ready["endpoint"]}. You are {emulator.as_vm}{beside}.

{plan}
In another terminal, poll as a guest does, or start your handler with FORENOTICE_ENDPOINT={ready["endpoint"]}:

  curl -H Metadata:true '{ready["url"]}'

and control it, in a browser at {control}/ or with:

  {command} event reboot --notice 5m
  {command} advance 5m
  {command} fault error-503 --times 3
  {command} reset

Ctrl-C ends it. What happens (times are UTC):
"""


class ActivityLog:
    """What happens in an emulator, one line each; it remembers what it has reported."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._simulation: Simulation | None = None
        self._entry: Entry | None = None
        self._request: LoggedRequest | None = None
        self._player: Player | None = None
        self._deviation: Deviation | None = None
        self._waits = ""
        self._faults: set[str] = set()
        self._paused = False

    def wait(self) -> list[LogLine]:
        """What is new, in order of time; empty if nothing happens for a while."""
        found: list[LogLine] = []

        def look() -> bool:
            found.extend(self._new(self._emulator.clock.now()))
            return bool(found)

        self._emulator.wait_for(look, LOOK)
        return sorted(found, key=lambda each: each.at)

    def _new(self, now: datetime) -> Iterator[LogLine]:
        yield from self._of_events()
        if self._emulator.simulation is not self._simulation:
            yield from self._begin_simulation()
            yield from self._of_events()
        clock = self._emulator.clock
        paused = clock.stands and not clock.virtual
        if paused != self._paused:
            self._paused = paused
            word, change = ("paused", "stands still") if paused else ("resumed", "goes on")
            yield LogLine(at=now, action=f"clock.{word}", message=f"the clock {change}")
        active = {each.fault.name for each in self._emulator.faults.active}
        changed = [("over", "over", each) for each in sorted(self._faults - active)]
        changed += [("began", "switched on", each) for each in sorted(active - self._faults)]
        for word, change, name in changed:
            yield LogLine(at=now, action=f"fault.{word}", message=f"{name} is {change}", facts={"fault": name})
        self._faults = active
        yield from self._of_requests()
        if self._player is not None:
            yield from self._of_player(self._player, now)

    def _begin_simulation(self) -> Iterator[LogLine]:
        first = self._simulation is None
        self._simulation, self._entry = self._emulator.simulation, None
        self._player, self._deviation, self._waits = self._emulator.player, None, ""
        now = min(entry.at for entry in self._simulation.entries)
        if self._player is not None:
            scenario = self._player.scenario
            message = f"{scenario.name} is played: {scenario.title}; callers are {scenario.caller}"
            facts = {"scenario": scenario.name, "as": scenario.caller}
            yield LogLine(at=now, action="scenario.started", message=message, facts=facts)
        elif not first:
            yield LogLine(at=now, action="emulator.reset", message="all is reset: no events, no faults")

    def _of_events(self) -> Iterator[LogLine]:
        if self._simulation is None or not self._simulation.entries:
            return
        new = _since(self._simulation.entries, self._entry)
        self._entry = self._simulation.entries[-1]
        for entry in new:
            sentence = self._simulation.sentence(entry)
            if sentence is not None:
                event = self._simulation.event(str(entry.event))
                facts = {
                    "event": event.id,
                    "type": str(event.type),
                    "resources": list(event.resources),
                    "not_before": event.not_before.isoformat().replace("+00:00", "Z"),
                    "approved_by": event.approved_by,
                }
                message = f"{sentence} ({event.id})" if entry.action == "event.scheduled" else sentence
                yield LogLine(at=entry.at, action=entry.action, message=message, facts=facts)

    def _of_requests(self) -> Iterator[LogLine]:
        """Only requests that met a fault: the polls of a handler would drown all else."""
        kept = self._emulator.requests.all
        new, self._request = _since(kept, self._request), kept[-1] if kept else None
        for request in new:
            if request.fault is not None:
                met = f"met {request.fault}, answered {request.status or 'nothing'}"
                message = f"{request.method} of {request.vm or 'an unknown caller'} {met}"
                facts = {"fault": request.fault, "vm": request.vm, "status": request.status}
                yield LogLine(at=request.at, action="fault.met", message=message, facts=facts)

    def _of_player(self, player: Player, now: datetime) -> Iterator[LogLine]:
        for deviation in _since(player.deviations, self._deviation):
            self._deviation = deviation
            message = f"step {deviation.step.action.verb!r}: {deviation.message}"
            yield LogLine(at=deviation.at, action="scenario.differs", message=message)
        # When all steps are played, the last events go on.
        if player.waiting_for == self._waits or (player.done and self._emulator.simulation.live):
            return
        self._waits = player.waiting_for
        action, message = "scenario.waits", f"the scenario waits for {self._waits}"
        if player.done:
            action, message = "scenario.ended", "the scenario is over; the emulator goes on until Ctrl-C"
        yield LogLine(at=now, action=action, message=message)


def _since(all_of_them: Reversible[T], last: T | None) -> Iterable[T]:
    """Those after the last that was reported; some before it may be forgotten."""
    return reversed(list(itertools.takewhile(lambda each: each is not last, reversed(all_of_them))))
