"""Process groups: a child and all that it started are asked to end, and killed, together."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


class Group:
    """Of a leader of a session of its own. Once it is reaped, the number stays taken while others live in it."""

    def __init__(self, leader: subprocess.Popen[bytes] | int) -> None:
        """A child of ours, or else the leader's number."""
        self._child = None if isinstance(leader, int) else leader
        self._number = leader if isinstance(leader, int) else leader.pid

    @property
    def alive(self) -> bool:
        running = self._child is not None and self._child.poll() is None
        return running or (self._signal(0) and self._has_living())

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self._number, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # They are there, but became somebody else, as with sudo.
        return True

    def _has_living(self) -> bool:
        """The dead are signalled without error until somebody reaps them, and in many a container that takes long."""
        members = list(_members(self._number))
        return not members or any(member.state not in "ZX" for member in members)


def started(pid: int) -> int | None:
    """When a process started, in ticks since the boot: with its number, that names it for ever. None: unknown."""
    found = _member(pid)
    return found.started if found else None


def is_same(number: int, leader_started: int, variables: Mapping[str, str]) -> bool:
    """Whether this is still the group of the leader that started then, with these variables in its environment."""
    leader = _member(number)
    if leader is not None:
        return leader.group == number and leader.started == leader_started
    # While the group lives its number is not given to another process. But it may have ended, and another one too.
    expected = {f"{name}={value}".encode(errors="surrogateescape") for name, value in variables.items()}
    return any(expected <= _environment(member.pid) for member in _members(number))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    pid: int
    state: str
    group: int
    started: int


def _members(group: int) -> Iterator[_Member]:
    """The processes in it, as Linux tells it; nothing elsewhere."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and (member := _member(int(name))) and member.group == group:
                yield member


def _member(pid: int) -> _Member | None:
    """None: it has ended, or this is not Linux."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return _Member(pid=pid, state=fields[0].decode(), group=int(fields[2]), started=int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def _environment(pid: int) -> frozenset[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return frozenset(file.read().split(b"\0"))
    except OSError:
        return frozenset()
