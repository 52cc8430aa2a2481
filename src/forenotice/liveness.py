"""Which threads still make progress: each reports every turn of its loop, and /readyz names those that are stuck."""

from collections.abc import Callable
from time import monotonic

WITHIN_SECONDS = 45.0
"""A turn may take this long, including its wait for the writer; a thread that needs longer is stuck."""


class Liveness:
    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}

    def beat(self, name: str) -> None:
        self._last[name] = self._clock()

    def end(self, name: str) -> None:
        """The thread has stopped because it was told to."""
        self._last.pop(name, None)

    def seconds_since(self) -> dict[str, float]:
        """The last turn of each."""
        now = self._clock()
        return {name: now - last for name, last in sorted(self._last.copy().items())}

    def silent(self) -> dict[str, float]:
        """The threads that are stuck, and for how many seconds."""
        return {name: seconds for name, seconds in self.seconds_since().items() if seconds > WITHIN_SECONDS}
