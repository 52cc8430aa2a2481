"""The queue for the one writer, guests first, and the time limit of a transaction."""

import heapq
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from forenotice.core import errors, roles

PATIENCE_SECONDS = 30.0
"""How long a writer waits for those before it."""

LOOK_SECONDS = 0.1
"""How often a waiting writer checks that its client is still connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    first: bool = False
    """Goes before all others in the queue."""
    seconds: float = roles.WRITE_SECONDS
    """From the start of the transaction to its commit, retries included."""
    is_connected: Callable[[], bool] = lambda: True
    """Whether the client is still connected."""


OWN = WriteRequest()
"""For the service's own transactions."""
GUESTS = WriteRequest(first=True)


class WriterQueue:
    """The one lock of writers in this process. Each hands its turn to the next, so that nobody jumps the queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        """The thread whose turn it is; 0 between two turns."""
        self._waiting: list[tuple[bool, int, threading.Event]] = []
        self._numbers = itertools.count()

    @contextmanager
    def turn(self, request: WriteRequest = OWN) -> Iterator[None]:
        """A thread whose turn it is keeps it: what is published after a commit belongs to the same turn."""
        me = threading.get_ident()
        if self._holder == me:
            yield
            return
        self._wait(request)
        self._holder = me
        try:
            yield
        finally:
            self._pass_on()

    def _wait(self, request: WriteRequest) -> None:
        with self._lock:
            if self._holder is None:
                self._holder = 0
                return
            mine = (not request.first, next(self._numbers), threading.Event())
            heapq.heappush(self._waiting, mine)
        end = monotonic() + PATIENCE_SECONDS
        while not mine[-1].wait(LOOK_SECONDS):
            if not request.is_connected():
                self._leave(mine)
                raise errors.GoneError
            if monotonic() > end:
                self._leave(mine)
                raise errors.UnavailableError("another command has been writing for too long; try again")

    def _leave(self, mine: tuple[bool, int, threading.Event]) -> None:
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
                heapq.heapify(self._waiting)
                return
        # The turn came just now.
        self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            self._holder = 0 if self._waiting else None
            if self._waiting:
                heapq.heappop(self._waiting)[-1].set()


class TimeLimit:
    """The time limit of a transaction, checked at every statement and before the commit."""

    def __init__(self, request: WriteRequest, monotonic: Callable[[], float] = monotonic) -> None:
        self._request = request
        self._monotonic = monotonic
        self._end: float | None = None

    def start(self) -> None:
        """The transaction has begun; a retry does not start the time again."""
        if self._end is None:
            self._end = self._monotonic() + self._request.seconds

    def check(self) -> None:
        if not self._request.is_connected():
            raise errors.GoneError
        if self._end is not None and self._monotonic() > self._end:
            raise errors.OverdueError(
                f"this kept everybody else from writing for more than {self._request.seconds:g} seconds and was rolled "
                "back: ask for less at once, or try again when less is going on"
            )
