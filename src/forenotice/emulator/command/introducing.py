"""What `forenotice emulate` prints first: where guests ask, as whom, what will happen, and what to try."""

import textwrap
from collections.abc import Mapping

from forenotice.emulator.emulator import Emulator
from forenotice.emulator.scenarios import drawing
from forenotice.emulator.scenarios.format import Scenario

DEFAULT_CONTROL = "http://127.0.0.1:8255"


def text(emulator: Emulator, scenario: Scenario | None, ready: Mapping[str, object]) -> str:
    control = ready["control"]
    driving = (
        "forenotice emulator" if control == DEFAULT_CONTROL else f"FORENOTICE_CONTROL={control} forenotice emulator"
    )
    others = [vm.name for vm in emulator.stage.vms if vm.name != emulator.as_vm]
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
    picture = "\n".join(drawing.timeline(scenario))
    told = f"{scenario.title}{shorter}. {scenario.description}".strip()
    return f"{textwrap.fill(told, 100)}\n\n{picture}\n"
