"""Causing an event by somebody's command."""

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Protocol

from notbefore.core import errors

LAST_WORDS = 400
"""Characters of what a failed command said."""
GRACE = 5.0
"""Seconds that a command may take to end once its event is over."""


class Provoked(Protocol):
    def failure(self) -> str:
        """Why no event is to be hoped for; empty: it may still come."""

    def close(self) -> None: ...


Provoke = Callable[[], Provoked]


class Command:
    """A command under way; it may well take as long as its event does."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        try:
            self._process = subprocess.Popen(  # noqa: S603 - it is the user's own
                argv, stdin=subprocess.DEVNULL, stdout=self._said, stderr=subprocess.STDOUT
            )
        except OSError as error:
            self._said.close()
            raise errors.RefusedError(f"--provoke: {argv[0]!r} cannot be run: {error.strerror}") from None

    def failure(self) -> str:
        code = self._process.poll()
        if not code:
            return ""
        self._said.seek(0)
        said = self._said.read(1024 * 1024).decode(errors="replace").strip()
        return f"it ended with code {code}: {' '.join(said.split())[-LAST_WORDS:]}"

    def close(self) -> None:
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


def by_command(argv: Sequence[str]) -> Provoke:
    return lambda: Command(argv)
