"""Whoever asks for something heavy takes turns with others who do, so that it leaves room for all the rest."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, cast

from fastapi import Depends, Request

from forenotice.core import errors

AT_ONCE = 1
PATIENCE_SECONDS = 5.0


class Turns:
    """Waiting takes no thread, of which there are few."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise errors.UnavailableError("others are planning or comparing just now: try again in a moment") from None
        try:
            yield
        finally:
            self._free.release()


async def _in_turn(request: Request) -> AsyncIterator[None]:
    async with cast(Turns, request.app.state.plans).taken():
        yield


InTurn = Annotated[None, Depends(_in_turn)]
