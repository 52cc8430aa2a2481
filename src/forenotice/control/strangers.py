"""Strangers: whoever shows no valid token, or one beyond its rate, is answered too, but waits for that when its address
asks very often."""

import asyncio
import hashlib
from collections.abc import Callable
from http import HTTPStatus
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forenotice.control import guarding
from forenotice.control.bounds import address_of
from forenotice.rate import Buckets

A_SECOND, AT_ONCE = 20.0, 100.0
"""Requests of one address that are not delayed."""
WAIT_SECONDS = 0.5
"""For the others, so that 128 connections of an address are at most so many requests in that time. Less than a health
check waits for its answer, which is a second in Kubernetes, as it may share its address with those who flood."""
KNOWN_SECONDS = 60.0
MOST_KNOWN = 1000
_KEY = "recognised"


class Strangers:
    """In front of the application. Credentials that were valid a while ago are not delayed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._buckets = Buckets(A_SECOND, AT_ONCE)
        self._known: dict[bytes, float] = {}
        """Digests of valid credentials, and until when they are remembered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The unix socket, which has no port, is not limited.
        if scope["type"] == "http" and scope.get("client") and scope["server"] and scope["server"][1] is not None:
            shown = _shown(scope)
            scope.setdefault("state", {})[_KEY] = lambda: self._recognise(shown)
            now = monotonic()
            if self._known.get(shown, 0.0) < now and self._buckets.take(address_of(scope["client"][0]), now):
                await asyncio.sleep(WAIT_SECONDS)
            send = self._watched(shown, send)
        await self._app(scope, receive, send)

    def _watched(self, shown: bytes, send: Send) -> Send:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.TOO_MANY_REQUESTS:
                self._known.pop(shown, None)
            await send(message)

        return watched

    def _recognise(self, shown: bytes) -> None:
        self._known.pop(shown, None)
        self._known[shown] = monotonic() + KNOWN_SECONDS
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]


def recognise(scope: Scope) -> None:
    """A gate calls this once it has found the credentials valid."""
    note: Callable[[], None] | None = scope.get("state", {}).get(_KEY)
    if note is not None:
        note()


def _shown(scope: Scope) -> bytes:
    given = (guarding.header(scope["headers"], name) for name in (b"authorization", b"cookie"))
    return hashlib.sha256(b"\0".join(given)).digest()
