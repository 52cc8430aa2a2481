"""A thread that repeats one step: it sleeps until something is due or it is woken, and survives every error."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import structlog

from forenotice.core import errors
from forenotice.failures import Failures
from forenotice.liveness import Liveness
from forenotice.runtime import Runtime, Started

log = structlog.get_logger()

LONGEST_SLEEP = timedelta(seconds=1)
"""Another process on the same database may have made something due."""

PAUSE_AFTER_ERROR = timedelta(seconds=1)


class Loop:
    def __init__(
        self,
        slug: str,
        step: Callable[[], timedelta],
        wake: threading.Event,
        liveness: Liveness,
        runtime: Runtime,
        *,
        pause: timedelta = timedelta(0),
    ) -> None:
        """`step` does what is due and returns for how long nothing is; between two steps there is a `pause`."""
        self._slug = slug
        self._liveness = liveness
        self._runtime = runtime
        self._step = step
        self._wake = wake
        self._pause = pause
        self._stopping = threading.Event()
        self._failures = Failures()
        self._thread: Started | None = None

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._liveness.beat(self._slug)
        self._thread = self._runtime.start_thread(self._run, self._slug)

    def stop(self) -> None:
        """Returns when the last step is over."""
        self._stopping.set()
        self._wake.set()
        if self._thread:
            self._thread.join()
        self._liveness.end(self._slug)

    def _run(self) -> None:
        while True:
            # Cleared before the check, so that a stop is never slept through.
            self._wake.clear()
            self._liveness.beat(self._slug)
            if self._stopping.wait(self._pause.total_seconds()):
                return
            self._wake.wait(self._guarded_step().total_seconds())

    def _guarded_step(self) -> timedelta:
        failures, slug = self._failures, self._slug
        try:
            pause = self._step()
        except (errors.UnavailableError, errors.UnsoundError) as error:
            if failures.again(str(error)):
                log.warning(
                    "The store is unavailable", action=f"{slug}.unavailable", error=str(error), times=failures.times
                )
            return PAUSE_AFTER_ERROR
        except Exception as error:
            if failures.again(repr(error)):
                log.exception("A step failed; it is retried", action=f"{slug}.failed", times=failures.times)
            return PAUSE_AFTER_ERROR
        if times := failures.over():
            log.info("It works again", action=f"{slug}.recovered", times=times)
        return pause


class Interval:
    """Something to do at regular intervals of the monotonic clock."""

    def __init__(self, interval: timedelta, action: Callable[[], None], monotonic: Callable[[], float]) -> None:
        self._interval = interval.total_seconds()
        self._action = action
        self._monotonic = monotonic
        self._next = 0.0

    def run_if_due(self, *, at_once: bool = False) -> None:
        if at_once or self._monotonic() >= self._next:
            self._action()
            self._next = self._monotonic() + self._interval


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
