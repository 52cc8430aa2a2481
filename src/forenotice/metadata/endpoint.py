"""What all connections share, and the response to a plain poll: no await, no lock, no database."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forenotice.clock import Clock
from forenotice.core.timing import Timing
from forenotice.limits import ConnectionLimit, Rate
from forenotice.logs import log
from forenotice.metadata.checks import Poll
from forenotice.metadata.identity import Callers
from forenotice.metadata.options import Limits, Options
from forenotice.metadata.published import Guest, PublishedFleet, PublishedScope
from forenotice.metadata.requests import Request
from forenotice.metadata.responses import Response, StatusLines
from forenotice.metadata.upstream import ListeningTracker, Upstream
from forenotice.wire import document

if TYPE_CHECKING:
    from forenotice.metadata.connection import Connection, Interceptor

REMEMBERED = 1024
REMEMBERED_BYTES = 2048
EVICTED_SHARE = 256
"""One in so many is closed at once, so that a flood does not cost a look at all connections for each of its own."""
TURN_SECONDS = 0.002
"""Time for the fair queue before the loop serves everybody else again."""


@dataclass(slots=True)
class Counters:
    """What has been counted since the start, for metrics."""

    polls_2xx: int = 0  # polls, and other GETs
    polls_3xx: int = 0
    polls_4xx: int = 0
    polls_5xx: int = 0
    approvals_2xx: int = 0
    approvals_4xx: int = 0
    approvals_5xx: int = 0
    waits: int = 0  # long polls begun
    waiting: int = 0  # long polls under way
    accepted: int = 0  # connections
    open: int = 0  # connections under way
    refused: int = 0  # connections beyond a limit
    evicted: int = 0  # connections closed for a limit
    cut: int = 0  # connections of clients that were too slow

    def count(self, method: str, status: int) -> None:
        name = f"{'approvals' if method == 'POST' else 'polls'}_{status // 100}xx"
        setattr(self, name, getattr(self, name) + 1)

    def by_kind(self) -> dict[str, int]:
        """As metrics name them."""
        return {
            "polls": self.polls_2xx + self.polls_3xx,
            "polls_unchanged": self.polls_3xx,
            "polls_refused": self.polls_4xx,
            "polls_failed": self.polls_5xx,
            "approvals": self.approvals_2xx,
            "approvals_refused": self.approvals_4xx,
            "approvals_failed": self.approvals_5xx,
            "long_polls": self.waits,
            "waiting": self.waiting,
            "connections": self.accepted,
            "connections_open": self.open,
            "connections_refused": self.refused,
            "connections_evicted": self.evicted,
            "connections_cut": self.cut,
        }


class GuestEndpoint:
    def __init__(
        self,
        *,
        published: PublishedFleet,
        upstream: Upstream,
        clock: Clock,
        timing: Timing,
        options: Options,
        loop: asyncio.AbstractEventLoop,
        monotonic: Callable[[], float] = time.monotonic,
        intercept: "Callable[[Connection], Interceptor] | None" = None,
    ) -> None:
        self.published = published
        self.upstream = upstream
        self.clock = clock
        self.options = options
        self.limits = options.limits
        self.loop = loop
        self.monotonic = monotonic
        self.intercept = intercept
        """An interceptor sees every request: then none is remembered."""
        self.callers = Callers(published, options, clock, monotonic)
        self.listening = ListeningTracker(published, upstream, clock, timing, options)
        self.headers = b""
        """Of every response, besides its own."""
        self.status_lines = StatusLines(clock.now())
        self.rate = Rate(options.rate, options.burst)
        self.counters = Counters()
        self.connections = GuestConnections(options.limits, self.counters)
        self.queue = FairQueue(loop, monotonic)
        self.stopping = False
        self._remembered: dict[bytes, Request] = {}

    def refresh(self) -> None:
        """Once a second, and after the clock has jumped."""
        self.status_lines.renew(self.clock.now(), self.headers)
        self.listening.refresh()
        self.listening.flush_if_due()

    def poll(self, request: Request, guest: Guest) -> bytes | None:
        """The whole response to a plain poll; None when it must take the long way."""
        poll = request.plain_poll
        scope = guest.scope
        listening = self.listening
        if poll is None or scope is None or scope.heard < listening.silent_before:
            return None
        full_at = self.rate.take(guest.polls_full_at, self.monotonic())
        if full_at < 0:
            return None
        guest.polls_full_at = full_at
        scope.heard = guest.polled = listening.now
        if poll.condition is not None and self.is_unchanged(poll.condition, scope):
            self.counters.polls_3xx += 1
            return self.status_lines.not_modified[request.persistence] + scope.not_modified()
        self.counters.polls_2xx += 1
        ready = scope.rendered.get(poll.version.name)
        return self.status_lines.ok[request.persistence] + (ready or scope.render(poll.version))

    def response(self, poll: Poll, scope: PublishedScope) -> Response:
        if poll.condition is not None and self.is_unchanged(poll.condition, scope):
            return Response(304, scope.not_modified())
        return Response(200, scope.render(poll.version))

    def is_unchanged(self, condition: str, scope: PublishedScope) -> bool:
        return condition == scope.etag or document.matches(condition, scope.etag)

    def take_token(self, request: Request, guest: Guest) -> bool:
        """Whether there was a token left in the guest's bucket."""
        bucket = _bucket(request)
        after = self.rate.take(getattr(guest, bucket), self.monotonic())
        if after >= 0:
            setattr(guest, bucket, after)
        return after >= 0

    def retry_after(self, request: Request, guest: Guest) -> int:
        return self.rate.retry_after(getattr(guest, _bucket(request)), self.monotonic())

    def recall(self, data: bytes) -> Request | None:
        """The one whole request that these very bytes were, when they came between requests before.

        What bytes mean there depends on nothing else, so httptools need not parse them again.
        """
        return self._remembered.get(data)

    def remember(self, data: bytes, request: Request) -> None:
        if len(data) <= REMEMBERED_BYTES:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            self._remembered[data] = request


