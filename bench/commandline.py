"""How long the command line takes to start, beside an interpreter that does nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench import report
from bench.effort import Effort

PROGRAM = str(Path(sys.executable).with_name("forenotice"))
NOTHING = (sys.executable, "-c", "pass")
LIMITS = {("--version",): 0.050, ("vm", "--help"): 0.150}
"""Seconds more than an interpreter takes."""
# An installed program is compiled; here the first run does that, where the environment forbids to keep it too.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure(effort: Effort) -> list[report.Row]:
    commands = {NOTHING: NOTHING} | {arguments: (PROGRAM, *arguments) for arguments in LIMITS}
    taken: dict[tuple[str, ...], list[float]] = {name: [] for name in commands}
    for command in commands.values():
        _run(*command)
    for _ in range(effort.starts):
        # In turn, so that a busy moment of the machine falls on all of them.
        for name, command in commands.items():
            taken[name].append(_run(*command))
    nothing = median(taken[NOTHING])
    return [
        report.within(
            f"forenotice {' '.join(arguments)}, more than an interpreter",
            (median(taken[arguments]) - nothing) * 1000,
            limit * 1000,
            "{:.0f} ms",
            reference=f"{nothing * 1000:.0f} ms, python -c pass",
        )
        for arguments, limit in LIMITS.items()
    ]


def _run(*command: str) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    return time.perf_counter() - begin
