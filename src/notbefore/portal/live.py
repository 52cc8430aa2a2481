"""/live: says that something has changed which the one who looks may see; the page then asks for itself again."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from notbefore.control.tail import Tail
from notbefore.core import errors
from notbefore.core.journal import OF_TOKENS, Entry
from notbefore.core.roles import Access, Need
from notbefore.portal.gate import Gate
from notbefore.service.tokens import Caller

APART_SECONDS = 0.25
"""Between two messages: what changes meanwhile is told once."""


class Live:
    def __init__(self, gate: Gate, tail: Tail) -> None:
        self._gate = gate
        self._tail = tail

    async def answer(self, request: Request) -> Response:
        return await self._gate.answered(request, self._follow)

    async def _follow(self, request: Request) -> Response:
        caller = await self._gate.caller(request)
        after = request.query_params.get("after", "")
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise errors.RefusedError("after is not a position in the journal")
        allowed = partial(self._gate.is_allowed, self._gate.secret(request), caller)
        return _Changes(self._tail, int(after), caller, allowed)


class _Changes(StreamingResponse):
    media_type = "text/event-stream"

    def __init__(self, tail: Tail, position: int, caller: Caller, allowed: partial[bool]) -> None:
        super().__init__((), headers={"X-Accel-Buffering": "no"})
        self._tail = tail
        self._position = position
        self._caller = caller
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._tail.joined(self._caller.id) as changed:
            self.body_iterator = self._told(changed)
            await super().__call__(scope, receive, send)

    async def _told(self, changed: asyncio.Event) -> AsyncIterator[bytes]:
        yield b"retry: 3000\n\n"
        while not self._tail.closed:
            changed.clear()
            news = await self._news()
            if news:
                yield b"id: %d\ndata: changed\n\n" % self._position
                await asyncio.sleep(APART_SECONDS)
                continue
            quiet = min(self._tail.heartbeat, self._tail.seconds_until(self._caller.expires_at))
            try:
                async with asyncio.timeout(max(quiet, 0)):
                    await changed.wait()
            except TimeoutError:
                if not await run_in_threadpool(self._allowed):
                    return
                yield b": alive\n\n"

    async def _news(self) -> bool:
        """Whether there is something new for this one; all that is there is passed over."""
        found = False
        while True:
            lines = self._tail.after(self._position)
            if lines is None:
                lines = await run_in_threadpool(self._tail.read, self._position)
            if not lines:
                return found
            found = found or any(is_shown(line.entry, self._caller.access) for line in lines)
            self._position = lines[-1].position


def is_shown(entry: Entry, access: Access) -> bool:
    if access.scopes is not None:
        return entry.scope is not None and entry.scope in access.scopes
    return access.may(Need.ADMINISTER) or not entry.action.startswith(OF_TOKENS)
