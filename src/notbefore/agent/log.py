"""What the agent says while it runs: constant messages, variables as fields, always an `action`."""

import json
import sys
import threading
from typing import TextIO

from notbefore.clock import MachineClock
from notbefore.settings.values import LogFormat, LogLevel
from notbefore.wire import dates

ORDER = tuple(LogLevel)


class Log:
    """To standard error: for people on a terminal, otherwise one JSON object a line. Never raises."""

    def __init__(
        self, clock: MachineClock, level: LogLevel, log_format: LogFormat, stream: TextIO | None = None
    ) -> None:
        self._clock = clock
        self._stream = stream or sys.stderr
        self._least = ORDER.index(level)
        self._people = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and _is_terminal(self._stream))
        self._lock = threading.Lock()
        self._repeated: dict[str, tuple[str, int]] = {}

    def debug(self, message: str, *, action: str, **fields: object) -> None:
        self._write(LogLevel.DEBUG, message, action, fields)

    def info(self, message: str, *, action: str, **fields: object) -> None:
        self._write(LogLevel.INFO, message, action, fields)

    def warning(self, message: str, *, action: str, **fields: object) -> None:
        self._write(LogLevel.WARNING, message, action, fields)

    def error(self, message: str, *, action: str, **fields: object) -> None:
        self._write(LogLevel.ERROR, message, action, fields)

    def trouble(self, message: str, *, action: str, reason: str) -> None:
        """Something that may fail again and again: said when the reason changes, and when the count has doubled."""
        last, count = self._repeated.get(action, ("", 0))
        count = count + 1 if reason == last else 1
        self._repeated[action] = (reason, count)
        if count & (count - 1) == 0:
            self.warning(message, action=action, reason=reason, times=count)

    def over(self, message: str, *, action: str) -> None:
        """That trouble has ended; said once."""
        if self._repeated.pop(action, None):
            self.info(message, action=action)

    def _write(self, level: LogLevel, message: str, action: str, fields: dict[str, object]) -> None:
        if ORDER.index(level) < self._least:
            return
        moment = dates.iso(self._clock.now())
        if self._people:
            shown = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
            line = f"{moment} {level:<7} {message}  {shown}".rstrip()
        else:
            said = {"timestamp": moment, "level": level, "event": message, "action": action, **fields}
            line = json.dumps(said, default=str)
        try:
            with self._lock:
                self._stream.write(line + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            # Nobody listens any more; the agent goes on.
            pass


def _shown(value: object) -> str:
    """In quotes, so that nothing steers a terminal; the members of enumerations as what they stand for."""
    match value:
        case str():
            return repr(str(value))
        case tuple() | list():
            return repr(", ".join(map(str, value)))
    return repr(value)


def _is_terminal(stream: TextIO) -> bool:
    return not stream.closed and stream.isatty()
