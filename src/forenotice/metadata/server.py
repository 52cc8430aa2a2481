"""The guests' endpoint as a whole: its listeners, its timers, and a stop that first lets answers out."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from forenotice import descriptors
from forenotice.clock import Clock
from forenotice.core.timing import Timing
from forenotice.heartbeats import Heartbeats
from forenotice.logs import log
from forenotice.metadata.board import Board
from forenotice.metadata.bridge import Bridge, Guests
from forenotice.metadata.counters import Counters
from forenotice.metadata.desk import Desk
from forenotice.metadata.door import Connect, Door
from forenotice.metadata.options import Options
from forenotice.metadata.protocol import Connection, Interceptor
from forenotice.settings import Address, Listener


class MetadataServer:
    """Made and used on a running loop; `board` is filled before or meanwhile."""

    def __init__(
        self,
        *,
        board: Board,
        guests: Guests,
        clock: Clock,
        timing: Timing,
        options: Options | None = None,
        heartbeats: Heartbeats | None = None,
        connection: Connect = Connection,
        intercept: Callable[[Connection], Interceptor] | None = None,
    ) -> None:
        options = options or Options()
        allowed = descriptors.allow(options.limits.connections + descriptors.SPARE)
        self._options = replace(options, limits=options.limits.within(allowed))
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._bridge = Bridge(guests, self._loop, self._options.limits, heartbeats or Heartbeats())
        self._desk = Desk(
            board=board,
            bridge=self._bridge,
            clock=clock,
            timing=timing,
            options=self._options,
            loop=self._loop,
            # Others want to see every request.
            quick=connection is Connection and intercept is None,
            intercept=intercept,
        )
        self._connection = connection
        self._doors: list[Door] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def counters(self) -> Counters:
        return self._desk.counters

    @property
    def bound(self) -> tuple[Address | Path, ...]:
        """Where guests are answered, with the ports that the system chose."""
        return tuple(place for opened in self._doors for place in opened.bound)

    def start(self, listeners: Sequence[Listener]) -> None:
        try:
            for listener in listeners:
                self.open(listener)
        except BaseException:
            for one in self._doors:
                self._loop.create_task(one.close())
            self._doors.clear()
            raise
        self._bridge.start()
        self._refresh()
        self._sweep()

    def open(self, listener: Listener) -> Address | Path:
        """One more listener, also while others are served; gives where it is bound."""
        opened = Door(self._desk, listener, self._connection)
        opened.open()
        self._doors.append(opened)
        return opened.bound[0]

    def refresh(self) -> None:
        """Look at the clock now; it is looked at once a second anyway."""
        self._desk.refresh()

    def take_callers_for(self, vm: str) -> None:
        """Whoever is not known otherwise is this VM from now on."""
        self._desk.callers.default = vm
        self._desk.board.generation += 1

    async def stop(self, grace: float = 5) -> None:
        """Accept nobody, let answers out, keep what was heard, then close."""
        for one in self._doors:
            await one.close()
        self._desk.stopping = True
        for connection in tuple(self._desk.room.connections):
            connection.stop()
        deadline = self._loop.time() + grace
        self._desk.hearing.flush()
        await self._until_empty(grace)
        if not await self._bridge.close(max(0.1, deadline - self._loop.time())):
            log.error("The store did not answer in time", action="guests.abandoned")
        for timer in self._timers.values():
            timer.cancel()
        for connection in tuple(self._desk.room.connections):
            connection.abort()
        await self._until_empty(1)

    async def _until_empty(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._desk.room.empty.wait(), seconds)

    def _refresh(self) -> None:
        self._desk.refresh()
        # Just after the second changes, so that the Date is hardly ever late.
        seconds = 1.001 - self._clock.now().microsecond / 1_000_000
        self._timers["refresh"] = self._loop.call_later(seconds, self._refresh)

    def _sweep(self) -> None:
        self._desk.room.sweep()
        self._timers["sweep"] = self._loop.call_later(self._options.limits.sweep_seconds, self._sweep)
