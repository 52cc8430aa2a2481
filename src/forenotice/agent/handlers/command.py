"""`command`: a program of the administrator's for each phase."""

import threading

from forenotice.agent.handlers import GRACE, Outcome, Work, facts, tables
from forenotice.programs import process
from forenotice.runtime import Runtime

SHELL = "/bin/sh"
_PARSE_SECONDS = 5.0


class Command:
    def __init__(self, config: tables.Command, runtime: Runtime, *, grace: float = GRACE) -> None:
        self._config = config
        self._runtime = runtime
        self._grace = grace

    def run(self, work: Work) -> Outcome:
        if (argv := self._config.commands.get(work.phase)) is None:
            return Outcome(ok=True, message="nothing to run")
        program = self._program(self._argv(argv), facts.environment(work), facts.encoded(work))
        try:
            ended = process.execute(
                program,
                self._runtime,
                seconds=work.seconds_left,
                stop=work.stop,
                grace=self._grace,
                on_start=work.on_start,
            )
        except process.ProgramError as error:
            return Outcome(ok=False, message=error.message)
        return Outcome(ok=ended.ok, message=ended.message)

    def rehearse(self) -> Outcome:
        ok, messages = True, []
        for phase, argv in self._config.commands.items():
            try:
                messages.append(f"{phase} would run {self._located(argv)}")
            except process.ProgramError as error:
                ok = False
                messages.append(f"{phase} would fail: {error.message}")
        return Outcome(ok=ok, message="; ".join(messages))

    def _located(self, argv: tables.Argv) -> str:
        place = process.locate(self._program(self._argv(argv)))
        if self._config.shell:
            # -n: parse only.
            shell = self._program((SHELL, "-n", "-c", *argv))
            parsed = process.execute(shell, self._runtime, seconds=_PARSE_SECONDS, stop=threading.Event())
            if not parsed.ok:
                raise process.ProgramError(f"{SHELL} does not understand it: {parsed.message}")
        return process.plain(place)

    def _argv(self, given: tables.Argv) -> tuple[str, ...]:
        return (SHELL, "-c", *given) if self._config.shell else given

    def _program(
        self, argv: tuple[str, ...], variables: dict[str, str] | None = None, stdin: bytes = b""
    ) -> process.Program:
        environment = {**(variables or {}), **self._config.environment}
        return process.Program(argv=argv, environment=environment, directory=self._config.directory, stdin=stdin)
