"""/v1/stream: the journal as server-sent events. Its newest entries are read once for all who follow it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from forenotice.control import responses
from forenotice.control.parameters import StreamQuery
from forenotice.core import errors
from forenotice.core.journal import OF_TOKENS, Entry
from forenotice.core.roles import Need
from forenotice.core.selectors import Selector
from forenotice.logs import log
from forenotice.service import views, visibility
from forenotice.service.service import Service
from forenotice.service.tokens import Caller

MOST_FOLLOWERS = 64
"""Operators' connections are 256, and some of them must be left for commands."""
MOST_OF_ONE = 8
"""Of one token."""
PAGE = 200
KEPT = 1000
"""Entries in memory; a reader that is further behind gets them from the store."""
LONGEST_SLEEP = 1.0
HEARTBEAT_SECONDS = 15.0
BEGIN = b": forenotice\nretry: 1000\n\n"
HEARTBEAT = b": alive\n\n"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
BEGINNINGS = frozenset({"group.added", "vm.added"})

_encode = msgspec.json.Encoder(enc_hook=str).encode


@dataclass(frozen=True, slots=True)
class Line:
    """An entry, ready to be sent to those who see everything."""

    position: int
    entry: Entry
    text: bytes
    is_former: bool
    """It belongs to an earlier scope with the same key."""


def line(position: int, entry: Entry, seen: Selector | None = None, *, is_former: bool = False) -> Line:
    data = _encode(views.entry(position, visibility.entry(entry, seen)))
    text = b"id: %d\nevent: %s\ndata: %s\n\n" % (position, entry.action.encode(), data)
    return Line(position, entry, text, is_former)


async def _happens(changed: asyncio.Event, seconds: float) -> bool:
    """Whether it does within that time."""
    try:
        async with asyncio.timeout(max(seconds, 0)):
            await changed.wait()
    except TimeoutError:
        return False
    return True


