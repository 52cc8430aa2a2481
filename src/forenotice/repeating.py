"""What fails again and again is logged when its reason changes, and when the count has doubled."""

import re

_NUMBER = re.compile(r"\d+")


class Failures:
    def __init__(self) -> None:
        self._reason = ""
        self.times = 0
        """In a row, for the same reason."""

    def again(self, reason: str) -> bool:
        """Whether this one is to be logged. Numbers are no change, such as for how many seconds."""
        reason = _NUMBER.sub("", reason)
        self.times = self.times + 1 if reason == self._reason else 1
        self._reason = reason
        return self.times & (self.times - 1) == 0

    def over(self) -> int:
        """How often it had failed for the last reason; 0: it had not."""
        times, self.times, self._reason = self.times, 0, ""
        return times
