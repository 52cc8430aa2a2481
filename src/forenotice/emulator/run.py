"""`forenotice emulate` as a whole: the emulator, its control, what is printed of it, and its end by a signal."""

import itertools
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime

from forenotice.core import errors
from forenotice.core.journal import Entry
from forenotice.core.operations import Event
from forenotice.emulator import foreground
from forenotice.emulator.control.listener import Control
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.foreground import LogLine
from forenotice.emulator.player import Deviation, Player
from forenotice.emulator.request_log import LoggedRequest
from forenotice.emulator.scenarios import catalogue, preview
from forenotice.emulator.scenarios.format import Scenario
from forenotice.emulator.scenarios.text import nearest
from forenotice.emulator.simulation import Simulation
from forenotice.settings import EmulatorSettings

LOOK = 0.2
"""Seconds at most until requests are looked at, which change nothing by themselves."""

SENTENCES: Mapping[str, Callable[[Event], str]] = {
    "event.scheduled": lambda event: f"is announced, not before {event.not_before:%H:%M:%S} ({event.id})",
    "event.approved": lambda event: f"is approved by {event.approved_by}",
    "event.silence_withdrawn": lambda _: "is no longer approved by silence: somebody listens",
    "event.started": lambda _: "is started",
    "event.completed": lambda _: "is gone",
    "event.canceled": lambda _: "is cancelled and gone",
    "event.failed": lambda _: "has failed and is gone",
}