class Tail:
    """Its thread runs while somebody follows."""

    def __init__(self, service: Service, *, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        self.heartbeat = heartbeat
        self.closed = False
        self._service = service
        self._grown = service.follow_growth()
        self._lock = threading.Lock()
        self._followers: dict[asyncio.Event, tuple[str, asyncio.AbstractEventLoop]] = {}
        self._thread: threading.Thread | None = None
        # All that is behind a position; replaced as a whole, so that the loop reads it without a lock.
        self._known: tuple[int, list[Line]] | None = None

    @contextmanager
    def joined(self, token_id: str) -> Iterator[asyncio.Event]:
        """Gives what is set whenever there is more. For coroutines."""
        changed = asyncio.Event()
        with self._lock:
            if self.closed or len(self._followers) >= MOST_FOLLOWERS:
                raise errors.UnavailableError(f"{MOST_FOLLOWERS} streams are open already: close one, or try again")
            if sum(other == token_id for other, _ in self._followers.values()) >= MOST_OF_ONE:
                raise responses.TooManyError(f"{MOST_OF_ONE} streams of this token are open already: close one")
            self._followers[changed] = token_id, asyncio.get_running_loop()
            if self._thread is None:
                self._known = None
                self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
                self._thread.start()
        try:
            yield changed
        finally:
            with self._lock:
                del self._followers[changed]
            self._grown.set()

    def close(self) -> None:
        """All streams end."""
        self.closed = True
        self._tell()
        self._grown.set()

    async def follow(
        self,
        begin: bytes,
        changed: asyncio.Event,
        caller: Caller,
        is_allowed: Callable[[], bool],
        news: Callable[[], Awaitable[bytes | None]],
        pause: float = 0.0,
    ) -> AsyncIterator[bytes]:
        """A stream of `news`, with a pause after each, which are None while there are none, and empty where all of
        them are somebody else's. It ends when the reader leaves, the token is no longer valid or the server stops."""
        yield begin
        sent_at = monotonic()
        while not self.closed:
            changed.clear()
            text = await news()
            quiet = sent_at + self.heartbeat - monotonic()
            if caller.expires_at is not None:
                quiet = min(quiet, (caller.expires_at - self._service.clock.now()).total_seconds())
            if text is None and await _happens(changed, quiet):
                continue
            if not await run_in_threadpool(is_allowed):
                return
            if text != b"":
                yield text or HEARTBEAT
                sent_at = monotonic()
            if text:
                await asyncio.sleep(pause)

    def after(self, position: int) -> list[Line] | None:
        """What follows a position, as far as one batch goes; None: that is no longer in memory, or not yet."""
        known = self._known
        if known is None or position < known[0]:
            return None
        begin = position - known[0]
        return known[1][begin : begin + PAGE]

    def read(self, position: int) -> tuple[list[Line], bool]:
        """The same from the store, and whether a scope with a reused key was added in it."""
        with self._service.store.read() as reader:
            found = reader.journal.page(after=position, limit=PAGE)
            former = reader.scopes.former({entry.scope for _, entry in found if entry.scope is not None})
        lines = [
            line(number, entry, is_former=entry.scope in former and former[entry.scope].hides(entry.at))
            for number, entry in found
        ]
        return lines, any(entry.action in BEGINNINGS and entry.scope in former for _, entry in found)

    def begin(self, after: int | None, last_event_id: str | None) -> int:
        """The position behind which a stream begins; the header comes first."""
        if last_event_id is not None:
            if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19):
                raise errors.RefusedError("Last-Event-ID is not a position: give the id of the last entry you read")
            after = int(last_event_id)
        newest = self.newest()
        if after is not None and after > newest:
            raise errors.ConflictError(f"the journal ends at {newest}: give that or less", newest=newest)
        return newest if after is None else after

    def newest(self) -> int:
        """The position where the journal ends."""
        with self._service.store.read() as reader:
            last = reader.journal.last()
        return last[0] if last else 0

    def _run(self) -> None:
        while self._goes_on():
            self._grown.clear()
            try:
                while self._catch_up():
                    self._tell()
            except errors.ForenoticeError as error:
                log.warning("Cannot read the journal for streams", action="stream.unavailable", error=str(error))
            except Exception:
                log.exception("Reading the journal for streams failed", action="stream.failed")
            self._grown.wait(LONGEST_SLEEP)

    def _goes_on(self) -> bool:
        with self._lock:
            if self._followers and not self.closed:
                return True
            self._thread = None
            return False

    def _catch_up(self) -> bool:
        """Whether there was more."""
        if self._known is None:
            self._known = (self.newest(), [])
            return True
        since, lines = self._known
        found, succeeded = self.read(since + len(lines))
        # If a key was reused, lines in memory may now belong to the earlier scope.
        kept = found if succeeded else (lines + found)[-KEPT:]
        if found:
            self._known = (found[-1].position - len(kept), kept)
        return bool(found)

    def _tell(self) -> None:
        with self._lock:
            for changed, (_, loop) in self._followers.items():
                loop.call_soon_threadsafe(changed.set)


class EventStream(StreamingResponse):
    """For a slow reader, nothing is kept but the position that it has come to."""

    media_type = "text/event-stream"

    def __init__(
        self, tail: Tail, position: int, query: StreamQuery, caller: Caller, is_allowed: Callable[[], bool]
    ) -> None:
        super().__init__((), headers=HEADERS)
        self._tail, self._position, self._query = tail, position, query
        self._caller, self._is_allowed = caller, is_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._tail.joined(self._caller.id) as changed:
            self.body_iterator = self._tail.follow(BEGIN, changed, self._caller, self._is_allowed, self._news)
            await super().__call__(scope, receive, send)

    async def _news(self) -> bytes | None:
        lines = self._tail.after(self._position)
        if lines is None:
            lines, _ = await run_in_threadpool(self._tail.read, self._position)
        if not lines:
            return None
        self._position = lines[-1].position
        return self._text(lines)

    def _text(self, lines: Sequence[Line]) -> bytes:
        mine = (each for each in lines if self._fits(each.entry))
        seen = self._caller.access.scopes
        if seen is None:
            return b"".join(each.text for each in mine)
        return b"".join(
            line(each.position, each.entry, seen).text
            for each in mine
            if each.entry.scope in seen and not each.is_former
        )

    def _fits(self, entry: Entry) -> bool:
        action, scope, event = self._query.action, self._query.scope, self._query.event
        return (
            (self._caller.access.may(Need.ADMINISTER) or not entry.action.startswith(OF_TOKENS))
            and (action is None or entry.action == action or (action.endswith(".") and entry.action.startswith(action)))
            and scope in (None, entry.scope)
            and (event is None or entry.event == event.upper())
        )
