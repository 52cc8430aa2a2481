"""Limits: how many connections a caller holds and which are closed for another, and how often it may send requests."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class ConnectionLimit(Generic[C]):
    """Connections in order of arrival, each counted for its caller; None: a caller that is not counted."""

    def __init__(self) -> None:
        self._callers: dict[C, Hashable] = {}
        self._held: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._callers)

    def __iter__(self) -> Iterator[C]:
        return iter(tuple(self._callers))

    def add(self, connection: C, caller: Hashable) -> None:
        self._callers[connection] = caller
        if caller is not None:
            self._held[caller] += 1

    def remove(self, connection: C) -> bool:
        """False: it was removed before."""
        if connection not in self._callers:
            return False
        caller = self._callers.pop(connection)
        if caller is not None:
            self._held[caller] -= 1
            if not self._held[caller]:
                del self._held[caller]
        return True

    def held_by(self, caller: Hashable) -> int:
        return self._held.get(caller, 0)

    def first_to_go(self, rank: Callable[[C], tuple[Any, ...] | None], count: int = 1) -> list[C]:
        """Those of the callers that hold the most, by rank among the connections of one; without a rank they stay."""
        ranked = ((each, rank(each)) for each in self._callers)
        movable = ((self.held_by(self._callers[each]), found, each) for each, found in ranked if found is not None)
        return [each for _, _, each in heapq.nlargest(count, movable, key=lambda found: found[:2])]


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
