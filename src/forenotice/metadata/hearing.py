"""Which scopes have been heard and when: at once for one that was silent, else now and then."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from forenotice.clock import Clock
from forenotice.core.fleet import Listening
from forenotice.core.timing import Timing
from forenotice.metadata.board import Board, Notice
from forenotice.metadata.bridge import Bridge
from forenotice.metadata.options import Options

FLUSH = timedelta(seconds=60)
FLUSH_MIN = timedelta(seconds=1)
MARGIN = timedelta(seconds=2)
RETRY = 1.0
"""Seconds until the next try after a failure; twice as many after each further one."""


class Hearing:
    """Seconds since the epoch are kept, not datetimes: every poll compares and sets them."""

    def __init__(self, board: Board, bridge: Bridge, clock: Clock, timing: Timing, options: Options) -> None:
        self._board = board
        self._bridge = bridge
        self._clock = clock
        self._timing = timing
        self._delay = options.first_answer_delay
        self._patience = options.limits.patience_seconds
        self._opening: dict[Notice, list[Callable[[], None]]] = {}
        self._flush_after = max(timing.shortened(FLUSH), FLUSH_MIN).total_seconds()
        self._retry_after = RETRY
        self.refresh()
        self._flush_at = self.now + self._flush_after

    def refresh(self) -> None:
        """Once a second."""
        now = self._clock.now()
        self.now = now.timestamp()
        # Looked at once a second, so early by a margin: a scope about to fall silent is opened as if it had.
        self.silent_before = (now - self._timing.silence + min(MARGIN, self._timing.silence / 10)).timestamp()
        """A scope last heard before this does not listen."""

    def flush_if_due(self) -> None:
        if self.now >= self._flush_at:
            self.flush()

    def flush(self) -> None:
        """Make what was heard since the last time durable."""
        self._flush_at = self.now + self._flush_after
        unsaved = [(notice, notice.heard) for notice in self._board.notices.values() if notice.heard > notice.saved]

        def kept(succeeded: bool) -> None:
            if succeeded:
                self._retry_after = RETRY
                for notice, heard in unsaved:
                    notice.saved = max(notice.saved, heard)
            else:
                self._retry_soon()

        if unsaved:
            self._bridge.hear({notice.scope.key: _moment(heard) for notice, heard in unsaved}, kept)

    def listens(self, notice: Notice) -> bool:
        return notice.heard >= self.silent_before

    def is_first(self, notice: Notice) -> bool:
        """Whether a GET now would start the scope's listening."""
        return not self.listens(notice) and notice.scope.policy.listening is Listening.AUTO

    def hear(self, notice: Notice) -> None:
        """A guest of a listening scope has asked."""
        notice.heard = max(notice.heard, self.now)

    def open(self, notice: Notice, opened: Callable[[], None]) -> None:
        """A first GET: call back once the service knows that the scope listens, or cannot be told."""
        waiting = self._opening.setdefault(notice, [])
        waiting.append(opened)
        if len(waiting) > 1:
            return
        moment = self._clock.now()
        loop = asyncio.get_running_loop()

        def release() -> None:
            for call in self._opening.pop(notice, ()):
                if self._delay:
                    loop.call_later(self._delay, call)
                else:
                    call()

        def kept(succeeded: bool) -> None:
            patience.cancel()
            notice.heard = max(notice.heard, moment.timestamp())
            if succeeded:
                notice.saved = max(notice.saved, moment.timestamp())
            else:
                self._retry_soon()
            release()

        def give_up() -> None:
            # Answered from memory from now on; the flush goes on trying.
            self.hear(notice)
            release()

        patience = loop.call_later(self._patience, give_up)
        self._bridge.hear({notice.scope.key: moment}, kept)

    def _retry_soon(self) -> None:
        self._flush_at = min(self._flush_at, self.now + self._retry_after)
        self._retry_after = min(2 * self._retry_after, self._flush_after)


def _moment(unix: float) -> datetime:
    return datetime.fromtimestamp(unix, UTC)
