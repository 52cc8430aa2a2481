"""/v1/stream: the journal as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic
from typing import Annotated, cast

from fastapi import Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from forenotice.control.asking import AskedOf, ServiceOf, StillAllowed
from forenotice.control.routing import Word, needs, router
from forenotice.control.tail import Line, Tail, happens, line
from forenotice.core import errors
from forenotice.core.journal import OF_TOKENS, Entry
from forenotice.core.roles import Need
from forenotice.service.context import Service
from forenotice.service.tokens import Caller

BEGIN = b": forenotice\nretry: 1000\n\n"
HEARTBEAT = b": alive\n\n"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Wanted = Callable[[Entry], bool]

routes = router("history")


class EventStream(StreamingResponse):
    """Ends when whoever reads it leaves, when the token is no longer valid, or when the server stops.

    A reader who is slow is waited for, and meanwhile nothing is kept for it but the position that it has come to.
    """

    media_type = "text/event-stream"

    def __init__(
        self, tail: Tail, position: int, wanted: Wanted, caller: Caller, is_allowed: Callable[[], bool]
    ) -> None:
        super().__init__((), headers=HEADERS)
        self._tail = tail
        self._position = position
        self._wanted = wanted
        self._caller = caller
        self._seen = caller.access.scopes
        self._is_allowed = is_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._tail.joined(self._caller.id) as changed:
            self.body_iterator = self._told(changed)
            await super().__call__(scope, receive, send)

    async def _told(self, changed: asyncio.Event) -> AsyncIterator[bytes]:
        yield BEGIN
        said = monotonic()
        while not self._tail.closed:
            changed.clear()
            lines = self._tail.after(self._position)
            if lines is None:
                lines = await run_in_threadpool(self._tail.read, self._position)
            quiet = min(said + self._tail.heartbeat - monotonic(), self._tail.seconds_until(self._caller.expires_at))
            if not lines and await happens(changed, quiet):
                continue
            if not await run_in_threadpool(self._is_allowed):
                return
            text = self._text(lines) if lines else HEARTBEAT
            self._position = lines[-1].position if lines else self._position
            if text:
                yield text
                said = monotonic()

    def _text(self, lines: Sequence[Line]) -> bytes:
        mine = (each for each in lines if self._wanted(each.entry))
        if self._seen is None:
            return b"".join(each.text for each in mine)
        return b"".join(
            line(each.position, each.entry, self._seen).text
            for each in mine
            if each.entry.scope in self._seen and not each.is_former
        )


@routes.get("/stream", status_code=200, response_class=EventStream)
@needs(Need.SEE)
def stream_history(
    request: Request,
    service: ServiceOf,
    asked: AskedOf,
    is_allowed: StillAllowed,
    last_event_id: Annotated[str | None, Header(description="The position of the last entry that was read.")] = None,
    after: Annotated[int | None, Query(ge=0, le=2**63 - 1, description="The same; the header goes first.")] = None,
    action: Annotated[Word | None, Query(description="Such as `event.approved`; `event.` means all of them.")] = None,
    scope: Annotated[Word | None, Query(description="`group:NAME` or `vm:NAME`.")] = None,
    event: Annotated[Word | None, Query()] = None,
) -> EventStream:
    """What happens, as it happens: each entry of the history behind a position, or from now on."""
    position = _position(service, after if last_event_id is None else _number(last_event_id))

    administers = asked.caller.access.may(Need.ADMINISTER)

    def wanted(entry: Entry) -> bool:
        return (
            (administers or not entry.action.startswith(OF_TOKENS))
            and (action is None or entry.action == action or (action.endswith(".") and entry.action.startswith(action)))
            and scope in (None, entry.scope)
            and (event is None or entry.event == event.upper())
        )

    return EventStream(cast(Tail, request.app.state.tail), position, wanted, asked.caller, is_allowed)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise errors.RefusedError("Last-Event-ID is not a position: give the id of the last entry that was read")
    return int(text)


def _position(service: Service, given: int | None) -> int:
    with service.store.read() as reader:
        last = reader.journal.last()
    newest = last[0] if last else 0
    if given is not None and given > newest:
        raise errors.ConflictError(f"the journal ends at {newest}: give that or less", newest=newest)
    return newest if given is None else given
