"""Handlers for this machine: `command`, a program for each phase; `file`, a flag; `systemd`, units to stop."""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence

from forenotice.agent.handlers import GRACE, HandlerError, Work, facts, read_memo, tables, write_memo
from forenotice.agent.rules.policy import Phase
from forenotice.programs import process
from forenotice.programs.process import plain, reason
from forenotice.runtime import Runtime

SHELL = "/bin/sh"
_PARSE_SECONDS = 5.0
FLAG_MODE = 0o644
"""The reader of the flag need not be the agent's user."""
SYSTEMCTL = ("systemctl", "--no-ask-password")
RUNNING = frozenset({"active", "activating", "reloading", "refreshing"})
REHEARSAL_SECONDS = 10.0
LARGEST_OUTPUT = 256 * 1024


class Command:
    def __init__(self, config: tables.Command, runtime: Runtime, *, grace: float = GRACE) -> None:
        self._config = config
        self._runtime = runtime
        self._grace = grace

    def run(self, work: Work) -> str:
        if (argv := self._config.commands.get(work.phase)) is None:
            return "nothing to run"
        ended = process.execute(
            self._program(self._argv(argv), facts.environment(work), facts.encoded(work)),
            self._runtime,
            seconds=work.seconds_left,
            stop=work.stop,
            grace=self._grace,
            on_start=work.on_start,
        )
        if not ended.ok:
            raise HandlerError(ended.message)
        return ended.message

    def rehearse(self) -> str:
        ok, messages = True, []
        for phase, argv in self._config.commands.items():
            try:
                messages.append(f"{phase} would run {self._located(argv)}")
            except process.ProgramError as error:
                ok = False
                messages.append(f"{phase} would fail: {error.message}")
        if not ok:
            raise HandlerError("; ".join(messages))
        return "; ".join(messages)

    def _located(self, argv: tables.Argv) -> str:
        place = process.locate(self._program(self._argv(argv)))
        if self._config.shell:
            # -n: parse only.
            shell = self._program((SHELL, "-n", "-c", *argv))
            parsed = process.execute(shell, self._runtime, seconds=_PARSE_SECONDS, stop=threading.Event())
            if not parsed.ok:
                raise process.ProgramError(f"{SHELL} does not understand it: {parsed.message}")
        return plain(place)

    def _argv(self, given: tables.Argv) -> tuple[str, ...]:
        return (SHELL, "-c", *given) if self._config.shell else given

    def _program(
        self, argv: tuple[str, ...], variables: dict[str, str] | None = None, stdin: bytes = b""
    ) -> process.Program:
        environment = {**(variables or {}), **self._config.environment}
        return process.Program(argv=argv, environment=environment, directory=self._config.directory, stdin=stdin)


class File:
    """The flag exists from the start of preparing until recovered, with the facts in it."""

    def __init__(self, config: tables.File, runtime: Runtime) -> None:
        self._path = config.path
        self._new_id = runtime.new_id

    def run(self, work: Work) -> str:
        back = work.phase in (Phase.RECOVER, Phase.UNDO)
        ours = read_memo(work.memo)
        if not back:
            exists = os.path.lexists(self._path) and not os.path.isdir(self._path)
            # A flag that another program set is neither written nor removed.
            ours = [self._path] if ours or not exists else []
            work.remember(write_memo(ours))
        if ours is not None and not ours:
            return plain(f"{self._path} existed before, and is left as it is")
        try:
            return plain(self._remove() if back else self._write(facts.encoded(work)))
        except OSError as error:
            raise HandlerError(plain(f"{self._path}: {reason(error)}")) from None

    def rehearse(self) -> str:
        directory = os.path.dirname(self._path)
        if not os.path.isdir(directory):
            problem = f"there is no directory {directory} to write in: make it"
        elif os.path.isdir(self._path):
            problem = f"{self._path} is a directory: give the path of a file"
        elif not os.access(directory, os.W_OK | os.X_OK):
            problem = f"this user cannot write in {directory}"
        else:
            return plain(f"would write {self._path}, and remove it afterwards")
        raise HandlerError(plain(problem))

    def _write(self, content: bytes) -> str:
        """Atomically: a reader sees all of it, or nothing."""
        directory, name = os.path.split(self._path)
        new = os.path.join(directory, f".{name}.{self._new_id()}")
        try:
            # "x" neither follows a link nor opens an existing file.
            with open(new, "xb") as file:
                # By descriptor: the owner of the directory may have put a link at that name.
                if os.chmod in os.supports_fd:
                    os.chmod(file.fileno(), FLAG_MODE)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                os.remove(new)
            raise
        return f"{self._path} is written"

    def _remove(self) -> str:
        try:
            os.remove(self._path)
        except FileNotFoundError:
            return f"{self._path} did not exist"
        return f"{self._path} is removed"


