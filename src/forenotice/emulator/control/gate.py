"""The gate of the emulator's control. It asks for no token, so it sees to it that no web page can use it."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from forenotice.control import answers, guarding
from forenotice.core import errors
from forenotice.emulator.portal.app import Pages

LARGEST = 1024 * 1024


class Gate:
    def __init__(self, app: ASGIApp, *, host: str, pages: Pages) -> None:
        self._app = app
        self._pages = pages
        self._names = {host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await guarding.guarded(self._enter, scope, receive, send)
        except asyncio.CancelledError:
            # The server stops, and has waited for long enough.
            ended = errors.UnavailableError("the emulator has ended before this was done: start it anew")
            await answers.refusal(ended)(scope, receive, send)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarding.require_host(scope["headers"], self._names, "use localhost or an address")
        if self._pages.take(scope):
            await self._pages(scope, receive, send)
            return
        kind = guarding.header(scope["headers"], b"content-type").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and kind != b"application/json":
            # What a form or a page of another site can send without being asked first.
            raise errors.RefusedError("send the header Content-Type: application/json")
        body = await guarding.read(scope["headers"], receive, LARGEST)
        await self._app(scope, guarding.replay(body, receive), send)
