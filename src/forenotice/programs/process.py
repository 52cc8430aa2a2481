"""Child processes with a time limit: each in a process group of its own, stopped and killed together with it."""

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, cast

from forenotice.core import backoff, errors
from forenotice.runtime import Runtime

KEPT = 2048
"""Bytes of output that are kept: the last ones."""
LONGEST_REASON = 100
NOT_INHERITED = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
"""With these a child would talk to the service manager in its parent's name."""
INHERITED = ("PATH", "HOME", "LANG")
"""The only variables that a service's commands inherit: others may be secret."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_FIRST_POLL, _LONGEST_POLL, _LONGEST_GROUP_POLL = 0.001, 0.05, 0.1
"""Seconds between two polls of a child; a poll of its group may read all of /proc."""
_OUTPUT_SECONDS = 0.5
"""For output that is still in the pipe when a child has ended."""
_REAP_SECONDS = 1.0
"""For a killed child to disappear."""
_LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("launcher.py")))
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class ProgramError(errors.RefusedError):
    """The program cannot be started."""

    code = "program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """In addition to what is inherited."""
    inherited: Collection[str] | None = None
    """Names of variables; None: all."""
    directory: str = "/"
    stdin: bytes = b""
    kept: int = KEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int | None
    """Negative: the signal that ended it. None: it could not be killed."""
    printed: str
    """The end of its output, unchanged."""
    stopped: str = ""
    """Why and when it was stopped."""

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.stopped

    @property
    def message(self) -> str:
        """The output; after a failure, how it ended and the output."""
        if self.ok:
            return self.output
        return f"{self.how}: {self.output}" if self.output else self.how

    @property
    def how(self) -> str:
        if self.stopped:
            return self.stopped
        return f"ended by signal {-self.code}" if self.code is not None and self.code < 0 else f"exit code {self.code}"

    @property
    def output(self) -> str:
        """In one line, without control characters."""
        return " / ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """All but empty ones."""
        lines = (plain(line).strip() for line in _COLOURS.sub("", self.printed).splitlines())
        return [line for line in lines if line]


class Group:
    """The process group of a session leader. Its number is not reused while any member lives."""

    def __init__(self, leader: subprocess.Popen[bytes] | int) -> None:
        """A child of ours, or else the leader's number."""
        self._child = None if isinstance(leader, int) else leader
        self._number = leader if isinstance(leader, int) else leader.pid

    @property
    def alive(self) -> bool:
        running = self._child is not None and self._child.poll() is None
        return running or (self._signal(0) and self._has_living())

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self._number, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # They exist but run as another user, as with sudo.
        return True

    def _has_living(self) -> bool:
        """Zombies are signalled without error until they are reaped, which takes long in many containers."""
        members = list(_members(self._number))
        return not members or any(member.state not in "ZX" for member in members)


