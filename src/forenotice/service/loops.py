"""A thread that goes on: it does what is due, sleeps until more is or it is woken, and outlives what goes wrong."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import structlog

from forenotice.core import errors
from forenotice.failures import Failures
from forenotice.heartbeats import Heartbeats

log = structlog.get_logger()

LONGEST_SLEEP = timedelta(seconds=1)
"""Another process on the same database may have made something due."""

PAUSE_AFTER_ERROR = timedelta(seconds=1)


class Loop:
    def __init__(
        self,
        slug: str,
        look: Callable[[], timedelta],
        wake: threading.Event,
        heartbeats: Heartbeats,
        *,
        breath: timedelta = timedelta(0),
    ) -> None:
        """`look` does what is due and gives how long nothing is; between two looks it takes a `breath`."""
        self._slug = slug
        self._heartbeats = heartbeats
        self._look = look
        self._wake = wake
        self._breath = breath
        self._stopping = threading.Event()
        self._failures = Failures()
        self._thread = threading.Thread(target=self._run, name=slug, daemon=True)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._heartbeats.beat(self._slug)
        self._thread.start()

    def stop(self) -> None:
        """Return when its last look is over."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        self._heartbeats.end(self._slug)

    def _run(self) -> None:
        while True:
            # Cleared before the question, so that being stopped is never slept through.
            self._wake.clear()
            self._heartbeats.beat(self._slug)
            if self._stopping.wait(self._breath.total_seconds()):
                return
            self._wake.wait(self._guarded().total_seconds())

    def _guarded(self) -> timedelta:
        failures, slug = self._failures, self._slug
        try:
            pause = self._look()
        except (errors.UnavailableError, errors.UnsoundError) as error:
            if failures.again(str(error)):
                log.warning(
                    "The store is unavailable", action=f"{slug}.unavailable", error=str(error), times=failures.times
                )
            return PAUSE_AFTER_ERROR
        except Exception as error:
            if failures.again(repr(error)):
                log.exception("It went wrong, and is tried again", action=f"{slug}.failed", times=failures.times)
            return PAUSE_AFTER_ERROR
        if times := failures.over():
            log.info("It works again", action=f"{slug}.recovered", times=times)
        return pause


@contextmanager
def watching_for_deaths(end: Callable[[], None]) -> Iterator[list[str]]:
    """Logs a thread that dies and ends the service; gives the names of the dead."""
    dead: list[str] = []

    def died(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else "unknown"
        log.critical("A thread died", action="thread.died", thread=name, exc_info=args.exc_value)
        dead.append(name)
        end()

    before, threading.excepthook = threading.excepthook, died
    try:
        yield dead
    finally:
        threading.excepthook = before


def time_until(due: datetime | None, now: datetime) -> timedelta:
    """How long to sleep when something is due then."""
    return LONGEST_SLEEP if due is None else max(timedelta(0), min(due - now, LONGEST_SLEEP))