class ActivityLog:
    """Remembers what it has told."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._simulation: Simulation | None = None
        self._entry: Entry | None = None
        self._request: LoggedRequest | None = None
        self._player: Player | None = None
        self._note: Deviation | None = None
        self._waits = ""
        self._faults: set[str] = set()
        self._paused = False

    def wait(self) -> list[LogLine]:
        """What is new, in order of time, or nothing for a while."""
        found: list[LogLine] = []

        def look() -> bool:
            found.extend(self._new())
            return bool(found)

        self._emulator.wait_for(look, LOOK)
        return sorted(found, key=lambda each: each.at)

    def _new(self) -> Iterator[LogLine]:
        yield from self._of_simulation()
        if self._emulator.simulation is not self._simulation:
            yield from self._begin_simulation()
            yield from self._of_simulation()
        yield from self._of_clock()
        yield from self._of_faults()
        yield from self._of_requests()
        if self._player is not None:
            yield from self._of_player(self._player)

    def _begin_simulation(self) -> Iterator[LogLine]:
        first = self._simulation is None
        self._simulation, self._entry = self._emulator.simulation, None
        self._player, self._note, self._waits = self._emulator.player, None, ""
        now = min(entry.at for entry in self._simulation.entries)
        if self._player is not None:
            scenario = self._player.scenario
            yield LogLine(
                at=now,
                action="scenario.started",
                said=f"{scenario.name} is played: {scenario.title}; callers are {scenario.caller}",
                facts={"scenario": scenario.name, "as": scenario.caller},
            )
        elif not first:
            yield LogLine(at=now, action="emulator.reset", said="all is reset: no events, no faults")

    def _of_simulation(self) -> Iterator[LogLine]:
        if self._simulation is None or not self._simulation.entries:
            return
        last = self._entry
        newest_first = itertools.takewhile(lambda entry: entry is not last, reversed(self._simulation.entries))
        self._entry = self._simulation.entries[-1]
        for entry in reversed(list(newest_first)):
            if entry.event is not None and entry.action in SENTENCES:
                yield _of_event(entry, self._simulation.event(entry.event))

    def _of_clock(self) -> Iterator[LogLine]:
        paused = self._emulator.clock.stands and not self._emulator.clock.virtual
        if paused != self._paused:
            self._paused = paused
            word, said = ("paused", "stands still") if paused else ("resumed", "goes on")
            yield LogLine(at=self._emulator.clock.now(), action=f"clock.{word}", said=f"the clock {said}")

    def _of_requests(self) -> Iterator[LogLine]:
        """Only those that met a fault: a handler that polls would drown all else."""
        requests = self._emulator.requests
        if not len(requests):
            return
        kept, last = requests.all, self._request
        self._request = kept[-1]
        for request in reversed(list(itertools.takewhile(lambda each: each is not last, reversed(kept)))):
            if request.fault is not None:
                answer = request.status or "nothing"
                yield LogLine(
                    at=request.at,
                    action="fault.met",
                    said=f"{request.method} of {request.vm or 'a stranger'} met {request.fault}, answered {answer}",
                    facts={"fault": request.fault, "vm": request.vm, "status": request.status},
                )

    def _of_faults(self) -> Iterator[LogLine]:
        active = {each.fault.name for each in self._emulator.faults.active}
        now = self._emulator.clock.now()
        for name in sorted(self._faults - active):
            yield LogLine(at=now, action="fault.over", said=f"{name} is over", facts={"fault": name})
        for name in sorted(active - self._faults):
            yield LogLine(at=now, action="fault.began", said=f"{name} is switched on", facts={"fault": name})
        self._faults = active

    def _of_player(self, player: Player) -> Iterator[LogLine]:
        last = self._note
        newest_first = itertools.takewhile(lambda note: note is not last, reversed(player.deviations))
        for note in reversed(list(newest_first)):
            self._note = note
            verb = note.step.action.verb
            yield LogLine(at=note.at, action="scenario.differs", said=f"step {verb!r}: {note.said}")
        # Its last events go on when all is played.
        lasts = player.done and self._emulator.simulation.live
        if player.waiting_for == self._waits or lasts:
            return
        self._waits = player.waiting_for
        now = self._emulator.clock.now()
        if player.done:
            said = "the scenario is over; the emulator goes on until Ctrl-C"
            yield LogLine(at=now, action="scenario.ended", said=said)
        else:
            yield LogLine(at=now, action="scenario.waits", said=f"the scenario waits for {self._waits}")


def _of_event(entry: Entry, event: Event) -> LogLine:
    return LogLine(
        at=entry.at,
        action=entry.action,
        said=f"{event.type} of {', '.join(event.resources)} {SENTENCES[entry.action](event)}",
        facts={
            "event": event.id,
            "type": str(event.type),
            "resources": list(event.resources),
            "not_before": event.not_before.isoformat().replace("+00:00", "Z"),
            "approved_by": event.approved_by,
        },
    )


AS_VM = "web-0"


def scenario(name_or_path: str, settings: EmulatorSettings) -> Scenario:
    """The one to be played, with what the settings change in it."""
    found = catalogue.load_any(name_or_path, settings.resources or (), settings.seed)
    if settings.as_vm is not None:
        names = [vm.name for vm in found.vms]
        if settings.as_vm not in names:
            raise errors.RefusedError(nearest(settings.as_vm, names, "VM"))
        found = replace(found, caller=settings.as_vm)
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
        # People are told afterwards: whoever has started this may be asking already.
        teller = threading.Thread(target=_tell, args=(emulator, scenario, ready, as_json, stopping), daemon=True)
        teller.start()
        foreground.sleep(until=stopping)


@contextmanager
def _emulating(settings: EmulatorSettings, scenario: Scenario | None) -> Iterator[tuple[Emulator, Control]]:
    others = settings.resources or ()
    as_vm = scenario.caller if scenario else settings.as_vm or (*others, AS_VM)[0]
    emulator = Emulator(as_vm=as_vm, speed=settings.speed)
    control = Control(emulator, settings.control_at, to_others=settings.open_control)
    try:
        emulator.start(settings.guests_at, settings.metadata_name)
    except BaseException:
        control.stop()
        raise
    try:
        if scenario is not None:
            emulator.play(scenario)
        else:
            _add(emulator, others)
        control.start()
        yield emulator, control
    finally:
        # First: whoever is driving it is still answered.
        control.stop()
        emulator.stop()


def _add(emulator: Emulator, names: Sequence[str]) -> None:
    def work(now: datetime) -> None:
        for name in names:
            emulator.simulation.add_vm(name, now)

    emulator.change(work)


def _tell(
    emulator: Emulator, scenario: Scenario | None, ready: Mapping[str, object], as_json: bool, stopping: threading.Event
) -> None:
    from forenotice.emulator import run
    from forenotice.emulator.run import ActivityLog

    try:
        foreground.put(foreground.line(ready) if as_json else run.text(emulator, scenario, ready))
        teller = ActivityLog(emulator)
        while not stopping.is_set():
            for each in teller.wait():
                foreground.put(foreground.told(each, as_json=as_json))
    except OSError:
        # Whoever read our output has gone; guests are answered all the same.
        return


DEFAULT_CONTROL = "http://127.0.0.1:8255"


def text(emulator: Emulator, scenario: Scenario | None, ready: Mapping[str, object]) -> str:
    control = ready["control"]
    driving = (
        "forenotice emulator" if control == DEFAULT_CONTROL else f"FORENOTICE_CONTROL={control} forenotice emulator"
    )
    others = [vm.name for vm in emulator.simulation.vms if vm.name != emulator.as_vm]
    beside = f"; beside you there {'is' if len(others) == 1 else 'are'} {', '.join(others)}" if others else ""
    return f"""\
forenotice emulates Scheduled Events at {ready["endpoint"]}. You are {emulator.as_vm}{beside}.

{_program(emulator, scenario)}
In another terminal, look as a guest does, or start your handler with FORENOTICE_ENDPOINT={ready["endpoint"]}:

  curl -H Metadata:true '{ready["url"]}'

and drive it, in a browser at {control}/ or with:

  {driving} event reboot --notice 5m
  {driving} advance 5m
  {driving} fault error-503 --times 3
  {driving} reset

Ctrl-C ends it. What happens (times are UTC):
"""


def _program(emulator: Emulator, scenario: Scenario | None) -> str:
    if scenario is None:
        return "Nothing happens until you say so; `forenotice emulate --list` shows scenarios.\n"
    speed = emulator.timing.speed
    shorter = f", {speed:g} times as fast" if speed != 1 else ""
    picture = "\n".join(preview.timeline(scenario))
    told = f"{scenario.title}{shorter}. {scenario.description}".strip()
    return f"{textwrap.fill(told, 100)}\n\n{picture}\n"
