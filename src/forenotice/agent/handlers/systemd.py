"""`systemd`: units that are stopped to prepare; those that ran before are started again."""

import threading
from collections.abc import Callable, Mapping, Sequence

from forenotice.agent.handlers import GRACE, Outcome, Work, read_memo, tables, write_memo
from forenotice.agent.rules.policy import Phase
from forenotice.core import errors
from forenotice.programs import process
from forenotice.runtime import Runtime

SYSTEMCTL = ("systemctl", "--no-ask-password")
RUNNING = frozenset({"active", "activating", "reloading", "refreshing"})
REHEARSAL_SECONDS = 10.0
LARGEST_OUTPUT = 256 * 1024
Run = Callable[..., str]


class SystemdError(errors.UnavailableError):
    """systemctl failed."""

    code = "systemd"


class Systemd:
    def __init__(self, config: tables.Systemd, runtime: Runtime, *, grace: float = GRACE) -> None:
        self._units = config.units
        self._runtime = runtime
        self._grace = grace

    def run(self, work: Work) -> Outcome:
        systemctl = self._systemctl(work.seconds_left, work.stop, work.on_start)
        ran = read_memo(work.memo)
        try:
            if work.phase is not Phase.PREPARE:
                return _tell(systemctl, "start", self._units if ran is None else ran, done="started")
            if ran is None:
                ran = [unit["Id"] for unit in _show(systemctl, self._units) if unit.get("ActiveState") in RUNNING]
            work.remember(write_memo(ran))
            return _tell(systemctl, "stop", ran, done="stopped")
        except (process.ProgramError, SystemdError) as error:
            return Outcome(ok=False, message=error.message)

    def rehearse(self) -> Outcome:
        try:
            place = process.locate(process.Program(argv=SYSTEMCTL))
            units = _show(self._systemctl(REHEARSAL_SECONDS, threading.Event()), self._units)
        except (process.ProgramError, SystemdError) as error:
            return Outcome(ok=False, message=error.message)
        if not units:
            return Outcome(ok=False, message=f"systemd knows no unit {', '.join(self._units)}")
        if missing := [unit for unit in units if unit.get("LoadState") != "loaded"]:
            return Outcome(ok=False, message=f"systemd has not loaded {_listed(missing, 'LoadState')}")
        active = _listed(units, "ActiveState")
        return Outcome(ok=True, message=f"{place} would stop {active}, and start again what was active")

    def _systemctl(self, seconds: float, stop: threading.Event, on_start: Callable[[int], None] | None = None) -> Run:
        until = self._runtime.monotonic() + seconds

        def run(verb: str, *arguments: str, kept: int = process.KEPT) -> str:
            program = process.Program(argv=(*SYSTEMCTL, verb, *arguments), kept=kept)
            left = until - self._runtime.monotonic()
            ended = process.execute(
                program, self._runtime, seconds=left, stop=stop, grace=self._grace, on_start=on_start
            )
            if not ended.ok:
                raise SystemdError(f"systemctl {verb}: {ended.message[: process.KEPT]}")
            return ended.printed

        return run


def _show(systemctl: Run, units: Sequence[str]) -> Sequence[Mapping[str, str]]:
    """The properties of each unit; of a pattern, of all that it matches."""
    printed = systemctl("show", "--property=Id,LoadState,ActiveState", "--", *units, kept=LARGEST_OUTPUT)
    blocks = (block.splitlines() for block in printed.split("\n\n"))
    found = (dict(line.split("=", 1) for line in block if "=" in line) for block in blocks)
    return [unit for unit in found if unit.get("Id")]


def _tell(systemctl: Run, verb: str, units: Sequence[str], *, done: str) -> Outcome:
    if not units:
        return Outcome(ok=True, message="none of the units was active")
    systemctl(verb, "--", *units)
    return Outcome(ok=True, message=process.plain(f"{done} {', '.join(units)}"))


def _listed(units: Sequence[Mapping[str, str]], key: str) -> str:
    return process.plain(", ".join(f"{unit['Id']} ({unit.get(key)})" for unit in units))
