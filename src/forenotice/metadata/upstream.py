"""The way from the endpoint to the service: approvals, and which scopes listen."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from forenotice.clock import Clock
from forenotice.core import errors, fleet
from forenotice.core.lifecycle import StartRequests
from forenotice.core.timing import Timing
from forenotice.failures import Failures, Liveness
from forenotice.logs import log
from forenotice.metadata.options import Limits, Options
from forenotice.metadata.published import PublishedFleet, PublishedScope
from forenotice.runtime import start_thread

Outcome = errors.ForenoticeError | None
"""Of an approval; None: it was accepted."""

NAME = "guests"
TURN_SECONDS = 1.0
"""How often the thread beats while nothing is pending."""
FLUSH = timedelta(seconds=60)
FLUSH_MIN = timedelta(seconds=1)
MARGIN = timedelta(seconds=2)
RETRY = 1.0
"""Seconds until the next try after a failure; twice as many after each further one."""


class Upstream(Protocol):
    """Used on the loop, which also runs the callbacks."""

    quiet: timedelta
    """The last poll of a scope is told when it has not polled for this long,"""
    interval: timedelta
    """or when so much time has passed since the poll that was told before."""

    def start(self) -> None: ...

    def approve(self, approval: StartRequests, done: Callable[[Outcome], None]) -> bool:
        """False: too many are pending, or it is too late; nothing will be done."""

    def heard(self, heard: Mapping[str, datetime], done: Callable[[bool], None]) -> None:
        """When guests of scopes polled, by key; calls back whether that is durable."""

    async def close(self, seconds: float) -> bool:
        """Finish what is pending; False when that takes too long."""


class GuestService(Protocol):
    """The service's functions for guests. Blocking; called from the upstream thread only."""

    def approve(self, approvals: Sequence[StartRequests]) -> list[Outcome]:
        """Durable when it returns, one outcome for each."""

    def heard(self, heard: Mapping[str, datetime]) -> None:
        """When guests of scopes polled, by key; durable when it returns."""


