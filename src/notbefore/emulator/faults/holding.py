"""A request that is held back for a while."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from time import monotonic


class Hold:
    """`release` is called once, unless it is cancelled before."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: Mapping[str, float], release: Callable[[], None]
    ) -> None:
        now = monotonic()
        self._loop = loop
        self._release = release
        self._due = {name: now + each for name, each in seconds.items()}
        """By the name of what holds it."""
        self._timer = loop.call_later(max(seconds.values()), release)

    def lift(self, names: Collection[str]) -> None:
        """These hold it no longer."""
        if self._due.keys().isdisjoint(names):
            return
        self._due = {name: due for name, due in self._due.items() if name not in names}
        self._timer.cancel()
        if self._due:
            self._timer = self._loop.call_later(max(self._due.values()) - monotonic(), self._release)
        else:
            self._release()

    def end(self) -> None:
        self.lift(tuple(self._due))

    def cancel(self) -> None:
        self._timer.cancel()
