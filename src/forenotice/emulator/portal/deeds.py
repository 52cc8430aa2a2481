"""What forms have done: each once, however often its button is pressed."""

import asyncio
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

MOST = 1000
"""Forms that are remembered."""


class Deeds:
    """On one loop."""

    def __init__(self) -> None:
        self._known: dict[str, asyncio.Task[str]] = {}
        """By the key of the form, oldest first."""

    async def once(self, key: str, do: Callable[[], str]) -> str:
        """What was said when it was done, or what was raised; a form without a key is carried out each time."""
        task = self._known.get(key)
        if task is None:
            task = asyncio.create_task(run_in_threadpool(do))
            if key:
                self._known[key] = task
                if len(self._known) > MOST:
                    del self._known[next(iter(self._known))]
        return await asyncio.shield(task)
