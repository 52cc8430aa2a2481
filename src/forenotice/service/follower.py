"""Following the store: what other processes change is published here too."""

import threading
from datetime import datetime

import structlog

from forenotice.core import errors
from forenotice.failures import Failures
from forenotice.runtime import Started
from forenotice.service import housekeeping
from forenotice.service.service import Service

log = structlog.get_logger()

PAGE = 1000
RELOAD = -1
NAME = "follow"
PAUSE_AFTER_ERROR = 1.0


class Follower:
    """Reads the journal whenever the store says that it has grown. On SQLite nothing ever says so: we are alone."""

    def __init__(self, service: Service, position: int) -> None:
        self._service = service
        self._position = position
        self._at: datetime | None = None
        """The moment of the entry there, if known."""
        self._stopping = threading.Event()
        self._failures = Failures()
        self._fell = False
        """Whether the database has less than it had, and no epoch was begun since."""
        self._thread: Started | None = None

    def start(self) -> None:
        self._service.liveness.beat(NAME)
        self._thread = self._service.runtime.start_thread(self._run, "follower")

    def stop(self) -> None:
        self._stopping.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                for number, position in enumerate(self._service.store.changes(self._stopping)):
                    self._service.liveness.beat(NAME)
                    if number == 0:
                        # The first is where the journal ends.
                        self._compare(position, min(position, self._position))
                    self._catch_up(position)
                    self._failures.over()
                self._service.liveness.end(NAME)
                return
            except (errors.UnavailableError, errors.UnsoundError) as error:
                if self._failures.again(str(error)):
                    log.warning("Cannot follow the store", action="follow.unavailable", error=str(error))
            except Exception as error:
                if self._failures.again(repr(error)):
                    log.exception("Following the store failed", action="follow.failed")
            self._stopping.wait(PAUSE_AFTER_ERROR)

    def _catch_up(self, position: int) -> None:
        if position == RELOAD:
            newest = self._service.refresh()
            self._compare(newest, newest)
        if self._fell:
            # A backup was restored under us, or a standby took over that lacks what guests have seen.
            epoch = housekeeping.begin_epoch(self._service)
            self._fell = False
            log.warning("The database lost entries: an epoch begins", action="store.restored", epoch=epoch)
        while position > self._position:
            with self._service.store.read() as reader:
                page = reader.journal.page(after=self._position, limit=PAGE)
            if not page:
                return
            scopes = {entry.scope for _, entry in page if entry.scope is not None}
            if scopes:
                self._service.refresh(tuple(scopes))
            self._position, self._at = page[-1][0], page[-1][1].at
            self._service.nudge.set()
            self._service.tell_growth()

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
