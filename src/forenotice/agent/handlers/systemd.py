"""`systemd`: units that are stopped to prepare; those that ran before are started again."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from forenotice.agent import handlers
from forenotice.agent.handlers import GRACE, Outcome, Work, facts, tables
from forenotice.agent.rules.policy import Phase
from forenotice.core import errors
from forenotice.programs import process

SYSTEMCTL = ("systemctl", "--no-ask-password")
RUNNING = frozenset({"active", "activating", "reloading", "refreshing"})
LOOK_TIMEOUT = 10.0
LARGEST_ANSWER = 256 * 1024
"""About many units."""


class SystemdError(errors.UnavailableError):
    """systemctl failed."""

    code = "systemd"


class Systemd:
    def __init__(self, config: tables.Systemd, *, grace: float = GRACE) -> None:
        self._units = config.units
        self._grace = grace

    def run(self, work: Work) -> Outcome:
        until = time.monotonic() + work.seconds_left
        systemctl = Systemctl(until=until, stop=work.stop, grace=self._grace, born=work.born)
        ran = handlers.read_memo(work.memo)
        try:
            if work.phase is not Phase.PREPARE:
                return systemctl.tell("start", self._units if ran is None else ran, done="started")
            if ran is None:
                ran = [unit["Id"] for unit in systemctl.show(self._units) if unit.get("ActiveState") in RUNNING]
            work.remember(handlers.write_memo(ran))
            return systemctl.tell("stop", ran, done="stopped")
        except (process.ProgramError, SystemdError) as error:
            return Outcome(ok=False, said=error.message)

    def rehearse(self) -> Outcome:
        systemctl = Systemctl(until=time.monotonic() + LOOK_TIMEOUT, stop=threading.Event(), grace=self._grace)
        try:
            place = process.locate(process.Program(argv=SYSTEMCTL))
            units = systemctl.show(self._units)
        except (process.ProgramError, SystemdError) as error:
            return Outcome(ok=False, said=error.message)
        if not units:
            return Outcome(ok=False, said=f"systemd knows no unit {', '.join(self._units)}")
        missing = [unit for unit in units if unit.get("LoadState") != "loaded"]
        if missing:
            return Outcome(ok=False, said=f"systemd has not loaded {_listed(missing, 'LoadState')}")
        told = _listed(units, "ActiveState")
        return Outcome(ok=True, said=f"{place} would stop {told}, and start again what was active")


class Systemctl:
    """The program, until the time is up."""

    def __init__(
        self, *, until: float, stop: threading.Event, grace: float, born: Callable[[int], None] | None = None
    ) -> None:
        self._until = until
        self._stop = stop
        self._grace = grace
        self._born = born

    def show(self, units: Sequence[str]) -> Sequence[Mapping[str, str]]:
        """What systemd knows of each; of a pattern, all that it matches."""
        printed = self._run("show", "--property=Id,LoadState,ActiveState", "--", *units, kept=LARGEST_ANSWER)
        blocks = (block.splitlines() for block in printed.split("\n\n"))
        found = (dict(line.split("=", 1) for line in block if "=" in line) for block in blocks)
        return [unit for unit in found if unit.get("Id")]

    def tell(self, verb: str, units: Sequence[str], *, done: str) -> Outcome:
        if not units:
            return Outcome(ok=True, said="none of the units was active")
        self._run(verb, "--", *units)
        return Outcome(ok=True, said=facts.plain(f"{done} {', '.join(units)}"))

    def _run(self, verb: str, *arguments: str, kept: int = process.KEPT) -> str:
        program = process.Program(argv=(*SYSTEMCTL, verb, *arguments), kept=kept)
        left = self._until - time.monotonic()
        ended = process.execute(program, seconds=left, stop=self._stop, grace=self._grace, born=self._born)
        if not ended.ok:
            raise SystemdError(f"systemctl {verb}: {ended.said[: process.KEPT]}")
        return ended.printed


def _listed(units: Sequence[Mapping[str, str]], key: str) -> str:
    return facts.plain(", ".join(f"{unit['Id']} ({unit.get(key)})" for unit in units))
