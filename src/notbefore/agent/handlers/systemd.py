"""`systemd`: units that are stopped to prepare; those that ran before are started again."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from notbefore.agent.config import handlers
from notbefore.agent.handlers import facts, memos, process
from notbefore.agent.handlers.interface import GRACE, Outcome, Work
from notbefore.agent.rules.handling import Phase
from notbefore.core import errors

SYSTEMCTL = ("systemctl", "--no-ask-password")
RUNNING = frozenset({"active", "activating", "reloading", "refreshing"})
LOOK_TIMEOUT = 10.0
KEPT = 256 * 1024
"""Of an answer about many units."""
LONGEST_REASON = 2048
_PAST = {"stop": "stopped", "start": "started"}


class SystemdError(errors.UnavailableError):
    """systemctl failed."""

    code = "systemd"


class Systemd:
    def __init__(self, config: handlers.Systemd, *, grace: float = GRACE) -> None:
        self._units = config.units
        self._grace = grace

    def run(self, work: Work) -> Outcome:
        until = time.monotonic() + work.seconds_left
        try:
            if work.phase is Phase.PREPARE:
                return self._stop(work, until)
            return self._start(work, until)
        except (process.ProgramError, SystemdError) as error:
            return Outcome(ok=False, said=str(error))

    def rehearse(self) -> Outcome:
        try:
            place = process.locate(process.Program(argv=SYSTEMCTL))
            units = self._show(time.monotonic() + LOOK_TIMEOUT, threading.Event())
        except (process.ProgramError, SystemdError) as error:
            return Outcome(ok=False, said=str(error))
        missing = [unit for unit in units if unit.get("LoadState") != "loaded"]
        if missing:
            said = ", ".join(f"{unit.get('Id')} ({unit.get('LoadState')})" for unit in missing)
            return Outcome(ok=False, said=facts.plain(f"systemd has not loaded {said}"))
        said = ", ".join(f"{unit.get('Id')} ({unit.get('ActiveState')})" for unit in units)
        return Outcome(ok=True, said=facts.plain(f"{place} would stop {said}, and start again what runs now"))

    def _stop(self, work: Work, until: float) -> Outcome:
        running = memos.read(work.memo)
        if running is None:
            running = _running(self._show(until, work.stop))
        work.remember(memos.write(running))
        return self._tell("stop", running, until, work.stop)

    def _start(self, work: Work, until: float) -> Outcome:
        running = memos.read(work.memo)
        return self._tell("start", self._units if running is None else running, until, work.stop)

    def _show(self, until: float, stop: threading.Event) -> Sequence[Mapping[str, str]]:
        """What systemd knows of each unit; of a pattern, all that it matches."""
        printed = self._systemctl("show", ("--property=Id,LoadState,ActiveState",), self._units, until, stop).printed
        blocks = [block.splitlines() for block in printed.strip().split("\n\n")]
        units = [dict(line.split("=", 1) for line in block if "=" in line) for block in blocks]
        return [unit for unit in units if unit.get("Id")]

    def _tell(self, verb: str, units: Sequence[str], until: float, stop: threading.Event) -> Outcome:
        if not units:
            return Outcome(ok=True, said="none of the units ran")
        self._systemctl(verb, (), units, until, stop)
        return Outcome(ok=True, said=facts.plain(f"{_PAST[verb]} {', '.join(units)}"))

    def _systemctl(
        self, verb: str, options: Sequence[str], units: Sequence[str], until: float, stop: threading.Event
    ) -> process.Ended:
        program = process.Program(argv=(*SYSTEMCTL, verb, *options, "--", *units), kept=KEPT)
        ended = process.execute(program, seconds=until - time.monotonic(), stop=stop, grace=self._grace)
        if not ended.ok:
            raise SystemdError(f"systemctl {verb}: {ended.said[-LONGEST_REASON:]}")
        return ended


def _running(units: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    return tuple(unit["Id"] for unit in units if unit.get("ActiveState") in RUNNING)
