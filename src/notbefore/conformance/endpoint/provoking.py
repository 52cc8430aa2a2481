"""Causing an event by somebody's command."""

import os
import shutil
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from notbefore.conformance.endpoint.asking import pause
from notbefore.conformance.handlers.child import Child
from notbefore.core import errors

GRACE = 5.0
"""Seconds that a command may take to end once its event is over."""

LOOK = 0.05
"""Seconds between two looks whether it has."""


class Provoked(Protocol):
    def failure(self) -> str:
        """Why no event is to be hoped for; empty: it may still come."""

    def close(self) -> None: ...


Provoke = Callable[[], Provoked]


class Command:
    """A command under way; it may well take as long as its event does."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._child = Child(argv, os.environ, "--provoke")

    def failure(self) -> str:
        code = self._child.exit_code
        if not code:
            return ""
        # Only then all that it said is there.
        self._child.end(GRACE)
        return f"ended with code {code}: {self._child.said}"

    def close(self) -> None:
        """With all that it started, also when we are interrupted meanwhile."""
        try:
            deadline = monotonic() + GRACE
            while self._child.exit_code is None and monotonic() < deadline:
                pause(LOOK)
        finally:
            self._child.end(GRACE)


def by_command(argv: Sequence[str]) -> Provoke:
    """Found before anything is asked: hours may pass until it is run."""
    if shutil.which(argv[0]) is None:
        raise errors.RefusedError(f"--provoke: there is no program {argv[0]!r}")
    return lambda: Command(argv)
