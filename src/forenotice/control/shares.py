"""Limits per token, for the API and the portal together, so that one token cannot starve the others.

Its requests have a rate, and of those under way only a few are worked on at once: each of these takes a thread and
a connection to the database, of which there are 40 and 32.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from forenotice.control import answers
from forenotice.rate import Buckets

MOST_OF_ONE = 64
"""Requests under way, including those whose body is still arriving: a quarter of all connections."""
AT_WORK = 4
"""How many of those are worked on at once; the others wait, without a thread."""
PATIENCE_SECONDS = 10.0
BURST = 4.0
"""Seconds' worth of requests that may come at once."""


class Turn:
    """One of the places for requests being worked on; `end` gives it back once."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def end(self) -> None:
        if self._places is not None:
            self._places.release()
            self._places = None


class Shares:
    """For one event loop."""

    def __init__(self, per_second: float | None = None) -> None:
        """None: no rate limit."""
        self._per_second = per_second
        self._buckets = Buckets(per_second, (per_second or 0) * BURST)
        self._under_way: Counter[str] = Counter()
        self._places: dict[str, asyncio.Semaphore] = {}

    @contextmanager
    def counted(self, token_id: str) -> Iterator[None]:
        self._take(token_id)
        if self._under_way[token_id] >= MOST_OF_ONE:
            raise answers.TooManyError(f"{MOST_OF_ONE} requests of this token are under way: wait for one to end")
        self._under_way[token_id] += 1
        try:
            yield
        finally:
            self._under_way[token_id] -= 1
            if not self._under_way[token_id]:
                del self._under_way[token_id]
                self._places.pop(token_id, None)

    async def turn(self, token_id: str) -> Turn:
        """Waits for a place; call it within `counted`."""
        places = self._places.setdefault(token_id, asyncio.Semaphore(AT_WORK))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await places.acquire()
        except TimeoutError:
            raise answers.TooManyError(
                f"{AT_WORK} requests of this token are being worked on and take long: wait for one to end"
            ) from None
        return Turn(places)

    def _take(self, token_id: str) -> None:
        if seconds := self._buckets.take(token_id, monotonic()):
            raise answers.TooManyError(
                f"this token sends more than {self._per_second:g} requests a second: wait {seconds} s", seconds
            )
