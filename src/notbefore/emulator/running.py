"""`notbefore emulate` as a whole: the emulator, its control, what is told of it, and its end by a signal."""

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from notbefore import logs
from notbefore.core import errors
from notbefore.emulator.control.listening import Control
from notbefore.emulator.emulator import Emulator
from notbefore.emulator.scenarios import catalogue
from notbefore.emulator.scenarios.format import Scenario
from notbefore.emulator.scenarios.text import nearest
from notbefore.settings import EmulatorSettings, LogFormat, LogLevel
from notbefore.wire import versions

AS_VM = "web-0"
STDOUT = 1


def scenario(name_or_path: str, settings: EmulatorSettings) -> Scenario:
    """The one to be played, with what the settings change in it."""
    found = catalogue.load_any(name_or_path, settings.resources or ())
    if settings.seed is not None:
        found = replace(found, seed=settings.seed)
    if settings.as_vm is not None:
        names = [vm.name for vm in found.vms]
        if settings.as_vm not in names:
            raise errors.RefusedError(nearest(settings.as_vm, names, "VM"))
        found = replace(found, caller=settings.as_vm)
    return found


def run(settings: EmulatorSettings, scenario: Scenario | None, *, as_json: bool) -> None:
    """Until SIGTERM or Ctrl-C."""
    stopping = _stopped_by_signals()
    logs.log.setup = lambda: logs.configure(LogLevel.WARNING, LogFormat.AUTO)
    with _emulating(settings, scenario) as (emulator, control):
        ready = _ready(emulator, control)
        if settings.ready_file is not None:
            _write(settings.ready_file, _line(ready))
        as_json = as_json or settings.ready_file is not None
        # People are told afterwards: whoever has started this may be asking already.
        teller = threading.Thread(target=_tell, args=(emulator, scenario, ready, as_json, stopping), daemon=True)
        teller.start()
        stopping.wait()


def _stopped_by_signals() -> threading.Event:
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


@contextmanager
def _emulating(settings: EmulatorSettings, scenario: Scenario | None) -> Iterator[tuple[Emulator, Control]]:
    others = settings.resources or ()
    as_vm = scenario.caller if scenario else settings.as_vm or (*others, AS_VM)[0]
    emulator = Emulator(as_vm=as_vm, speed=settings.speed)
    control = Control(emulator, settings.control_at, to_others=settings.open_control)
    try:
        emulator.start(settings.guests_at)
        try:
            if scenario is not None:
                emulator.play(scenario)
            else:
                _add(emulator, others)
            control.start()
            yield emulator, control
        finally:
            emulator.stop()
    finally:
        control.stop()


def _add(emulator: Emulator, names: Sequence[str]) -> None:
    def work(now: datetime) -> None:
        for name in names:
            emulator.stage.add_vm(name, now)

    emulator.change(work)


def _ready(emulator: Emulator, control: Control) -> dict[str, object]:
    endpoint = f"http://{emulator.address}"
    return {
        "endpoint": endpoint,
        "url": f"{endpoint}/metadata/scheduledevents?api-version={versions.NEWEST.name}",
        "control": f"http://{control.address}",
        "pid": os.getpid(),
    }


def _write(path: Path, text: str) -> None:
    """Whoever waits for the file sees all of it or none."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise errors.RefusedError(f"the ready file {path} cannot be written: {error.strerror}") from None


def _tell(
    emulator: Emulator, scenario: Scenario | None, ready: Mapping[str, object], as_json: bool, stopping: threading.Event
) -> None:
    from notbefore.emulator import introducing
    from notbefore.emulator.telling import Teller

    try:
        _print(_line(ready) if as_json else introducing.text(emulator, scenario, ready))
        teller = Teller(emulator)
        while not stopping.is_set():
            for each in teller.wait():
                at = each.at.isoformat().replace("+00:00", "Z")
                facts = {"at": at, "action": each.action, "said": each.said, **each.facts}
                _print(_line(facts) if as_json else f"{each.at:%H:%M:%S}  {each.said}\n")
    except OSError:
        # Whoever read our output has gone; guests are answered all the same.
        return


def _print(text: str) -> None:
    """Past Python's own buffers: a reader that does not read must not keep us from ending."""
    rest = text.encode()
    while rest:
        rest = rest[os.write(STDOUT, rest) :]


def _line(values: Mapping[str, object]) -> str:
    return json.dumps(values, ensure_ascii=False) + "\n"
