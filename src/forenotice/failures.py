"""Failures that repeat, logged when their reason changes or their number has doubled; and threads that are stuck."""

import re
from collections.abc import Callable
from time import monotonic

_NUMBER = re.compile(r"\d+")


def has_doubled(count: int) -> bool:
    """Whether it is 1, 2, 4, 8 and so on."""
    return count & (count - 1) == 0


class Failures:
    def __init__(self, *, ignore_numbers: bool = True) -> None:
        self._ignore_numbers = ignore_numbers
        self._reason = ""
        self.times = 0
        """In a row, for the same reason."""

    def again(self, reason: str) -> bool:
        """Whether to log this one. A different number in the reason, such as of seconds, is not a change."""
        if self._ignore_numbers:
            reason = _NUMBER.sub("", reason)
        self.times = self.times + 1 if reason == self._reason else 1
        self._reason = reason
        return has_doubled(self.times)

    def over(self) -> int:
        """It works again; returns how often it had failed for the last reason."""
        times, self.times, self._reason = self.times, 0, ""
        return times


WITHIN_SECONDS = 45.0
"""A turn may take this long, including its wait for the writer; a thread that needs longer is stuck."""


class Liveness:
    """Each thread reports every turn of its loop, and /readyz names those that are stuck."""

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
