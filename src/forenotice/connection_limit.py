"""A limit on connections: who holds how many, and which of them are closed when there is no room for another."""

import heapq
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