class Alone:
    """On a system without process groups: the child, without the processes that it started."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def terminate(self) -> None:
        self._child.terminate()

    def kill(self) -> None:
        self._child.kill()


Family = Group | Alone


def execute(
    program: Program,
    runtime: Runtime,
    *,
    seconds: float,
    stop: threading.Event,
    asked_by: str = "the agent",
    grace: float = GRACE,
    family: Callable[[subprocess.Popen[bytes]], Family] = Group if os.name == "posix" else Alone,
    on_start: Callable[[int], None] | None = None,
) -> Ended:
    """Run it to its end, or until the time is up or `stop` is set: then SIGTERM, and SIGKILL after `grace`.

    Processes that it leaves in the background continue if it succeeded, and are ended with it if not.
    `on_start` gets the number of the process group before the program begins; if it raises OSError, nothing runs.
    """
    begun = runtime.monotonic()
    child = _start(program) if on_start is None or os.name != "posix" else _start_held(program, on_start)
    tail = _Tail(program.kept)
    # These threads may outlast the call: as long as a process in the background holds the pipe.
    reader = runtime.start_thread(partial(tail.follow, cast("IO[bytes]", child.stdout)), "child output")
    if program.stdin:
        runtime.start_thread(partial(_feed, cast("IO[bytes]", child.stdin), program.stdin), "child input")
    stopped = ""
    if not _ended(child, runtime, begun + seconds, stop):
        why = f"as {asked_by} asked" if stop.is_set() else "when its time was up"
        stopped = f"stopped after {runtime.monotonic() - begun:.0f} s, {why}"
    if stopped or child.returncode:
        killed = _end(family(child), runtime, grace)
        if stopped and killed:
            stopped += f", and killed {grace:g} s later"
    # A killed process may still exist: in uninterruptible sleep, or as another user's.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_SECONDS)
    if child.returncode is None:
        stopped += ", and is still there"
    reader.join(_OUTPUT_SECONDS)
    return Ended(code=child.returncode, printed=tail.text, stopped=stopped)


def locate(program: Program) -> str:
    """Its path, without running it. ProgramError: it could not be run."""
    name, directory = program.argv[0], program.directory
    if not os.path.isdir(directory):
        raise ProgramError(f"there is no directory {plain(directory)}")
    places = [""] if os.path.dirname(name) else os.get_exec_path(_environment(program))
    found = [path for place in places if os.path.isfile(path := os.path.join(directory, place, name))]
    if not found:
        raise ProgramError(f"there is no program {plain(name)}")
    for path in found:
        if os.access(path, os.X_OK):
            return path
    raise ProgramError(f"{plain(found[0])} is not executable: chmod +x it")


def end_group(
    number: int, leader_started: int, variables: Mapping[str, str], runtime: Runtime, *, grace: float = GRACE
) -> bool:
    """End a group that an earlier process of ours started; whether nothing of it is left.

    `leader_started` is `started` of its leader; `variables` are some that only its environment has.
    """
    if not _is_same(number, leader_started, variables):
        return True
    group = Group(number)
    _end(group, runtime, grace)
    # Killed processes disappear in a moment, unless they are in uninterruptible sleep.
    return not _end(group, runtime, _REAP_SECONDS)


def started(pid: int) -> int | None:
    """When a process started, in ticks since the boot; together with its pid that is unique. None: unknown."""
    found = _member(pid)
    return found.started if found else None


def plain(text: str) -> str:
    """Without control characters: fit for a variable, a log line and a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def first_words(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    cut = text[: most - 2]
    whole = cut.rpartition(" ")[0]
    return f"{whole if len(whole) > most // 2 else cut} …"


def last_words(text: str, most: int) -> str:
    """There a program tells why it failed."""
    return first_words(text[::-1], most)[::-1]


def reason(error: Exception) -> str:
    """An error of the system, short and in lower case."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return plain(text)[:LONGEST_REASON].lower()


def _environment(program: Program) -> dict[str, str]:
    names = os.environ if program.inherited is None else program.inherited
    inherited = {name: os.environ[name] for name in names if name in os.environ and name not in NOT_INHERITED}
    return {**inherited, **program.environment}


def _start_held(program: Program, on_start: Callable[[int], None]) -> subprocess.Popen[bytes]:
    """Start the launcher, which becomes the program once `on_start` has returned."""
    locate(program)
    wait, go = os.pipe()
    try:
        locale = _environment(program).get("LC_CTYPE", "")
        child = _start(program, (*_LAUNCHER, str(wait), locale, *program.argv), (wait,))
        try:
            on_start(child.pid)
        except OSError as error:
            os.close(go)
            go = -1
            child.communicate()
            raise ProgramError(f"{plain(program.argv[0])} was not run: {reason(error)}") from None
        os.write(go, b"\n")
        return child
    finally:
        os.close(wait)
        if go >= 0:
            os.close(go)


def _start(
    program: Program, argv: Sequence[str] | None = None, descriptors: Collection[int] = ()
) -> subprocess.Popen[bytes]:
    name = plain(program.argv[0])
    try:
        return subprocess.Popen(  # noqa: S603 (what an administrator configured)
            argv or program.argv,
            stdin=subprocess.PIPE if program.stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=program.directory,
            env=_environment(program),
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )
    except OSError as error:
        if error.filename == program.directory and error.filename != program.argv[0]:
            said = f"the directory {plain(program.directory)} cannot be used: {reason(error)}"
        elif error.errno == errno.ENOENT:
            said = f"there is no program {name}"
        else:
            said = f"{name} cannot be run: {reason(error)}"
        raise ProgramError(said) from None
    except ValueError as error:
        raise ProgramError(f"{name} cannot be run: {error}") from None


def _ended(child: subprocess.Popen[bytes], runtime: Runtime, until: float, stop: threading.Event) -> bool:
    """Whether it ended by itself. Nothing portable waits for a child and for an event, so this polls."""
    pauses = backoff.pauses(_FIRST_POLL, _LONGEST_POLL)
    while child.poll() is None:
        left = until - runtime.monotonic()
        if left <= 0 or stop.wait(min(next(pauses), left)):
            return False
    return True


def _end(family: Family, runtime: Runtime, grace: float) -> bool:
    """SIGTERM, then SIGKILL; whether some had to be killed."""
    if not family.alive:
        return False
    family.terminate()
    until, never = runtime.monotonic() + grace, threading.Event()
    pauses = backoff.pauses(_FIRST_POLL, _LONGEST_GROUP_POLL)
    while family.alive:
        left = until - runtime.monotonic()
        if left <= 0:
            family.kill()
            return True
        never.wait(min(next(pauses), left))
    return False


class _Tail:
    """The end of a child's output, read all along so that the child never blocks."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._bytes = bytearray()
        self._cut = False

    def follow(self, pipe: IO[bytes]) -> None:
        with pipe:
            while chunk := os.read(pipe.fileno(), 65536):
                self._bytes += chunk
                self._cut |= len(self._bytes) > self._kept
                del self._bytes[: -self._kept]

    @property
    def text(self) -> str:
        return ("... " if self._cut else "") + bytes(self._bytes).decode(errors="replace")


def _feed(pipe: IO[bytes], content: bytes) -> None:
    # A child need not read its standard input.
    with contextlib.suppress(OSError):
        pipe.write(content)
    with contextlib.suppress(OSError):
        pipe.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    pid: int
    state: str
    group: int
    started: int


def _members(group: int) -> Iterator[_Member]:
    """Its processes on Linux; none elsewhere."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and (member := _member(int(name))) and member.group == group:
                yield member


def _member(pid: int) -> _Member | None:
    """None: it has ended, or this is not Linux."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return _Member(pid=pid, state=fields[0].decode(), group=int(fields[2]), started=int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def _is_same(number: int, leader_started: int, variables: Mapping[str, str]) -> bool:
    """Whether this is still the group of the leader that started then, with these variables."""
    if leader := _member(number):
        return leader.group == number and leader.started == leader_started
    # The group may have ended, and its number may belong to a later group whose leader has ended as well.
    expected = {f"{name}={value}".encode(errors="surrogateescape") for name, value in variables.items()}
    return any(expected <= _variables(member.pid) for member in _members(number))


def _variables(pid: int) -> frozenset[bytes]:
    try:
        return frozenset(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return frozenset()
