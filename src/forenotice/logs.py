"""Where logs go and what they look like: constant messages, variables as fields, always an `action`."""

import logging
import sys
from collections.abc import Callable
from typing import Any

from forenotice.settings.values import LogFormat, LogLevel


def _nothing() -> None:
    pass


class Log:
    """Of what starts quickly: structlog is loaded when there is something to say, since it is as large as all the rest.

    Where no descriptor is left it cannot be loaded; who must not miss a line then has configured it before."""

    def __init__(self) -> None:
        self.setup: Callable[[], None] = _nothing
        """Called before the first line, where nothing was configured at the start."""

    def __getattr__(self, level: str) -> Any:
        try:
            import structlog
        except OSError:
            return lambda *_, **__: None
        setup, self.setup = self.setup, _nothing
        setup()
        return getattr(structlog.get_logger(), level)


log = Log()


def configure(level: LogLevel, log_format: LogFormat) -> None:
    """To standard error: for people on a terminal, otherwise one JSON object a line."""
    import structlog

    people = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and sys.stderr.isatty())
    # Tracebacks without local variables, which may hold a token.
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if people
        else structlog.processors.JSONRenderer()
    )
    tracebacks: list[structlog.typing.Processor] = [] if people else [structlog.processors.format_exc_info]
    logging.lastResort = _Forwarding(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tracebacks,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


class _Forwarding(logging.Handler):
    """What libraries log comes out in the same form as what we do."""

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        log.log(record.levelno, "A library has something to say", action="library", said=said, exc_info=record.exc_info)
