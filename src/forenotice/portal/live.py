"""/live: says that something has changed which the viewer may see; the page then requests itself again."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from forenotice.control import responses
from forenotice.control.stream import PAGE, Tail
from forenotice.core import errors
from forenotice.core.journal import OF_TOKENS, Entry
from forenotice.core.roles import Access, Need
from forenotice.portal.page import Dispatcher

PAUSE_SECONDS = 0.25
"""Between two messages: changes within it are told once."""
MOST_OF_ONE = 4
"""Pages of one browser, which has six connections to a server; other pages look for themselves now and then."""
BEGIN = b"retry: 3000\n\n"
CHANGED = b"id: %d\ndata: changed\n\n"


class Live:
    def __init__(self, dispatcher: Dispatcher, tail: Tail) -> None:
        self._dispatcher = dispatcher
        self._tail = tail
        self._open: Counter[str] = Counter()

    async def follow(self, held: ExitStack, request: Request) -> Response:
        caller = await self._dispatcher.caller(request)
        held.enter_context(self._dispatcher.portal.limits.counted(caller.id))
        # A browser that comes again says how far it was told.
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise errors.RefusedError("after is not a position in the journal")
        held.enter_context(self._one_of(self._dispatcher.secret(request)))
        changed = held.enter_context(self._tail.joined(caller.id))
        allowed = partial(self._dispatcher.is_allowed, request, caller)
        changes = _Changes(self._tail, int(after), caller.access)
        stream = self._tail.follow(BEGIN, changed, caller, allowed, changes.news, PAUSE_SECONDS)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

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
    def __init__(self, tail: Tail, position: int, access: Access) -> None:
        self._tail, self._position, self._access = tail, position, access

    async def news(self) -> bytes | None:
        """Passes over all that is there."""
        found = False
        while lines := self._tail.after(self._position):
            found = found or any(is_shown(line.entry, self._access) for line in lines)
            self._position = lines[-1].position
        found = found or (lines is None and await run_in_threadpool(self._news_long_ago))
        return CHANGED % self._position if found else None

    def _news_long_ago(self) -> bool:
        """The same from the store. A page that is far behind is told so without a look at all of it."""
        lines, _ = self._tail.read(self._position)
        if not lines:
            return False
        far = len(lines) == PAGE
        self._position = self._tail.newest() if far else lines[-1].position
        return far or any(is_shown(line.entry, self._access) for line in lines)


def is_shown(entry: Entry, access: Access) -> bool:
    if access.scopes is not None:
        return entry.scope is not None and entry.scope in access.scopes
    return access.may(Need.ADMINISTER) or not entry.action.startswith(OF_TOKENS)
