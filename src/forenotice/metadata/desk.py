"""What all connections share, and the answer to a plain poll: no await, no lock, no database."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from forenotice.clock import Clock
from forenotice.core.timing import Timing
from forenotice.metadata.answers import Answer, Letterhead
from forenotice.metadata.board import Board, Guest, Notice
from forenotice.metadata.bridge import Bridge
from forenotice.metadata.counters import Counters
from forenotice.metadata.gates import Poll
from forenotice.metadata.hearing import Hearing
from forenotice.metadata.identity import Callers
from forenotice.metadata.options import Options
from forenotice.metadata.requests import Request
from forenotice.metadata.room import Room
from forenotice.metadata.turns import Turns
from forenotice.rate import Rate
from forenotice.wire import document

if TYPE_CHECKING:
    from forenotice.metadata.protocol import Connection, Interceptor

REMEMBERED = 1024
REMEMBERED_BYTES = 2048


class Desk:
    def __init__(
        self,
        *,
        board: Board,
        bridge: Bridge,
        clock: Clock,
        timing: Timing,
        options: Options,
        loop: asyncio.AbstractEventLoop,
        quick: bool = True,
        intercept: "Callable[[Connection], Interceptor] | None" = None,
    ) -> None:
        self.board = board
        self.bridge = bridge
        self.clock = clock
        self.options = options
        self.limits = options.limits
        self.loop = loop
        self.intercept = intercept
        self.quick = quick
        """Whether plain polls are answered without a look at each; otherwise each goes through `Connection.serve`."""
        self.callers = Callers(board, options, clock)
        self.hearing = Hearing(board, bridge, clock, timing, options)
        self.letterhead = Letterhead(clock.now())
        self.polls = Rate(options.rate, options.burst)
        self.approvals = Rate(options.rate, options.burst)
        self.counters = Counters()
        self.room = Room(options.limits, self.counters)
        self.turns = Turns(loop)
        self.stopping = False
        self._remembered: dict[bytes, Request] = {}

    def refresh(self) -> None:
        """Once a second, and after the clock has jumped."""
        self.letterhead.renew(self.clock.now())
        self.hearing.refresh()
        self.hearing.flush_if_due()

    def poll(self, request: Request, guest: Guest) -> bytes | None:
        """The whole answer to a quick request; None when it must take the long way."""
        poll = request.quick
        notice = guest.notice
        hearing = self.hearing
        if poll is None or notice is None or notice.heard < hearing.silent_before:
            return None
        full_at = self.polls.take(guest.polls_full_at, monotonic())
        if full_at < 0:
            return None
        guest.polls_full_at = full_at
        notice.heard = guest.polled = hearing.now
        if poll.condition is not None and self.is_unchanged(poll.condition, notice):
            self.counters.polls_3xx += 1
            return self.letterhead.unchanged[request.persistence] + notice.answer_unchanged()
        self.counters.polls_2xx += 1
        ready = notice.ready.get(poll.version.name)
        return self.letterhead.ok[request.persistence] + (ready or notice.answer(poll.version))

    def show(self, poll: Poll, notice: Notice) -> Answer:
        if poll.condition is not None and self.is_unchanged(poll.condition, notice):
            return Answer(304, notice.answer_unchanged())
        return Answer(200, notice.answer(poll.version))

    def is_unchanged(self, condition: str, notice: Notice) -> bool:
        return condition == notice.etag or document.matches(condition, notice.etag)

    def recall(self, data: bytes) -> Request | None:
        """The one whole request that these very bytes were, when they came between requests before.

        What bytes mean there depends on nothing else, so httptools need not read them again.
        """
        return self._remembered.get(data)

    def remember(self, data: bytes, request: Request) -> None:
        if len(data) <= REMEMBERED_BYTES:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            self._remembered[data] = request
