"""Somebody's handler as a process of ours: started, listened to, and ended with all that it started."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence

from notbefore.agent.posix.processes import Group
from notbefore.core import errors

KEPT = 4096
"""Bytes of what it said last."""
LAST_WORDS = 400
"""Characters of that for the report."""
GRACE = 5.0
"""Seconds to end in, once it is asked to."""


class Child:
    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], flag: str = "--client") -> None:
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
        self._said = b""
        self._listening = threading.Thread(target=self._listen, name="handler-output", daemon=True)
        self._listening.start()

    @property
    def exit_code(self) -> int | None:
        """None: it runs."""
        return self._process.poll()

    @property
    def said(self) -> str:
        """Last, on one line."""
        return " ".join(self._said.decode(errors="replace").split())[-LAST_WORDS:]

    def end(self, grace: float = GRACE) -> None:
        self._group.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        if self._group.alive:
            self._group.kill()
        self._process.wait()
        # Whatever has left the group may hold the pipe open for ever.
        self._listening.join(grace)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            while said := os.read(pipe.fileno(), KEPT):
                self._said = (self._said + said)[-KEPT:]
