"""The client for an event loop."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from forenotice.client.changes import Change
from forenotice.client.events import Document, Event
from forenotice.client.exchange import LARGEST_BODY, ProtocolError
from forenotice.client.finding import LEASES
from forenotice.client.flow import Ask, Flow, Outcome, Pause, Stream, resume
from forenotice.client.pace import USUAL, Pace
from forenotice.client.polling import News
from forenotice.client.pool import Pool
from forenotice.client.session import Session
from forenotice.client.streams import AsyncConnection

R = TypeVar("R")
T = TypeVar("T")


class AsyncClient:
    """As Client, for the tasks of one event loop: `await client.me`, `async for change in client.watch()`."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        name: str | None = None,
        pace: Pace = USUAL,
        leases: Sequence[str] = LEASES,
    ) -> None:
        self.session = Session(endpoint, name, pace, leases)
        self._closed = asyncio.Event()
        self._pool = Pool(lambda host, port: AsyncConnection(host, port, connect_timeout=pace.connect_timeout))

    @property
    def me(self) -> Coroutine[Any, Any, str]:
        return self.run(self.session.me())

    @property
    def endpoint(self) -> str:
        return self.session.endpoint.at.url

    @property
    def api_version(self) -> str:
        return self.session.endpoint.negotiation.version

    @property
    def ahead(self) -> float:
        return self.session.endpoint.ahead

    @property
    def patient(self) -> bool:
        return self.session.patient

    @patient.setter
    def patient(self, patient: bool) -> None:
        self.session.patient = patient

    async def document(self) -> Document:
        return await self.run(self.session.document())

    async def events(self, *, mine: bool = False) -> tuple[Event, ...]:
        return await self.run(self.session.events(mine))

    async def approve(self, event: Event | str, *more: Event | str) -> None:
        await self.run(self.session.approve(event, *more))

    def follow(self) -> AsyncIterator[News]:
        return self._stream(self.session.follow())

    def watch(self, *, mine: bool = False) -> AsyncIterator[Change]:
        return self._stream(self.session.watch(mine))

    async def close(self) -> None:
        """For good: `follow` and `watch` in other tasks end at once."""
        self._closed.set()
        self._pool.close()
        # The loop closes the sockets in its next round.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def run(self, flow: Flow[R]) -> R:
        try:
            step = next(flow)
            while True:
                step = resume(flow, await self._perform(step))
        except StopIteration as ended:
            result: R = ended.value
            return result

    async def _stream(self, stream: Stream[T]) -> AsyncIterator[T]:
        outcome: Outcome = None
        while not self._closed.is_set():
            step = resume(stream, outcome)
            if isinstance(step, Ask | Pause):
                outcome = await self._perform(step)
            else:
                outcome = None
                yield step

    async def _perform(self, step: Ask | Pause) -> Outcome:
        if isinstance(step, Pause):
            await self._pause(step.seconds)
            return None
        try:
            with self._pool.lend(step.host, step.port) as connection:
                return await connection.ask(
                    step.method, step.target, step.headers, step.body, timeout=step.timeout, largest=LARGEST_BODY
                )
        except (OSError, ProtocolError) as error:
            return error

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            pass
