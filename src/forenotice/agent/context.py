"""What the parts of one agent share; its log has constant messages, variables as fields, always an `action`."""

import json
import os
import queue
import sys
import threading
from dataclasses import dataclass, field
from functools import partialmethod
from typing import TextIO

from forenotice.agent.metrics import Metrics
from forenotice.clock import MachineClock
from forenotice.failures import Failures
from forenotice.runtime import Runtime
from forenotice.settings.values import LogFormat, LogLevel
from forenotice.wire import dates

ORDER = tuple(LogLevel)
WAITING = 1000
"""Lines that are not written yet; further ones are dropped."""


class Outlet:
    """Standard error for threads that must not block: a pipe that nobody reads blocks one thread of its own."""

    def __init__(self, stream: TextIO, runtime: Runtime, waiting: int = WAITING) -> None:
        self.closed = stream.closed
        self._terminal = _is_terminal(stream)
        self._descriptor = stream.fileno()
        self._monotonic = runtime.monotonic
        self._lines: queue.Queue[str] = queue.Queue(waiting)
        runtime.start_thread(self._run, "log")

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        """How much was accepted: all or nothing."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            return 0
        return len(text)

    def flush(self, seconds: float = 0.0) -> None:
        until = self._monotonic() + seconds
        with self._lines.all_tasks_done:
            while self._lines.unfinished_tasks and (left := until - self._monotonic()) > 0:
                self._lines.all_tasks_done.wait(left)

    def _run(self) -> None:
        while True:
            rest = self._lines.get().encode(errors="backslashreplace")
            try:
                # Not through the stream: a thread that blocks in it would keep the interpreter from ending.
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                pass  # The reader is gone; the agent goes on.
            self._lines.task_done()


class Log:
    """To standard error: for people on a terminal, otherwise one JSON object a line. Never raises."""

    def __init__(
        self, clock: MachineClock, level: LogLevel, log_format: LogFormat, stream: TextIO | Outlet | None = None
    ) -> None:
        self._clock = clock
        self._stream = stream or sys.stderr
        self._least = ORDER.index(level)
        self._people = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and _is_terminal(self._stream))
        self._lock = threading.Lock()
        self._dropped = 0
        self._failures: dict[tuple[str, str], Failures] = {}

    def write(self, level: LogLevel, message: str, *, action: str, **fields: object) -> None:
        if ORDER.index(level) < self._least:
            return
        try:
            with self._lock:
                if self._dropped:
                    fields = {**fields, "lost_lines": self._dropped}
                accepted = self._stream.write(self._line(level, message, action, fields) + "\n")
                self._dropped = 0 if accepted else self._dropped + 1
                self._stream.flush()
        except (OSError, ValueError):
            pass  # The reader is gone; the agent goes on.

    debug = partialmethod(write, LogLevel.DEBUG)
    info = partialmethod(write, LogLevel.INFO)
    warning = partialmethod(write, LogLevel.WARNING)
    error = partialmethod(write, LogLevel.ERROR)

    def trouble(self, message: str, *, action: str, reason: str, of: str = "", **fields: object) -> None:
        """A failure that may repeat: logged when the reason changes, and when the count has doubled.

        `of` is whose failure it is, where those are counted apart.
        """
        failures = self._failures.setdefault((action, of), Failures(ignore_numbers=False))
        if failures.again(reason):
            self.warning(message, action=action, **fields, reason=reason, times=failures.times)

    def over(self, message: str, *, action: str, of: str = "", **fields: object) -> None:
        if self._failures.pop((action, of), None):
            self.info(message, action=action, **fields)

    def _line(self, level: LogLevel, message: str, action: str, fields: dict[str, object]) -> str:
        moment = dates.iso(self._clock.now())
        if self._people:
            shown = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
            return f"{moment} {level:<7} {message}  {shown}".rstrip()
        line = {"timestamp": moment, "level": level, "event": message, "action": action, **fields}
        return json.dumps(line, default=str)


def _shown(value: object) -> str:
    match value:
        case str():
            return repr(str(value))
        case tuple() | list():
            return repr(", ".join(map(str, value)))
    return repr(value)


def _is_terminal(stream: TextIO | Outlet) -> bool:
    return not stream.closed and stream.isatty()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    log: Log
    metrics: Metrics
    runtime: Runtime
    clock: MachineClock = field(default_factory=MachineClock)
    observe: bool = False
    """Handlers tell what they would do; nothing is run, approved or written to the journal."""
    boot: str = ""
    """Of this machine; empty if unknown."""
