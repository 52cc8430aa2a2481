"""Child processes with a time limit: run in a group of their own, heard to the end, stopped and killed when due."""

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from forenotice.core import backoff, errors

KEPT = 2048
"""Bytes of output that are kept: the last ones."""
NOT_INHERITED = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
"""A child that spoke to the service manager would speak for its parent."""
INHERITED = ("PATH", "HOME", "LANG")
"""All that a service's commands get of its environment: the rest may be secret."""
GRACE = 5.0
"""Seconds between asking a child to end and killing it."""
_FIRST_LOOK = 0.001
_LONGEST_LOOK = 0.05
_LONGEST_LOOK_AT_ALL = 0.1
"""Seconds between two looks at a child, and at all that it started, which may mean at every process there is."""
_LAST_WORDS = 0.5
"""Seconds for output that is still in the pipe when a child has ended."""
_REAPED = 1.0
"""Seconds that a killed child may take to be gone."""
_LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("launcher.py")))
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class ProgramError(errors.RefusedError):
    """The program cannot be started."""

    code = "program"


class Family(Protocol):
    """A child and, where the system knows such a thing, all that it started."""

    @property
    def alive(self) -> bool: ...
    def ask_to_end(self) -> None: ...
    def kill(self) -> None: ...


Families = Callable[[subprocess.Popen[bytes]], Family]