@dataclass(slots=True, eq=False, repr=False)
class _Pending:
    """An approval that waits for its one outcome. Used on the loop only."""

    approval: StartRequests
    _done: Callable[[Outcome], None] | None
    deadline: asyncio.TimerHandle | None = None

    def decide(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        if self.deadline is not None:
            self.deadline.cancel()
        if done is not None:
            done(outcome)


class ServiceUpstream:
    """A thread that sends the service everything pending at once. Callbacks run on the loop, in the order of calls."""

    quiet = interval = timedelta(0)

    def __init__(
        self,
        guests: GuestService,
        limits: Limits,
        liveness: Liveness | None = None,
        start_thread: Callable[[Callable[[], None], str], object] = start_thread,
    ) -> None:
        self._guests = guests
        self._liveness = liveness or Liveness()
        self._loop = asyncio.get_running_loop()
        self._start_thread = start_thread
        self._capacity = limits.approvals
        self._patience = limits.patience_seconds
        self._pending = threading.Condition()
        self._approvals: dict[_Pending, None] = {}
        self._heard: dict[str, datetime] = {}
        self._heard_done: list[Callable[[bool], None]] = []
        self._closing = False
        self._failures = Failures()
        self._ended = asyncio.Event()

    def start(self) -> None:
        self._liveness.beat(NAME)
        self._start_thread(self._run, "forenotice-guests")

    def approve(self, approval: StartRequests, done: Callable[[Outcome], None]) -> bool:
        pending = _Pending(approval, done)
        with self._pending:
            if self._closing or len(self._approvals) >= self._capacity:
                return False
            self._approvals[pending] = None
            self._pending.notify()
        pending.deadline = self._loop.call_later(self._patience, self._give_up, pending)
        return True

    def heard(self, heard: Mapping[str, datetime], done: Callable[[bool], None]) -> None:
        with self._pending:
            self._heard.update(heard)
            self._heard_done.append(done)
            self._pending.notify()

    async def close(self, seconds: float) -> bool:
        with self._pending:
            self._closing = True
            self._pending.notify()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return self._ended.is_set()

    def _give_up(self, pending: _Pending) -> None:
        """The store hangs. It may still commit the approval later; approving twice is the same as once."""
        with self._pending:
            self._approvals.pop(pending, None)
        pending.decide(errors.UnavailableError())

    def _run(self) -> None:
        while self._send():
            pass
        self._liveness.end(NAME)
        self._post(self._ended.set)

    def _send(self) -> bool:
        with self._pending:
            while not (self._approvals or self._heard_done or self._closing):
                self._liveness.beat(NAME)
                self._pending.wait(TURN_SECONDS)
            self._liveness.beat(NAME)
            heard, heard_done = self._heard, self._heard_done
            approvals = tuple(self._approvals)
            self._heard, self._heard_done, self._approvals = {}, [], {}
        if heard_done:
            # First, because a scope polls before it approves.
            succeeded = not heard or self._try(lambda: self._guests.heard(heard))
            self._post(lambda: [done(succeeded) for done in heard_done])
        if approvals:
            outcomes: list[Outcome] = []

            def approve() -> None:
                outcomes.extend(self._guests.approve([pending.approval for pending in approvals]))
                if len(outcomes) != len(approvals):
                    raise RuntimeError(f"{len(approvals)} approvals got {len(outcomes)} outcomes")

            if not self._try(approve):
                outcomes[:] = [errors.UnavailableError()] * len(approvals)

            def decide() -> None:
                for pending, outcome in zip(approvals, outcomes, strict=True):
                    pending.decide(outcome)

            self._post(decide)
        return bool(heard_done or approvals)

    def _try(self, call: Callable[[], None]) -> bool:
        """Logs failures sparingly: while the store is away, every approval fails."""
        try:
            call()
        except Exception as error:
            if self._failures.again(str(error)):
                log.error(
                    "The service cannot store what guests sent",
                    action="guests.failing",
                    reason=str(error),
                    failures=self._failures.times,
                    exc_info=None if isinstance(error, errors.ForenoticeError) else error,
                )
            return False
        if times := self._failures.over():
            log.info("The service stores what guests send again", action="guests.recovered", failures=times)
        return True

    def _post(self, call: Callable[[], object]) -> None:
        # A closed loop has no requests to answer any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)


class ListeningTracker:
    """Which scopes listen: a scope's first poll is stored at once, further ones now and then.

    Seconds since the epoch are kept, not datetimes: every poll compares and sets them.
    """

    def __init__(
        self, published: PublishedFleet, upstream: Upstream, clock: Clock, timing: Timing, options: Options
    ) -> None:
        self._published = published
        self._upstream = upstream
        self._clock = clock
        self._delay = options.first_response_delay
        self._patience = options.limits.patience_seconds
        self._opening: dict[PublishedScope, list[Callable[[], None]]] = {}
        self._retry_after = RETRY
        self._untold_since: float | None = None
        self.keep_to(timing)

    def keep_to(self, timing: Timing) -> None:
        self._timing = timing
        self._flush_after = max(timing.shortened(FLUSH), FLUSH_MIN).total_seconds()
        self._quiet = timing.shortened(self._upstream.quiet).total_seconds()
        self._interval = timing.shortened(self._upstream.interval).total_seconds()
        self.refresh()
        self._flush_at = self.now + self._flush_after

    def refresh(self) -> None:
        """Once a second."""
        now = self._clock.now()
        self.now = now.timestamp()
        # Only once a second, so early by a margin: a scope about to fall silent is opened as if it had.
        self.silent_before = (now - self._timing.silence + min(MARGIN, self._timing.silence / 10)).timestamp()
        """A scope that last polled before this does not listen."""

    @property
    def is_mute(self) -> bool:
        """Whether who polled could not be told for so long that the service might take guests for silent."""
        return self._untold_since is not None and self.now - self._untold_since >= self._quiet

    def flush_if_due(self) -> None:
        if self.now >= self._flush_at:
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Make polls durable: those that are to be told, or for the last time all."""
        self._flush_at = self.now + self._flush_after
        unsaved = [
            (scope, scope.heard)
            for scope in self._published.scopes.values()
            if scope.heard > scope.saved
            and (last or self.now - scope.heard >= self._quiet or scope.heard - scope.saved >= self._interval)
        ]

        def stored(succeeded: bool) -> None:
            if succeeded:
                self._retry_after = RETRY
                self._untold_since = None
                for scope, heard in unsaved:
                    scope.saved = max(scope.saved, heard)
            else:
                self._retry_soon()

        if unsaved:
            self._upstream.heard({scope.key: datetime.fromtimestamp(at, UTC) for scope, at in unsaved}, stored)
        else:
            self._untold_since = None

    def is_listening(self, scope: PublishedScope) -> bool:
        return scope.heard >= self.silent_before

    def is_first(self, scope: PublishedScope) -> bool:
        """Whether a GET now would start the scope's listening."""
        return not self.is_listening(scope) and scope.listening is fleet.Listening.AUTO

    def note_poll(self, scope: PublishedScope) -> None:
        """A guest of a listening scope has polled."""
        scope.heard = max(scope.heard, self.now)

    def open(self, scope: PublishedScope, opened: Callable[[], None]) -> None:
        """A first GET: call back once the service knows that the scope listens, or cannot be told."""
        waiting = self._opening.setdefault(scope, [])
        waiting.append(opened)
        if len(waiting) > 1:
            return
        moment = self._clock.now()
        loop = asyncio.get_running_loop()

        def release() -> None:
            for call in self._opening.pop(scope, ()):
                if self._delay:
                    loop.call_later(self._delay, call)
                else:
                    call()

        def stored(succeeded: bool) -> None:
            patience.cancel()
            scope.heard = max(scope.heard, moment.timestamp())
            if succeeded:
                scope.saved = max(scope.saved, moment.timestamp())
            else:
                self._retry_soon()
            release()

        def give_up() -> None:
            # Polls are answered from memory from now on; the flush goes on trying.
            self.note_poll(scope)
            release()

        patience = loop.call_later(self._patience, give_up)
        self._upstream.heard({scope.key: moment}, stored)

    def _retry_soon(self) -> None:
        if self._untold_since is None:
            self._untold_since = self.now
        self._flush_at = min(self._flush_at, self.now + self._retry_after)
        self._retry_after = min(2 * self._retry_after, self._flush_after)
