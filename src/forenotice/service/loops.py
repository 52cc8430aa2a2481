"""Threads of the service: a loop that repeats one step, and the loop that follows what other processes write."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import structlog

from forenotice.core import errors
from forenotice.failures import Failures, Liveness
from forenotice.runtime import Runtime, Started
from forenotice.service import housekeeping
from forenotice.service.service import Service

log = structlog.get_logger()

LONGEST_SLEEP = timedelta(seconds=1)
"""Another process on the same database may have made something due."""

PAUSE_AFTER_ERROR = timedelta(seconds=1)

PAGE = 1000
"""Entries that are read at once."""

RELOAD = -1


class Loop:
    """A thread that sleeps until something is due or it is woken, and survives every error."""

    def __init__(
        self,
        slug: str,
        step: Callable[[], timedelta | None],
        wake: threading.Event,
        liveness: Liveness,
        runtime: Runtime,
        *,
        pause: timedelta = timedelta(0),
    ) -> None:
        """`step` does what is due and returns for how long nothing is; None: never again. Steps are a `pause` apart."""
        self._slug = slug
        self._liveness = liveness
        self._runtime = runtime
        self._step = step
        self._wake = wake
        self._pause = pause
        self.stopping = threading.Event()
        self._failures = Failures()
        self._thread: Started | None = None

    def start(self) -> None:
        self._liveness.beat(self._slug)
        self._thread = self._runtime.start_thread(self._run, self._slug)

    def stop(self) -> None:
        """Returns when the last step is over."""
        self.stopping.set()
        self._wake.set()
        if self._thread:
            self._thread.join()
        self._liveness.end(self._slug)

    def _run(self) -> None:
        while True:
            # Cleared before the check, so that a stop is never slept through.
            self._wake.clear()
            self._liveness.beat(self._slug)
            if self.stopping.wait(self._pause.total_seconds()):
                return
            sleep = self._guarded_step()
            if sleep is None:
                self._liveness.end(self._slug)
                return
            self._wake.wait(sleep.total_seconds())

    def _guarded_step(self) -> timedelta | None:
        failures, slug = self._failures, self._slug
        try:
            sleep = self._step()
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
        return sleep


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


class Follower:
    """Publishes what other processes change: reads the journal whenever the store says that it has grown.

    On SQLite nothing ever says so, because no other process serves.
    """

    def __init__(self, service: Service, position: int) -> None:
        self._service = service
        self._position = position
        self._at: datetime | None = None
        """The moment of the entry there, if known."""
        self._fell = False
        """Whether the database has less than it had, and no epoch was begun since."""
        self._changes: Iterator[int] | None = None
        self._loop = Loop("follow", self._step, threading.Event(), service.liveness, service.runtime)
        self.start = self._loop.start

    def stop(self) -> None:
        self._loop.stop()
        # Where it was about to look again; this ends its connection.
        self._changes = None

    def _step(self) -> timedelta | None:
        # After an error it listens anew.
        changes, self._changes = self._changes, None
        found = next(known := changes or self._service.store.changes(self._loop.stopping), None)
        if found is None:
            return None
        if changes is None:
            # The first is where the journal ends.
            self._compare(found, min(found, self._position))
        self._catch_up(found)
        self._changes = known
        return timedelta(0)

    def _catch_up(self, position: int) -> None:
        if position == RELOAD:
            newest = self._service.refresh()
            self._compare(newest, newest)
        if self._fell:
            # A backup was restored under us, or a standby took over that lacks what guests have seen.
            epoch = housekeeping.begin_epoch(self._service)
            self._fell = False
            log.warning("The database lost entries: an epoch begins", action="store.restored", epoch=epoch)
        if position > self._position:
            # First: those who read the journal themselves need not wait for documents.
            self._service.tell_growth()
        while position > self._position:
            with self._service.store.read() as reader:
                page = reader.journal.page(after=self._position, limit=PAGE)
            if not page:
                return
            self._service.edges.follow(entry for _, entry in page)
            scopes = {entry.scope for _, entry in page if entry.scope is not None}
            if any(entry.action == "database.restored" for _, entry in page):
                # Every document is another, and we may not have listened when we were told to reload.
                self._service.refresh()
            elif scopes:
                self._service.refresh(tuple(scopes))
            self._position, self._at = page[-1][0], page[-1][1].at
            self._service.nudge.set()

    def _compare(self, newest: int, position: int) -> None:
        """Notice that the database lost what we had read, even if it has as many entries since; go on from there."""
        found = self._moment(self._position)
        self._fell |= newest < self._position or (self._at is not None and found not in (None, self._at))
        self._position, self._at = position, self._moment(position)

    def _moment(self, position: int) -> datetime | None:
        """Of the entry there; None: it was pruned."""
        with self._service.store.read() as reader:
            page = reader.journal.page(after=position - 1, limit=1)
        return page[0][1].at if page and page[0][0] == position else None
