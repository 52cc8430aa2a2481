"""Process groups: a child and all that it started are asked to end, and killed, together."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator


class Group:
    """Of a child that leads a session of its own. Once it is reaped, the number stays taken while others live in it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def alive(self) -> bool:
        return self._process.poll() is None or (self._signal(0) and self._has_living())

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # They are there, but became somebody else, as with sudo.
        return True

    def _has_living(self) -> bool:
        """The dead are signalled without error until somebody reaps them, and in many a container that takes long."""
        members = list(_members(self._process.pid))
        return not members or any(state not in "ZX" for state in members)


def _members(group: int) -> Iterator[str]:
    """The state of each process in it, as Linux tells it; nothing elsewhere."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            # Whoever ends meanwhile is not asked after.
            with contextlib.suppress(OSError, ValueError, IndexError):
                if name.isdecimal():
                    with open(f"/proc/{name}/stat", "rb") as file:
                        state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
                    if int(its_group) == group:
                        yield state.decode()
