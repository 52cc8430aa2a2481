"""`forenotice emulate` as a whole: the emulator, its control, what is told of it, and its end by a signal."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime

from forenotice.core import errors
from forenotice.emulator.command import foreground
from forenotice.emulator.control.listening import Control
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.scenarios import catalogue
from forenotice.emulator.scenarios.format import Scenario
from forenotice.emulator.scenarios.text import nearest
from forenotice.settings import EmulatorSettings

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
            emulator.stage.add_vm(name, now)

    emulator.change(work)


def _tell(
    emulator: Emulator, scenario: Scenario | None, ready: Mapping[str, object], as_json: bool, stopping: threading.Event
) -> None:
    from forenotice.emulator.command import introducing
    from forenotice.emulator.command.telling import Teller

    try:
        foreground.put(foreground.line(ready) if as_json else introducing.text(emulator, scenario, ready))
        teller = Teller(emulator)
        while not stopping.is_set():
            for each in teller.wait():
                foreground.put(foreground.told(each, as_json=as_json))
    except OSError:
        # Whoever read our output has gone; guests are answered all the same.
        return
