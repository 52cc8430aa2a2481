"""Causing an event by somebody's command."""

import shutil
from collections.abc import Callable, Sequence
from typing import Protocol

from forenotice.conformance.child import GRACE, Child
from forenotice.core import errors


class Provoked(Protocol):
    def failure(self) -> str:
        """Why no event is to be hoped for; empty: it may still come."""

    def close(self, *, at_once: bool = False) -> None: ...


Provoke = Callable[[], Provoked]


class Command:
    """A command under way; it may well take as long as its event does."""

    def __init__(self, argv: Sequence[str], grace: float = GRACE) -> None:
        self._child = Child("--provoke", argv)
        self._grace = grace

    def failure(self) -> str:
        if not self._child.exit_code:
            return ""
        self._child.end(self._grace)
        return f"ended with code {self._child.exit_code}: {self._child.said}"

    def close(self, *, at_once: bool = False) -> None:
        """With all that it started."""
        if not at_once:
            self._child.wait(self._grace)
        self._child.end(self._grace)


def by_command(argv: Sequence[str]) -> Provoke:
    """Found before anything is asked: hours may pass until it is run."""
    if shutil.which(argv[0]) is None:
        raise errors.RefusedError(f"--provoke: there is no program {argv[0]!r}")
    return lambda: Command(argv)
