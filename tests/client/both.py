"""Both clients behind one face, so that what is tested of one is tested of the other."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from forenotice.client import AsyncClient, Change, Client, Document, Event, News, Pace

T = TypeVar("T")

QUICK = Pace(
    interval=0.01,
    first_pause=0.01,
    longest_pause=0.01,
    longest_retry_after=0.01,
    first_timeout=5.0,
    timeout=5.0,
    at_once=0.0,
)
"""A server that answers counts as one that waits."""


class Awaiting:
    """The asynchronous client, each call on a loop that runs for as long as the call."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.runner = asyncio.Runner()
        self.client = AsyncClient(*args, **options)

    @property
    def me(self) -> str:
        return self.runner.run(self.client.me)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def document(self) -> Document:
        return self.runner.run(self.client.document())

    def events(self, *, mine: bool = False) -> tuple[Event, ...]:
        return self.runner.run(self.client.events(mine=mine))

    def approve(self, event: Event | str, *more: Event | str) -> None:
        self.runner.run(self.client.approve(event, *more))

    def follow(self) -> Iterator[News]:
        return self._each(self.client.follow())

    def watch(self, *, mine: bool = False) -> Iterator[Change]:
        return self._each(self.client.watch(mine=mine))

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()

    def _each(self, iterator: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> tuple[T, ...]:
            async for item in iterator:
                return (item,)
            return ()

        while found := self.runner.run(following()):
            yield found[0]


Either = Client | Awaiting
Make = Callable[..., AbstractContextManager[Either]]


@contextmanager
def make_sync(url: str | None, *, pace: Pace = QUICK, **options: Any) -> Iterator[Either]:
    with Client(url, pace=pace, **options) as client:
        yield client


@contextmanager
def make_async(url: str | None, *, pace: Pace = QUICK, **options: Any) -> Iterator[Either]:
    client = Awaiting(url, pace=pace, **options)
    try:
        yield client
    finally:
        client.close()
