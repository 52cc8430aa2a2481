"""/live: says that the page would look different now; it then asks for itself again."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from forenotice.core import errors
from forenotice.emulator.emulator import Emulator

LOOK_SECONDS = 0.25
ALIVE_SECONDS = 15.0
LINE_SECONDS = 10.0
"""Before speed divides them."""
MOST = 32
"""Pages that are followed at a time."""


def position(emulator: Emulator) -> str:
    """Another one whenever something looks different, but for time that passes."""
    return emulator.look(lambda: hashlib.sha256(repr(_looks(emulator)).encode()).hexdigest()[:16])


def _looks(emulator: Emulator) -> tuple[object, ...]:
    stage, player, clock = emulator.stage, emulator.player, emulator.clock
    return (
        (id(stage), stage.scope.incarnation, len(stage.entries), emulator.as_vm),
        player and (player.played, player.waiting_for, len(player.notes)),
        [(each.fault.name, each.times, each.until) for each in emulator.faults.active],
        len(emulator.requests),
        clock.now() if clock.stands else round(clock.ahead.total_seconds()),
        None if clock.stands or emulator.due is None else _tick(emulator),
    )


def _tick(emulator: Emulator) -> int:
    """While something is to come, the line of now moves on: seen from afar every few seconds are enough."""
    seconds = max(LINE_SECONDS / emulator.timing.speed, 1.0)
    return int(emulator.clock.now().timestamp() / seconds)


class Live:
    def __init__(self, emulator: Emulator, alive: float = ALIVE_SECONDS) -> None:
        """`alive` is for how many seconds a page is told nothing at all."""
        self._emulator = emulator
        self._alive = alive
        self._followed = 0
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Whoever follows is let go."""
        self._ending.set()

    async def answer(self, request: Request) -> Response:
        if self._followed >= MOST:
            raise errors.UnavailableError(f"{MOST} pages are followed already: close some of them")
        return _Changes(self, request.query_params.get("after", ""))

    async def told(self, before: str) -> AsyncGenerator[bytes, None]:
        self._followed += 1
        try:
            yield b"retry: 1000\n\n"
            quiet = 0.0
            while not self._ending.is_set():
                now = await run_in_threadpool(position, self._emulator)
                if now != before:
                    before, quiet = now, 0.0
                    yield b"id: %b\ndata: changed\n\n" % now.encode()
                elif quiet >= self._alive:
                    quiet = 0.0
                    yield b": alive\n\n"
                quiet += LOOK_SECONDS
                await self._pause()
        finally:
            self._followed -= 1

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._ending.wait()
        except TimeoutError:
            pass


class _Changes(StreamingResponse):
    media_type = "text/event-stream"

    def __init__(self, live: Live, after: str) -> None:
        super().__init__((), headers={"X-Accel-Buffering": "no"})
        self._live = live
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = self._live.told(self._after)
        self.body_iterator = told
        try:
            await super().__call__(scope, receive, send)
        finally:
            await told.aclose()
