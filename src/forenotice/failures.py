"""Repeated failures: log them when their reason changes and when their number has doubled."""

import re

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
