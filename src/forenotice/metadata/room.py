"""Who is connected: how many altogether, how many of one caller, and who goes when all places are taken."""

import asyncio
import heapq
from typing import TYPE_CHECKING

from forenotice.logs import log
from forenotice.metadata.counters import Counters
from forenotice.metadata.options import Limits

if TYPE_CHECKING:
    from forenotice.metadata.protocol import Connection

EVICTED_SHARE = 256
"""One in so many makes room at once, so that a flood does not cost a look at all connections for each of its own."""


class Room:
    def __init__(self, limits: Limits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        self.connections: set[Connection] = set()
        self.empty = asyncio.Event()
        """Set while there is no connection."""
        self.empty.set()
        self._held: dict[str, int] = {}
        """Connections by caller."""
        self._crowding: set[str] = set()
        """Callers that have been refused for holding too many, until they hold far fewer."""
        self._full = False

    def admits(self, caller: str | None) -> bool:
        """Whether one more connection of this caller may stay; None: of nobody who is held to a share."""
        admitted = not self._is_crowding(caller) and self._has_place()
        self._counters.refused += not admitted
        return admitted

    def arrive(self, connection: "Connection") -> None:
        self.connections.add(connection)
        self._counters.open += 1
        self.empty.clear()
        if connection.caller is not None:
            self._held[connection.caller] = self._held.get(connection.caller, 0) + 1

    def leave(self, connection: "Connection") -> None:
        if connection not in self.connections:
            # It made room before.
            return
        self.connections.remove(connection)
        self._counters.open -= 1
        if not self.connections:
            self.empty.set()
        if connection.caller is not None:
            self._leave(connection.caller)

    def sweep(self) -> None:
        for connection in tuple(self.connections):
            connection.sweep()
        # Here, so that a caller that comes and goes is logged once in a while only.
        few = self._limits.connections_each // 2
        self._crowding = {caller for caller in self._crowding if self._held.get(caller, 0) > few}
        if self._full and len(self.connections) <= self._limits.connections // 2:
            self._full = False
            log.info("There is room for connections again", action="connections.free")

    def _leave(self, caller: str) -> None:
        held = self._held.pop(caller) - 1
        if held:
            self._held[caller] = held

    def _is_crowding(self, caller: str | None) -> bool:
        limit = self._limits.connections_each
        if caller is None or self._held.get(caller, 0) < limit:
            return False
        if caller not in self._crowding:
            self._crowding.add(caller)
            log.warning("A caller holds too many connections", action="caller.crowds", caller=caller, limit=limit)
        return True

    def _has_place(self) -> bool:
        """When all are used, closes those of the caller with the most: the longest spare first, long waits last."""
        limit = self._limits.connections
        if len(self.connections) < limit:
            return True
        if not self._full:
            self._full = True
            log.warning("All connections are taken", action="connections.full", limit=limit)
        spare = (connection for connection in self.connections if connection.is_spare())
        evicted = heapq.nlargest(
            max(1, limit // EVICTED_SHARE),
            spare,
            key=lambda each: (self._held.get(each.caller or "", 0), not each.waits, each.age),
        )
        for connection in evicted:
            self.leave(connection)
            connection.make_room()
        self._counters.evicted += len(evicted)
        return bool(evicted)
