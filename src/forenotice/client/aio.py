"""The client for an event loop, and its connection over asyncio's streams."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar

from forenotice.client import changes
from forenotice.client.changes import Change, News
from forenotice.client.endpoint import BaseClient, Outcome, Pause, Request, Steps, Stream, resume
from forenotice.client.events import Document, Event
from forenotice.client.http import LARGEST_BODY, PIECE, Exchange, Pool, ProtocolError, Response, closed_here, no_host

R = TypeVar("R")
T = TypeVar("T")


class AsyncClient(BaseClient):
    """As Client, for the tasks of one event loop: `await client.me`, `async for change in client.watch()`."""

    def _open(self, connect_timeout: float) -> None:
        self._closed = asyncio.Event()
        self._pool = Pool(lambda host, port: AsyncConnection(host, port, connect_timeout=connect_timeout))

    @property
    def me(self) -> Coroutine[Any, Any, str]:
        return self.run(self.remote.me())

    async def document(self) -> Document:
        return await self.run(self.remote.document())

    async def events(self, *, mine: bool = False) -> tuple[Event, ...]:
        return await self.run(self.remote.events(mine))

    async def approve(self, event: Event | str, *more: Event | str) -> None:
        await self.run(self.remote.approve(event, *more))

    def follow(self) -> AsyncIterator[News]:
        return self._stream(changes.follow(self.remote))

    def watch(self, *, mine: bool = False) -> AsyncIterator[Change]:
        return self._stream(changes.watch(self.remote, mine))

    async def close(self) -> None:
        """For good: `follow` and `watch` in other tasks end at once."""
        self._closed.set()
        self._pool.close()
        # The loop closes the sockets in its next round.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, steps: Steps[R]) -> R:
        outcome: Outcome = None
        try:
            while True:
                outcome = await self._perform(resume(steps, outcome))
        except StopIteration as ended:
            result: R = ended.value
            return result

    async def _stream(self, stream: Stream[T]) -> AsyncIterator[T]:
        outcome: Outcome = None
        while not self._closed.is_set():
            step = resume(stream, outcome)
            if isinstance(step, Request | Pause):
                outcome = await self._perform(step)
            else:
                outcome = None
                yield step

    async def _perform(self, step: Request | Pause) -> Outcome:
        if isinstance(step, Pause):
            with suppress(TimeoutError):
                async with asyncio.timeout(step.seconds):
                    await self._closed.wait()
            return None
        try:
            with self._pool.lend(step.host, step.port) as connection:
                return await connection.request(
                    step.method, step.target, step.headers, step.body, timeout=step.timeout, largest=LARGEST_BODY
                )
        except (OSError, ProtocolError) as error:
            return error


class AsyncConnection:
    """As http.Connection, for one task at a time; a task that is cancelled leaves nothing behind."""

    def __init__(self, host: str, port: int, *, connect_timeout: float) -> None:
        self._host, self._port = host, port
        self._connect_timeout = connect_timeout
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._exchange = Exchange(host, port)
        self._closed = False

    async def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float,  # noqa: ASYNC109
        largest: int,
    ) -> Response:
        def begin() -> bytes:
            return self._exchange.begin(method, target, headers, body, largest=largest)

        async with asyncio.timeout(timeout):
            kept = await self._is_kept()
            try:
                return await self._send(begin)
            except ConnectionError:
                if not (kept and method == "GET" and self._exchange.silent) or self._closed:
                    raise
            return await self._send(begin)

    def close(self) -> None:
        """For good; a request under way in another task ends with an OSError."""
        self._closed = True
        self._drop()

    async def _send(self, begin: Callable[[], bytes]) -> Response:
        try:
            reader, writer = self._streams or await self._connect()
            writer.write(begin())
            await writer.drain()
            response = None
            while response is None:
                response = self._exchange.feed(await reader.read(PIECE))
        except BaseException:
            self._drop()
            raise
        if not self._exchange.next():
            self._drop()
        return response

    async def _is_kept(self) -> bool:
        """Whether the connection of the last response is still there; whatever has come since ended it."""
        if self._streams is None:
            return False
        reader, writer = self._streams
        if not writer.is_closing() and reader.exception() is None and not await _has_more(reader):
            return True
        self._drop()
        return False

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(self._connect_timeout):
                self._streams = await asyncio.open_connection(self._host, self._port)
        except ValueError:
            raise no_host(self._host) from None
        if self._closed:
            raise closed_here()
        self._exchange = Exchange(self._host, self._port)
        return self._streams

    def _drop(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()


async def _has_more(reader: asyncio.StreamReader) -> bool:
    """Something, or the end, has come. The first look lets the loop fetch it, the second one sees it."""
    for _ in range(2):
        with suppress(OSError):
            async with asyncio.timeout(0):
                await reader.read(1)
                return True
    return reader.exception() is not None
