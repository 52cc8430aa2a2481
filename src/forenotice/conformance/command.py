"""A user's command as a child process: started, its output kept, and ended with all that it started."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from forenotice.core import errors
from forenotice.programs.process import Group

KEPT = 4096
"""Bytes of its last output."""
LAST_WORDS = 400
"""Characters of that for the report."""
GRACE = 5.0
"""Seconds to end in, once it is asked to."""
MARK = "FORENOTICE_SITUATION_DIR"
"""The variable that nobody else has with the same value."""


class Child:
    def __init__(self, flag: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - it is the user's own
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise errors.RefusedError(f"{flag}: {argv[0]!r} cannot be run: {error.strerror}") from None
        self._group = Group(self._process)
        self._mark = f"{MARK}={environment[MARK]}".encode() if environment else b""
        self._output = b""
        self._listening = threading.Thread(target=self._listen, name="command-output", daemon=True)
        self._listening.start()

    @property
    def exit_code(self) -> int | None:
        """None: it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """Last, on one line."""
        return " ".join(self._output.decode(errors="replace").split())[-LAST_WORDS:]

    def wait(self, seconds: float) -> None:
        """Till it has ended, for so long at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def end(self, grace: float = GRACE) -> None:
        self._group.terminate()
        self.wait(grace)
        if self._group.alive:
            self._group.kill()
        self._process.wait()
        if self._mark:
            _kill_all_with(self._mark)
        # Whatever is left all the same may hold the pipe open for ever.
        self._listening.join(grace)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            while data := os.read(pipe.fileno(), KEPT):
                self._output = (self._output + data)[-KEPT:]


def _kill_all_with(mark: bytes) -> None:
    """Whatever has left the group, as daemons do, still has its variables. Linux only."""
    if sys.platform != "linux":
        return
    for name in filter(str.isdecimal, os.listdir("/proc")):
        # Whoever ends meanwhile, or is not ours to look at, is left alone.
        with contextlib.suppress(OSError):
            process = os.pidfd_open(int(name))
            try:
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)


class Provoked(Protocol):
    def failure(self) -> str:
        """Why no event is to be hoped for; empty: it may still come."""

    def close(self, *, at_once: bool = False) -> None: ...


Provoke = Callable[[], Provoked]


class ProvokingCommand:
    """A command under way; it may well take as long as its event does."""

    def __init__(self, argv: Sequence[str], grace: float = GRACE) -> None:
        self._child = Child("--provoke", argv)
        self._grace = grace

    def failure(self) -> str:
        if not self._child.exit_code:
            return ""
        self._child.end(self._grace)
        return f"ended with code {self._child.exit_code}: {self._child.output}"

    def close(self, *, at_once: bool = False) -> None:
        """With all that it started."""
        if not at_once:
            self._child.wait(self._grace)
        self._child.end(self._grace)


def by_command(argv: Sequence[str]) -> Provoke:
    """Found before anything is asked: hours may pass until it is run."""
    if shutil.which(argv[0]) is None:
        raise errors.RefusedError(f"--provoke: there is no program {argv[0]!r}")
    return lambda: ProvokingCommand(argv)
