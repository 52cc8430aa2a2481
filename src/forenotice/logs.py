"""Logging: constant messages, variables as fields, always an `action`."""

import atexit
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forenotice.settings.values import LogFormat, LogLevel

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

LONGEST_QUEUE = 2000
"""Lines that wait to be written; what is logged beyond them is dropped."""

FLUSH_SECONDS = 1.0
"""How long the end of the process waits for them."""


def _nothing() -> None:
    pass


def _configure_unless_done() -> None:
    """To standard error: structlog's default, standard output, is for the output of commands."""
    import structlog

    if not structlog.is_configured():
        configure(LogLevel.WARNING, LogFormat.AUTO)


class Log:
    """Loads structlog with the first line, since it is as large as all the rest of a short command.

    Without a free descriptor it cannot be loaded: a service configures logging at its start."""

    def __init__(self) -> None:
        self.setup: Callable[[], None] = _configure_unless_done
        """Called before the first line, where nothing was configured at the start."""

    def __getattr__(self, level: str) -> Any:
        try:
            import structlog
        except ImportError:
            # A test's environment may lack it.
            return lambda message, **fields: getattr(logging.getLogger("forenotice"), level)("%s %s", message, fields)
        except OSError:
            return lambda *_, **__: None
        setup, self.setup = self.setup, _nothing
        setup()
        return getattr(structlog.get_logger(), level)


log = Log()


class Writer:
    """Writes lines in its own thread, so that logging neither blocks on a full pipe nor fails on a full disk.

    Counts the lines that it drops, and logs their number when it can write again."""

    def __init__(self) -> None:
        self.descriptor: int | None = None
        self.dropped = 0
        self._told = 0
        self._torn = False
        self._lines: deque[str] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def msg(self, line: str) -> None:
        with self._changed:
            if len(self._lines) >= LONGEST_QUEUE:
                self.dropped += 1
                return
            self._lines.append(line)
            self._changed.notify_all()
            if self._thread is None:
                started = threading.Thread(target=self._run, name="log", daemon=True)
                try:
                    started.start()
                except RuntimeError:
                    # No more threads now; the next line tries again.
                    return
                self._thread = started

    # By these names structlog calls it.
    debug = info = warning = error = critical = msg

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, FLUSH_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line = self._lines[0]
            written = self._write(line)
            with self._changed:
                self._lines.popleft()
                self.dropped += not written
                untold = self.dropped - self._told if written else 0
                self._told += untold
                self._changed.notify_all()
            if untold:
                log.warning("Lines of this log were dropped", action="log.dropped", lines=untold)

    def _write(self, line: str) -> bool:
        if self.descriptor is None:
            return False
        left = ("\n" * self._torn + line + "\n").encode(errors="backslashreplace")
        try:
            while left:
                left = left[os.write(self.descriptor, left) :]
                self._torn = True
        except OSError:
            return False
        self._torn = False
        return True


writer = Writer()


def configure(level: LogLevel, log_format: LogFormat) -> None:
    """To standard error: for people on a terminal, otherwise one JSON object a line."""
    import structlog

    writer.descriptor = _descriptor()
    atexit.register(writer.flush)
    terminal = sys.stderr is not None and sys.stderr.isatty()
    people = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and terminal)
    # Tracebacks without local variables, which may hold a token.
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=structlog.dev.plain_traceback)
        if people
        else structlog.processors.JSONRenderer()
    )
    tracebacks: list[Processor] = [] if people else [structlog.processors.format_exc_info]
    logging.lastResort = _Forwarding(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tracebacks,
            _in_any_case(renderer),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: writer,
        cache_logger_on_first_use=False,
    )


def _descriptor() -> int | None:
    """Of standard error; None if it is closed, because its number may now belong to one of our files."""
    try:
        return sys.stderr.fileno() if sys.stderr else None
    except OSError:
        return None


def _in_any_case(renderer: "Processor") -> "Processor":
    """If a field cannot be rendered, log without the fields rather than raise."""

    def render(logger: "WrappedLogger", name: str, event: "EventDict") -> Any:
        facts = dict(event)
        try:
            return renderer(logger, name, event)
        except Exception as error:
            known = {key: facts.get(key) for key in ("event", "action", "level", "timestamp")}
            return renderer(logger, name, {**known, "unshown": type(error).__name__})

    return render


class _Forwarding(logging.Handler):
    """Writes what libraries log in the same form as our own lines."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:
            message = str(record.msg)
        log.log(record.levelno, "A library logged", action="library", said=message, exc_info=record.exc_info)
