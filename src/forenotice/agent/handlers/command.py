"""`command`: a program of the administrator's for each phase."""

import threading

from forenotice.agent.handlers import GRACE, Outcome, Work, facts, tables
from forenotice.programs import process

SHELL = "/bin/sh"
_PARSING = 5.0


class Command:
    def __init__(self, config: tables.Command, *, grace: float = GRACE) -> None:
        self._config = config
        self._grace = grace

    def run(self, work: Work) -> Outcome:
        argv = self._config.commands.get(work.phase)
        if argv is None:
            return Outcome(ok=True, said="nothing to run")
        program = process.Program(
            argv=self._argv(argv),
            environment={**facts.environment(work), **self._config.environment},
            directory=self._config.directory,
            stdin=facts.encoded(work),
        )
        try:
            ended = process.execute(
                program, seconds=work.seconds_left, stop=work.stop, grace=self._grace, born=work.born
            )
        except process.ProgramError as error:
            return Outcome(ok=False, said=error.message)
        return Outcome(ok=ended.ok, said=ended.said)

    def rehearse(self) -> Outcome:
        ok, said = True, []
        for phase, argv in self._config.commands.items():
            try:
                said.append(f"{phase} would run {self._found(argv)}")
            except process.ProgramError as error:
                ok = False
                said.append(f"{phase} would fail: {error.message}")
        return Outcome(ok=ok, said="; ".join(said))

    def _found(self, argv: tables.Argv) -> str:
        place = process.locate(self._program(self._argv(argv)))
        if self._config.shell:
            # Read, not run: -n.
            parsed = process.execute(
                self._program((SHELL, "-n", "-c", *argv)), seconds=_PARSING, stop=threading.Event()
            )
            if not parsed.ok:
                raise process.ProgramError(f"{SHELL} does not understand it: {parsed.said}")
        return facts.plain(place)

    def _argv(self, given: tables.Argv) -> tuple[str, ...]:
        return (SHELL, "-c", *given) if self._config.shell else given

    def _program(self, argv: tuple[str, ...]) -> process.Program:
        return process.Program(argv=argv, environment=self._config.environment, directory=self._config.directory)
