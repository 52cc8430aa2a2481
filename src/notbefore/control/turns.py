"""Whoever asks for something heavy takes turns with others who do, so that it leaves room for all the rest."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, cast

from fastapi import Depends, Request

from notbefore.core import errors

AT_ONCE = 1
PATIENCE_SECONDS = 5.0


class Turns:
    """Waiting takes no thread, of which there are few."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)

    async def begin(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise errors.UnavailableError("others are planning just now: try again in a moment") from None

    def end(self) -> None:
        self._free.release()


async def _in_turn(request: Request) -> AsyncIterator[None]:
    turns = cast(Turns, request.app.state.plans)
    await turns.begin()
    try:
        yield
    finally:
        turns.end()


InTurn = Annotated[None, Depends(_in_turn)]