class Alone:
    """Where there are no process groups: the child, without what it started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask_to_end(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside what is inherited."""
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
    """The last of it, as it came."""
    stopped: str = ""
    """Why and when it was stopped."""

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.stopped

    @property
    def said(self) -> str:
        """How it ended, and its last words."""
        if self.ok:
            return self.output
        return f"{self.how}: {self.output}" if self.output else self.how

    @property
    def how(self) -> str:
        if self.stopped:
            return self.stopped
        if self.code is not None and self.code < 0:
            return f"ended by signal {-self.code}"
        return f"exit code {self.code}"

    @property
    def output(self) -> str:
        """What it printed, in one line and fit for a log."""
        return " / ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """Those that say something."""
        lines = (plain(line).strip() for line in _COLOURS.sub("", self.printed).splitlines())
        return [line for line in lines if line]


def execute(
    program: Program,
    *,
    seconds: float,
    stop: threading.Event,
    asked_by: str = "the agent",
    grace: float = GRACE,
    family: Families | None = None,
    born: Callable[[int], None] | None = None,
) -> Ended:
    """Run it to its end, or until the time is up or `stop` is set: then ask it to end, and kill it after `grace`.

    What it leaves running in the background is left alone if it succeeded, and ended with it if not.
    `born` is told the number of its process group before the program does anything; if it raises OSError, nothing runs.
    """
    begun = time.monotonic()
    process = _start(program) if born is None or os.name != "posix" else _start_held(program, born)
    heard = _Tail(program.kept)
    listener = _aside(heard.follow, process.stdout)
    if program.stdin:
        _aside(_feed, process.stdin, program.stdin)
    stopped = ""
    if not _ended(process, begun + seconds, stop):
        why = f"as {asked_by} asked" if stop.is_set() else "when its time was up"
        stopped = f"stopped after {time.monotonic() - begun:.0f} s, {why}"
    if stopped or process.returncode:
        killed = _end((family or _families())(process), grace)
        if stopped and killed:
            stopped += f", and killed {grace:g} s later"
    # Killed, and yet it may be there: a process that waits for a dead disk, or one that became another user.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAPED)
    if process.returncode is None:
        stopped += ", and is still there"
    listener.join(_LAST_WORDS)
    return Ended(code=process.returncode, printed=heard.text, stopped=stopped)


def locate(program: Program) -> str:
    """Where it is, without running it. ProgramError: it could not be run."""
    name, directory = program.argv[0], program.directory
    if not os.path.isdir(directory):
        raise ProgramError(f"there is no directory {plain(directory)}")
    places = [""] if os.path.dirname(name) else os.get_exec_path(_environment(program))
    there = [path for place in places if os.path.isfile(path := os.path.join(directory, place, name))]
    if not there:
        raise ProgramError(f"there is no program {plain(name)}")
    for path in there:
        if os.access(path, os.X_OK):
            return path
    raise ProgramError(f"{plain(there[0])} is not executable: chmod +x it")


def _environment(program: Program) -> dict[str, str]:
    names = os.environ if program.inherited is None else program.inherited
    inherited = {name: os.environ[name] for name in names if name in os.environ and name not in NOT_INHERITED}
    return {**inherited, **program.environment}


def _families() -> Families:
    if os.name != "posix":
        return Alone

    return Group


def end_group(number: int, started: int, variables: Mapping[str, str], *, grace: float = GRACE) -> bool:
    """End a group that a process before this one has started, if it is still that one; whether nothing of it is left.

    `started` is what `group.started` said of its leader, `variables` are some that only its environment has.
    """

    if not is_same(number, started, variables):
        return True
    family = Group(number)
    _end(family, grace)
    # Those that were killed are gone in a moment, unless they wait for a dead disk.
    return not _end(family, _REAPED)


def _start_held(program: Program, born: Callable[[int], None]) -> subprocess.Popen[bytes]:
    locate(program)
    wait, go = os.pipe()
    try:
        locale = _environment(program).get("LC_CTYPE", "")
        process = _start(program, (*_LAUNCHER, str(wait), locale, *program.argv), (wait,))
        try:
            born(process.pid)
        except OSError as error:
            os.close(go)
            go = -1
            process.communicate()
            raise ProgramError(f"{plain(program.argv[0])} was not run: {of_error(error)}") from None
        os.write(go, b"\n")
        return process
    finally:
        os.close(wait)
        if go >= 0:
            os.close(go)


def _start(
    program: Program, argv: Sequence[str] | None = None, descriptors: Collection[int] = ()
) -> subprocess.Popen[bytes]:
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
        raise ProgramError(_reason(program, error)) from None
    except ValueError as error:
        raise ProgramError(f"{plain(program.argv[0])} cannot be run: {error}") from None


def _reason(program: Program, error: OSError) -> str:
    name = plain(program.argv[0])
    if error.filename == program.directory and error.filename != program.argv[0]:
        return f"the directory {plain(program.directory)} cannot be used: {of_error(error)}"
    if error.errno == errno.ENOENT:
        return f"there is no program {name}"
    return f"{name} cannot be run: {of_error(error)}"


def _ended(process: subprocess.Popen[bytes], until: float, stop: threading.Event) -> bool:
    """Whether it ended by itself. Nothing portable waits for a child and for an event, so this looks at both."""
    pauses = backoff.pauses(_FIRST_LOOK, _LONGEST_LOOK)
    while process.poll() is None:
        left = until - time.monotonic()
        if left <= 0 or stop.wait(min(next(pauses), left)):
            return False
    return True


def _end(family: Family, grace: float) -> bool:
    """Ask all of them to end; whether some had to be killed."""
    if not family.alive:
        return False
    family.ask_to_end()
    until = time.monotonic() + grace
    looking = threading.Event()
    pauses = backoff.pauses(_FIRST_LOOK, _LONGEST_LOOK_AT_ALL)
    while family.alive:
        left = until - time.monotonic()
        if left <= 0:
            family.kill()
            return True
        looking.wait(min(next(pauses), left))
    return False


class _Tail:
    """The end of what a child prints, read all along so that it never waits for a reader."""

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
    # A child need not read what it is told.
    with contextlib.suppress(OSError):
        pipe.write(content)
    with contextlib.suppress(OSError):
        pipe.close()


def _aside(task: Callable[..., None], *arguments: object) -> threading.Thread:
    """Beside the waiting. It may outlast it: as long as something in the background holds the pipe."""
    thread = threading.Thread(target=task, args=arguments, name=f"child{task.__name__}", daemon=True)
    thread.start()
    return thread


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
    return any(expected <= _variables(member.pid) for member in _members(number))


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


def _variables(pid: int) -> frozenset[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return frozenset(file.read().split(b"\0"))
    except OSError:
        return frozenset()


LONGEST = 100


def plain(text: str) -> str:
    """Text from outside without what could end a variable, break a line or steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def first_words(text: str, most: int) -> str:
    """As many words as there is room for."""
    if len(text) <= most:
        return text
    cut = text[: most - 2]
    whole = cut.rpartition(" ")[0]
    return f"{whole if len(whole) > most // 2 else cut} …"


def last_words(text: str, most: int) -> str:
    """The last words: there a program says why it failed."""
    return first_words(text[::-1], most)[::-1]


def of_error(error: Exception) -> str:
    """What the system says when something does not work."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return plain(said)[:LONGEST].lower()