class GuestConnections:
    """The connections of guests, within limits: altogether, and for each caller."""

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        self.open: ConnectionLimit[Connection] = ConnectionLimit()
        self.empty = asyncio.Event()
        """Set while there is no connection."""
        self.empty.set()
        self._crowding: set[str] = set()
        """Callers that have been refused for holding too many, until they hold far fewer."""
        self._full = False

    def admits(self, caller: str | None) -> bool:
        """Whether one more connection of this caller may stay; None: a caller that is not limited."""
        admitted = not self._is_crowding(caller) and self._has_room()
        self._counters.refused += not admitted
        return admitted

    def arrive(self, connection: "Connection") -> None:
        self.open.add(connection, connection.caller)
        self._counters.open += 1
        self.empty.clear()

    def leave(self, connection: "Connection") -> None:
        if self.open.remove(connection):
            self._counters.open -= 1
            if not self.open:
                self.empty.set()

    def sweep(self) -> None:
        for connection in self.open:
            connection.sweep()
        # Here, so that a caller that comes and goes is logged once in a while only.
        few = self._limits.connections_each // 2
        self._crowding = {caller for caller in self._crowding if self.open.held_by(caller) > few}
        if self._full and len(self.open) <= self._limits.connections // 2:
            self._full = False
            log.info("There is room for connections again", action="connections.free")

    def _is_crowding(self, caller: str | None) -> bool:
        limit = self._limits.connections_each
        if caller is None or self.open.held_by(caller) < limit:
            return False
        if caller not in self._crowding:
            self._crowding.add(caller)
            log.warning("A caller holds too many connections", action="caller.crowds", caller=caller, limit=limit)
        return True

    def _has_room(self) -> bool:
        """When all are used, closes those of the caller with the most: the longest spare first, long polls last."""
        limit = self._limits.connections
        if len(self.open) < limit:
            return True
        if not self._full:
            self._full = True
            log.warning("All connections are taken", action="connections.full", limit=limit)
        evicted = self.open.first_to_go(
            lambda each: (not each.is_long_poll, each.age) if each.is_spare() else None, max(1, limit // EVICTED_SHARE)
        )
        for connection in evicted:
            self.leave(connection)
            connection.evict()
        self._counters.evicted += len(evicted)
        return bool(evicted)


class FairQueue:
    """Connections of callers that have sent more than one request at once.

    Callers take turns, and so do the connections of one caller; a turn is one request. A caller that sends one
    request at a time is never in this queue: it is answered as soon as its bytes are read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._monotonic = monotonic
        self._queues: dict[object, deque[Connection]] = {}
        """By caller, the next one first."""
        self._read: set[object] = set()
        """Callers that have had a connection read at once in this iteration of the loop."""
        self._scheduled = False

    def may_be_read(self, connection: "Connection") -> bool:
        """At once, if no other connection of its caller was in this iteration of the loop; else it must queue."""
        caller = _caller(connection)
        if caller in self._read:
            return False
        self._read.add(caller)
        self._schedule()
        return True

    def add(self, connection: "Connection") -> None:
        self._queues.setdefault(_caller(connection), deque()).append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self._read.clear()
        queues = self._queues
        deadline = self._monotonic() + TURN_SECONDS
        while queues and self._monotonic() < deadline:
            caller = next(iter(queues))
            queue = queues.pop(caller)
            connection = queue.popleft()
            if queue:
                queues[caller] = queue
            connection.take_turn()
        if queues:
            self._schedule()


def _bucket(request: Request) -> str:
    return "approvals_full_at" if request.method == "POST" else "polls_full_at"


def _caller(connection: "Connection") -> object:
    # A proxy serves many VMs: each of its connections counts as a caller.
    return connection.caller or connection
