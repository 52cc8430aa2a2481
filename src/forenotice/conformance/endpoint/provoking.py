"""Causing an event by somebody's command."""

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from forenotice.core import errors
from forenotice.programs.group import Group

GRACE = 5.0
"""Seconds that a command may take to end once its event is over."""

KEPT = 4096
"""Bytes of what it said last."""
LAST_WORDS = 400
"""Characters of that for the report."""


class Provoked(Protocol):
    def failure(self) -> str:
        """Why no event is to be hoped for; empty: it may still come."""

    def close(self, *, at_once: bool = False) -> None: ...


Provoke = Callable[[], Provoked]


class Command:
    """A command under way; it may well take as long as its event does."""

    def __init__(self, argv: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - it is the user's own
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise errors.RefusedError(f"--provoke: {argv[0]!r} cannot be run: {error.strerror}") from None
        self._group = Group(self._process)
        self._said = b""
        self._listening = threading.Thread(target=self._listen, name="command-output", daemon=True)
        self._listening.start()

    def failure(self) -> str:
        code = self._process.poll()
        if not code:
            return ""
        self._listening.join(GRACE)
        return f"ended with code {code}: {' '.join(self._said.decode(errors='replace').split())[-LAST_WORDS:]}"

    def close(self, *, at_once: bool = False) -> None:
        """With all that it started."""
        try:
            self._process.wait(0 if at_once else GRACE)
        except subprocess.TimeoutExpired:
            self._group.ask_to_end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
        finally:
            if self._group.alive:
                self._group.kill()
            self._process.wait()
        # Whatever has left the group may hold the pipe open for ever.
        self._listening.join(GRACE)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            while said := os.read(pipe.fileno(), KEPT):
                self._said = (self._said + said)[-KEPT:]


def by_command(argv: Sequence[str]) -> Provoke:
    """Found before anything is asked: hours may pass until it is run."""
    if shutil.which(argv[0]) is None:
        raise errors.RefusedError(f"--provoke: there is no program {argv[0]!r}")
    return lambda: Command(argv)
