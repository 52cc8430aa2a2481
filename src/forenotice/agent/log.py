"""What the agent says while it runs: constant messages, variables as fields, always an `action`."""

import json
import os
import queue
import sys
import threading
import time
from typing import TextIO

from forenotice.clock import MachineClock
from forenotice.settings.values import LogFormat, LogLevel
from forenotice.wire import dates

ORDER = tuple(LogLevel)
WAITING = 1000
"""Lines that nobody has taken yet; what comes then is lost."""


class Outlet:
    """Standard error for those who must not wait: a pipe that nobody reads stops a thread of its own, and no other."""

    def __init__(self, stream: TextIO, waiting: int = WAITING) -> None:
        self.closed = stream.closed
        self._terminal = _is_terminal(stream)
        self._descriptor = stream.fileno()
        self._lines: queue.Queue[str] = queue.Queue(waiting)
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        """How much of it was taken: all or nothing."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            return 0
        return len(text)

    def flush(self, patience: float = 0.0) -> None:
        """Waits so many seconds for what was taken to be written."""
        until = time.monotonic() + patience
        with self._lines.all_tasks_done:
            while self._lines.unfinished_tasks and (left := until - time.monotonic()) > 0:
                self._lines.all_tasks_done.wait(left)

    def _run(self) -> None:
        while True:
            rest = self._lines.get().encode(errors="backslashreplace")
            try:
                # Not through the stream: whoever waits in there keeps the interpreter from ending.
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                # Nobody listens any more; the agent goes on.
                pass
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
        self._lost = 0
        self._repeated: dict[tuple[str, str], tuple[str, int]] = {}

    def debug(self, message: str, *, action: str, **fields: object) -> None:
        self._write(LogLevel.DEBUG, message, action, fields)

    def info(self, message: str, *, action: str, **fields: object) -> None:
        self._write(LogLevel.INFO, message, action, fields)

    def warning(self, message: str, *, action: str, **fields: object) -> None:
        self._write(LogLevel.WARNING, message, action, fields)

    def error(self, message: str, *, action: str, **fields: object) -> None:
        self._write(LogLevel.ERROR, message, action, fields)

    def trouble(self, message: str, *, action: str, reason: str, of: str = "", **fields: object) -> None:
        """Something that may fail again and again: said when the reason changes, and when the count has doubled.

        `of` is whose trouble it is, where that is counted apart.
        """
        last, count = self._repeated.get((action, of), ("", 0))
        count = count + 1 if reason == last else 1
        self._repeated[action, of] = (reason, count)
        if count & (count - 1) == 0:
            self.warning(message, action=action, **fields, reason=reason, times=count)

    def over(self, message: str, *, action: str, of: str = "", **fields: object) -> None:
        """That trouble has ended; said once."""
        if self._repeated.pop((action, of), None):
            self.info(message, action=action, **fields)

    def _write(self, level: LogLevel, message: str, action: str, fields: dict[str, object]) -> None:
        if ORDER.index(level) < self._least:
            return
        try:
            with self._lock:
                if self._lost:
                    fields = {**fields, "lost_lines": self._lost}
                taken = self._stream.write(self._line(level, message, action, fields) + "\n")
                self._lost = 0 if taken else self._lost + 1
                self._stream.flush()
        except (OSError, ValueError):
            # Nobody listens any more; the agent goes on.
            pass

    def _line(self, level: LogLevel, message: str, action: str, fields: dict[str, object]) -> str:
        moment = dates.iso(self._clock.now())
        if self._people:
            shown = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
            return f"{moment} {level:<7} {message}  {shown}".rstrip()
        said = {"timestamp": moment, "level": level, "event": message, "action": action, **fields}
        return json.dumps(said, default=str)


def _shown(value: object) -> str:
    """In quotes, so that nothing steers a terminal; the members of enumerations as what they stand for."""
    match value:
        case str():
            return repr(str(value))
        case tuple() | list():
            return repr(", ".join(map(str, value)))
    return repr(value)


def _is_terminal(stream: TextIO | Outlet) -> bool:
    return not stream.closed and stream.isatty()
