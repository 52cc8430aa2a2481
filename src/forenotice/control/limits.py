"""Limits that leave room for everybody: per token, for expensive requests, and for callers without a valid token."""

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from http import HTTPStatus
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forenotice.control import requests, responses
from forenotice.control.connection_limits import address_of
from forenotice.core import errors
from forenotice.failures import has_doubled
from forenotice.limits import Buckets, Rate
from forenotice.logs import log
from forenotice.service.service import Telemetry

MOST_OF_ONE = 64
"""Requests of one token under way, including those whose body is still arriving: a quarter of all connections."""
AT_WORK = 4
"""How many of those are worked on at once; the others wait, without a thread."""
PATIENCE_SECONDS = 10.0
BURST = 4.0
"""Seconds' worth of requests that may come at once."""

EXPENSIVE_AT_ONCE = 1
EXPENSIVE_PATIENCE_SECONDS = 5.0

UNKNOWN_A_SECOND, UNKNOWN_AT_ONCE = 20.0, 100.0
"""Requests of one address without a valid token that are not delayed."""
DELAY_SECONDS = 0.5
"""For the others, so that 128 connections of an address are at most so many requests in that time. Less than a health
check waits for its response, which is a second in Kubernetes, as it may share its address with those who flood."""
KNOWN_SECONDS = 60.0
MOST_KNOWN = 1000
_KEY = "recognised"


class TokenLimits:
    """Of API and portal together: each request at work takes a thread (of 40) and a database connection (of 32).

    For one event loop."""

    def __init__(self, per_second: float | None = None) -> None:
        """None: no rate limit."""
        self._per_second = per_second
        self._buckets = Buckets(per_second, (per_second or 0) * BURST)
        self._under_way: Counter[str] = Counter()
        self._slots: dict[str, asyncio.Semaphore] = {}

    @contextmanager
    def counted(self, token_id: str) -> Iterator[None]:
        if seconds := self._buckets.take(token_id, monotonic()):
            raise responses.TooManyError(
                f"this token sends more than {self._per_second:g} requests a second: wait {seconds} s", seconds
            )
        if self._under_way[token_id] >= MOST_OF_ONE:
            raise responses.TooManyError(f"{MOST_OF_ONE} requests of this token are under way: wait for one to end")
        self._under_way[token_id] += 1
        try:
            yield
        finally:
            self._under_way[token_id] -= 1
            if not self._under_way[token_id]:
                del self._under_way[token_id]
                self._slots.pop(token_id, None)

    async def slot(self, token_id: str) -> ExitStack:
        """Waits for a place among the requests at work, which closing the stack gives back. Within `counted`."""
        slots = self._slots.setdefault(token_id, asyncio.Semaphore(AT_WORK))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await slots.acquire()
        except TimeoutError:
            raise responses.TooManyError(
                f"{AT_WORK} requests of this token are being worked on and take long: wait for one to end"
            ) from None
        taken = ExitStack()
        taken.callback(slots.release)
        return taken


class ConcurrencyLimit:
    """Of expensive requests. Waiting takes no thread, of which there are few."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(EXPENSIVE_AT_ONCE)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(EXPENSIVE_PATIENCE_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise errors.UnavailableError("others are planning or comparing just now: try again in a moment") from None
        try:
            yield
        finally:
            self._free.release()


class Throttle:
    """Delays callers without a valid token, or beyond its rate, whose address sends very many requests.

    It stands in front of the application. Credentials that were valid a while ago are not delayed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._buckets = Buckets(UNKNOWN_A_SECOND, UNKNOWN_AT_ONCE)
        self._known: dict[bytes, float] = {}
        """Digests of valid credentials, and until when they are remembered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The unix socket, which has no port, is not limited.
        if scope["type"] == "http" and scope.get("client") and scope["server"] and scope["server"][1] is not None:
            shown = _shown(scope)
            scope.setdefault("state", {})[_KEY] = lambda: self._recognise(shown)
            now = monotonic()
            if self._known.get(shown, 0.0) < now and self._buckets.take(address_of(scope["client"][0]), now):
                await asyncio.sleep(DELAY_SECONDS)
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
    """Authentication calls this once it has found the credentials valid."""
    note: Callable[[], None] | None = scope.get("state", {}).get(_KEY)
    if note is not None:
        note()


def _shown(scope: Scope) -> bytes:
    given = (requests.header(scope["headers"], name) for name in (b"authorization", b"cookie"))
    return hashlib.sha256(b"\0".join(given)).digest()


TRACED = frozenset({401, 403, 429})
KNOWN = 1000
"""Callers whose refusals are counted."""
LINES_A_SECOND, LINES_AT_ONCE = 1.0, 20.0


class Refusals:
    """Logs the first, second, fourth and so on of each caller, and a limited number a second of all together."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._counts: OrderedDict[tuple[int, str, str], int] = OrderedDict()
        self._rate = Rate(LINES_A_SECOND, LINES_AT_ONCE)
        self._full_at = 0.0
        self._unlogged = 0

    def note(self, status: int, *, address: str, token: str, method: str, path: str) -> None:
        """Ignores other statuses. `token` is the token's id, if known; the secret is never logged."""
        if status not in TRACED:
            return
        self._telemetry.refused(status)
        count = self._counted((status, str(address_of(address)) if address else "", token))
        full_at = self._rate.take(self._full_at, monotonic())
        if not has_doubled(count) or full_at < 0:
            self._unlogged += 1
            return
        self._full_at = full_at
        unlogged, self._unlogged = self._unlogged, 0
        log.warning(
            "A caller was refused",
            action="control.refused",
            status=status,
            address=address,
            token=token,
            method=method,
            path=path[:200],
            count=count,
            unlogged=unlogged,
        )

    def _counted(self, caller: tuple[int, str, str]) -> int:
        self._counts[caller] = count = self._counts.get(caller, 0) + 1
        self._counts.move_to_end(caller)
        if len(self._counts) > KNOWN:
            self._counts.popitem(last=False)
        return count