class Systemd:
    """Units are stopped to prepare; those that ran before are started again."""

    def __init__(self, config: tables.Systemd, runtime: Runtime, *, grace: float = GRACE) -> None:
        self._units = config.units
        self._runtime = runtime
        self._grace = grace

    def run(self, work: Work) -> str:
        until = self._runtime.monotonic() + work.seconds_left
        ran = read_memo(work.memo)
        verb, done = ("stop", "stopped") if work.phase is Phase.PREPARE else ("start", "started")
        if verb == "stop":
            if ran is None:
                shown = self._show(until, work.stop, work.on_start)
                ran = [unit["Id"] for unit in shown if unit.get("ActiveState") in RUNNING]
            work.remember(write_memo(ran))
        units = self._units if ran is None else ran
        if not units:
            return "none of the units was active"
        self._systemctl(verb, "--", *units, until=until, stop=work.stop, on_start=work.on_start)
        return plain(f"{done} {', '.join(units)}")

    def rehearse(self) -> str:
        place = process.locate(process.Program(argv=SYSTEMCTL))
        units = self._show(self._runtime.monotonic() + REHEARSAL_SECONDS, threading.Event())
        if not units:
            raise HandlerError(f"systemd knows no unit {', '.join(self._units)}")
        if missing := [unit for unit in units if unit.get("LoadState") != "loaded"]:
            raise HandlerError(f"systemd has not loaded {_listed(missing, 'LoadState')}")
        return f"{place} would stop {_listed(units, 'ActiveState')}, and start again what was active"

    def _show(
        self, until: float, stop: threading.Event, on_start: Callable[[int], None] | None = None
    ) -> Sequence[Mapping[str, str]]:
        """The properties of each unit; of a pattern, of all that it matches."""
        what = ("--property=Id,LoadState,ActiveState", "--", *self._units)
        printed = self._systemctl("show", *what, until=until, stop=stop, on_start=on_start, kept=LARGEST_OUTPUT)
        blocks = (block.splitlines() for block in printed.split("\n\n"))
        found = (dict(line.split("=", 1) for line in block if "=" in line) for block in blocks)
        return [unit for unit in found if unit.get("Id")]

    def _systemctl(
        self,
        verb: str,
        *arguments: str,
        until: float,
        stop: threading.Event,
        on_start: Callable[[int], None] | None,
        kept: int = process.KEPT,
    ) -> str:
        program = process.Program(argv=(*SYSTEMCTL, verb, *arguments), kept=kept)
        left = until - self._runtime.monotonic()
        ended = process.execute(program, self._runtime, seconds=left, stop=stop, grace=self._grace, on_start=on_start)
        if not ended.ok:
            raise HandlerError(f"systemctl {verb}: {ended.message[: process.KEPT]}")
        return ended.printed


def _listed(units: Sequence[Mapping[str, str]], key: str) -> str:
    return plain(", ".join(f"{unit['Id']} ({unit.get(key)})" for unit in units))
