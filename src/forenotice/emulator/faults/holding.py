"""A request that is held back for a while."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from forenotice.clock import Clock


class Hold:
    """By the emulator's clock, which may be moved, and by a timer, should it stand still.

    `release` is called once, unless it is cancelled before.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        until: Mapping[str, datetime],
        release: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._until = dict(until)
        """By the name of what holds it."""
        self._release = release
        self._timer = self._wait()

    @property
    def until(self) -> datetime:
        return max(self._until.values())

    def lift(self, names: Collection[str]) -> None:
        """These hold it no longer."""
        if self._until.keys().isdisjoint(names):
            return
        self._until = {name: until for name, until in self._until.items() if name not in names}
        self._timer.cancel()
        if self._until:
            self._timer = self._wait()
        else:
            self._release()

    def look_at_clock(self) -> None:
        now = self._clock.now()
        self.lift([name for name, until in self._until.items() if until <= now])

    def end(self) -> None:
        self.lift(tuple(self._until))

    def cancel(self) -> None:
        self._timer.cancel()

    def _wait(self) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0.0, (self.until - self._clock.now()).total_seconds()), self._release)
