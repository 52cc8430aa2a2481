"""Rate limits: a token bucket that costs one number per caller."""

import math
from collections.abc import Hashable


class Rate:
    """A bucket of `burst` tokens that fills with `per_second`.

    Of a bucket only the moment is kept at which it will be full again; a token taken moves that moment ahead.
    """

    __slots__ = ("interval", "tolerance")

    def __init__(self, per_second: float | None, burst: float | None = None) -> None:
        self.interval = 1 / per_second if per_second else 0.0
        """Seconds per token; 0 without a limit, so that no bucket ever empties."""
        self.tolerance = self.interval * max(1.0, burst or 1.0)

    def take(self, full_at: float, now: float) -> float:
        """When the bucket will be full again after one more token; negative: there was none."""
        full_at = (full_at if full_at > now else now) + self.interval
        # Half an interval of slack would be a token; a millionth only makes up for rounding.
        return full_at if full_at - now <= self.tolerance + 1e-6 else -1.0

    def retry_after(self, full_at: float, now: float) -> int:
        """Whole seconds until there is a token."""
        return max(1, math.ceil(full_at + self.interval - self.tolerance - now))


class Buckets:
    """A bucket for each caller; full ones are forgotten now and then."""

    KEPT = 128

    def __init__(self, per_second: float | None, burst: float | None = None) -> None:
        self._rate = Rate(per_second, burst)
        self._full_at: dict[Hashable, float] = {}
        self._most = self.KEPT

    def take(self, whose: Hashable, now: float) -> int:
        """0, or how many whole seconds it is until there is a token."""
        before = self._full_at.get(whose, 0.0)
        if (full_at := self._rate.take(before, now)) < 0:
            return self._rate.retry_after(before, now)
        self._full_at[whose] = full_at
        if len(self._full_at) > self._most:
            self._full_at = {each: full for each, full in self._full_at.items() if full > now}
            self._most = max(self.KEPT, 2 * len(self._full_at))
        return 0
