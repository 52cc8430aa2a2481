"""Gates: what must be green before a rollout goes on with its next wave."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from forenotice.core import errors
from forenotice.core.rollouts import GateResult
from forenotice.programs import process
from forenotice.runtime import Runtime
from forenotice.ssrf import OutgoingClient, describe_status

SECONDS = 30.0
"""For one look at a gate."""
KEPT = 400
"""Bytes of what a gate says: the end of a command's output, the beginning of an answer."""


class Gates:
    """Commands come from the service's settings alone, by name; a rollout may also give a URL."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        outgoing: OutgoingClient,
        runtime: Runtime | None = None,
        *,
        seconds: float = SECONDS,
    ) -> None:
        """`outgoing` is the gates' own: it is closed with them. `seconds` is for a command."""
        self._programs = {name: process.Program(argv=argv, kept=KEPT) for name, argv in commands.items()}
        self._outgoing = outgoing
        self._runtime = runtime or Runtime()
        self._seconds = seconds
        self._stop = threading.Event()
        for name, program in self._programs.items():
            try:
                process.locate(program)
            except process.ProgramError as error:
                raise errors.RefusedError(f"gate {name}: {error.message}") from None

    @property
    def names(self) -> list[str]:
        """Of those that are commands."""
        return sorted(self._programs)

    def require(self, gate: str) -> None:
        """Refuse what could never be asked."""
        if is_url(gate):
            try:
                self._outgoing.require(gate)
            except errors.RefusedError as error:
                raise errors.RefusedError(f"this gate will not do: {error.message}") from None
        else:
            self._program(gate)

    def check(self, gate: str, facts: Mapping[str, str], now: datetime) -> GateResult:
        """Ask once. A gate that cannot be asked is not green."""
        try:
            if is_url(gate):
                green, status, output = self._get(gate, facts)
            else:
                green, status, output = self._run(self._program(gate), facts)
        except errors.ForenoticeError as error:
            green, status, output = False, error.message, ""
        return GateResult(green=green, status=status, output=output, at=now)

    def close(self) -> None:
        """For good: what is under way is ended."""
        self._stop.set()
        self._outgoing.close()

    def _program(self, name: str) -> process.Program:
        found = self._programs.get(name)
        if found is None:
            known = f"known are {', '.join(sorted(self._programs))}" if self._programs else "there are none"
            raise errors.RefusedError(
                f"there is no gate {name[:80]!r}: {known}; give a URL, or define one with `serve --gate NAME=COMMAND`",
                gate=name[:80],
                known=sorted(self._programs),
            )
        return found

    def _run(self, program: process.Program, facts: Mapping[str, str]) -> tuple[bool, str, str]:
        told = replace(
            program,
            environment={f"FORENOTICE_{name.upper()}": value for name, value in facts.items()},
            inherited=process.INHERITED,
        )
        ended = process.execute(told, self._runtime, seconds=self._seconds, stop=self._stop, asked_by="the service")
        return ended.ok, ended.how, (ended.lines or [""])[-1]

    def _get(self, url: str, facts: Mapping[str, str]) -> tuple[bool, str, str]:
        response = self._outgoing.get(url, {f"Forenotice-{name.title()}": value for name, value in facts.items()})
        first = response.body[:KEPT].decode(errors="replace").strip().partition("\n")[0]
        line = process.plain(first).strip()
        return response.status // 100 == 2, describe_status(response.status), line


def is_url(gate: str) -> bool:
    return "://" in gate
