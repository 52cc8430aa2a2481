"""A fair queue of connections of callers that have sent more than one request at once."""

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forenotice.metadata.protocol import Connection

TURN_SECONDS = 0.002
"""Time for the queue before the loop serves everybody else again."""


class Turns:
    """Callers take turns, and so do the connections of one caller; a turn is one request.

    A caller that sends one request at a time is never in this queue: it is answered as soon as its bytes are read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[object, deque[Connection]] = {}
        """By caller, the next one first."""
        self._read: set[object] = set()
        """Callers that have had a connection read at once in this turn of the loop."""
        self._scheduled = False

    def may_be_read(self, connection: "Connection") -> bool:
        """At once, if no other connection of its caller was in this turn of the loop; else it must queue."""
        caller = _caller(connection)
        if caller in self._read:
            return False
        self._read.add(caller)
        self._schedule()
        return True

    def enlist(self, connection: "Connection") -> None:
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
        deadline = monotonic() + TURN_SECONDS
        while queues and monotonic() < deadline:
            caller = next(iter(queues))
            queue = queues.pop(caller)
            connection = queue.popleft()
            if queue:
                queues[caller] = queue
            connection.take_turn()
        if queues:
            self._schedule()


def _caller(connection: "Connection") -> object:
    # A proxy serves many VMs: each of its connections counts as a caller.
    return connection.caller or connection
