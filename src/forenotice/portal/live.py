"""/live: says that something has changed which the one who looks may see; the page then asks for itself again."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from time import monotonic

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from forenotice.control import responses
from forenotice.control.stream import PAGE, Tail, happens
from forenotice.core import errors
from forenotice.core.journal import OF_TOKENS, Entry
from forenotice.core.roles import Access, Need
from forenotice.portal.dispatch import Dispatcher
from forenotice.service.tokens import Caller

APART_SECONDS = 0.25
"""Between two messages: what changes meanwhile is told once."""
MOST_OF_ONE = 4
"""Pages of one browser, which has six connections to a server; others look for themselves now and then."""
BEGIN = b"retry: 3000\n\n"
CHANGED = b"id: %d\ndata: changed\n\n"
ALIVE = b": alive\n\n"


class Live:
    def __init__(self, dispatcher: Dispatcher, tail: Tail) -> None:
        self._dispatcher = dispatcher
        self._tail = tail
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._dispatcher.sent(Request(scope, receive), send, self._follow)

    async def _follow(self, held: ExitStack, request: Request) -> Response:
        caller = await self._dispatcher.caller(request)
        held.enter_context(self._dispatcher.portal.limits.counted(caller.id))
        # A browser that comes again says how far it was told.
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise errors.RefusedError("after is not a position in the journal")
        secret = self._dispatcher.secret(request)
        held.enter_context(self._one_of(secret))
        changed = held.enter_context(self._tail.joined(caller.id))
        allowed = partial(self._dispatcher.is_allowed, request, caller)
        changes = _Changes(self._tail, int(after), caller, allowed)
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(changes.told(changed), media_type="text/event-stream", headers=headers)

    @contextmanager
    def _one_of(self, session: str) -> Iterator[None]:
        if self._open[session] >= MOST_OF_ONE:
            raise responses.TooManyError(f"{MOST_OF_ONE} pages of yours are live already: close one")
        self._open[session] += 1
        try:
            yield
        finally:
            self._open[session] -= 1
            self._open += Counter()


class _Changes:
    """Ends when whoever reads it leaves, when the session does, or when the server stops."""

    def __init__(self, tail: Tail, position: int, caller: Caller, is_allowed: Callable[[], bool]) -> None:
        self._tail = tail
        self._position = position
        self._caller = caller
        self._is_allowed = is_allowed

    async def told(self, changed: asyncio.Event) -> AsyncIterator[bytes]:
        yield BEGIN
        said = monotonic()
        while not self._tail.closed:
            changed.clear()
            news = await self._news()
            quiet = min(said + self._tail.heartbeat - monotonic(), self._tail.seconds_until(self._caller.expires_at))
            if not news and await happens(changed, quiet):
                continue
            if not await run_in_threadpool(self._is_allowed):
                return
            yield CHANGED % self._position if news else ALIVE
            said = monotonic()
            if news:
                await asyncio.sleep(APART_SECONDS)

    async def _news(self) -> bool:
        """Whether there is something new for this one; all that is there is passed over."""
        found = False
        while lines := self._tail.after(self._position):
            found = found or any(is_shown(line.entry, self._caller.access) for line in lines)
            self._position = lines[-1].position
        return found or (lines is None and await run_in_threadpool(self._news_long_ago))

    def _news_long_ago(self) -> bool:
        """The same from the store. Whoever is far behind is told so without a look at all of it."""
        lines, _ = self._tail.read(self._position)
        if not lines:
            return False
        far = len(lines) == PAGE
        self._position = self._tail.newest() if far else lines[-1].position
        return far or any(is_shown(line.entry, self._caller.access) for line in lines)


def is_shown(entry: Entry, access: Access) -> bool:
    if access.scopes is not None:
        return entry.scope is not None and entry.scope in access.scopes
    return access.may(Need.ADMINISTER) or not entry.action.startswith(OF_TOKENS)
