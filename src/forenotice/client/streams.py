"""A connection on an event loop: HTTP/1.1 over asyncio's streams, past every proxy."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from forenotice.client.exchange import Answer, Exchange, no_host

PIECE = 64 * 1024


class AsyncConnection:
    """As connection.Connection, for one task at a time; a task that is cancelled leaves nothing behind."""

    def __init__(self, host: str, port: int, *, connect_timeout: float) -> None:
        self._host, self._port = host, port
        self._connect_timeout = connect_timeout
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._exchange = Exchange(host, port)
        self._closed = False

    async def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float,  # noqa: ASYNC109
        largest: int,
    ) -> Answer:
        async with asyncio.timeout(timeout):
            kept = await self._is_kept()
            try:
                return await self._ask(method, target, headers, body, largest)
            except ConnectionError:
                if not (kept and method == "GET" and self._exchange.silent) or self._closed:
                    raise
            return await self._ask(method, target, headers, body, largest)

    def close(self) -> None:
        """For good; a question under way in another task ends with an OSError."""
        self._closed = True
        self._drop()

    async def _ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, largest: int
    ) -> Answer:
        try:
            reader, writer = self._streams or await self._connect()
            writer.write(self._exchange.begin(method, target, headers, body, largest=largest))
            await writer.drain()
            answer = None
            while answer is None:
                answer = self._exchange.feed(await reader.read(PIECE))
        except BaseException:
            self._drop()
            raise
        if not self._exchange.next():
            self._drop()
        return answer

    async def _is_kept(self) -> bool:
        """Whether the connection of the last answer is still there; whatever has come since ended it."""
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
            raise ConnectionAbortedError("the connection was closed here")
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
