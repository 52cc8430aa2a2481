"""What all our REST APIs share at their entry: errors in one shape, and bodies bounded in size and time."""

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping
from typing import TypeVar

import anyio
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forenotice.control import responses
from forenotice.core import errors
from forenotice.wire import host_header

T = TypeVar("T")

Headers = Iterable[tuple[bytes, bytes]]

PRIVATE: Mapping[str, str] = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Default headers of every answer: no caches, no content sniffing."""
ASK_FOR = "use localhost, an address or a name that `forenotice serve` has in --control-name"
BODY_SECONDS = 30.0
"""For a body as a whole, and longer only for what has come: a second for so many bytes."""
BYTES_A_SECOND = 256 * 1024


async def guarded(enter: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Turn what the application raises into a response, unless one is under way."""
    if scope["type"] != "http":
        return
    started = False

    async def private(message: Message) -> None:
        nonlocal started
        started = True
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in PRIVATE.items():
                headers.setdefault(name, value)
        await send(message)

    try:
        await enter(scope, receive, private)
    except Exception as error:
        # The framework wraps what comes too late for an answer of its own; the one under way is broken off.
        cause = error.__cause__ if started and isinstance(error, RuntimeError) else error
        if isinstance(cause, errors.ForenoticeError):
            answer = responses.logged_refusal(scope["method"], scope["path"], cause)
        else:
            answer = responses.defect(scope["method"], scope["path"], error)
        if not started:
            await answer(scope, receive, private)


def header(headers: Headers, wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")


def origin(scope: Scope) -> str:
    """The client's address."""
    return scope["client"][0] if scope.get("client") else ""


def require_host(headers: Headers, names: Collection[str], remedy: str) -> None:
    """Refuses DNS rebinding. A request without Host passes: browsers always send it, health checks may not."""
    for given in (value.decode("latin-1") for name, value in headers if name == b"host"):
        if not host_header.is_allowed(given, names):
            raise errors.RefusedError(f"{given[:80]!r} in the Host header is not a name of this service: {remedy}")


class KnownHosts:
    """Checks Host in front of an application without TLS, where no certificate protects against DNS rebinding."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # A unix socket has no port, and no web page reaches it. A connection that is gone has neither.
            if scope["server"] is None or scope["server"][1] is not None:
                require_host(scope["headers"], self._names, ASK_FOR)
        except errors.RefusedError as error:
            await guarded(responses.refusal(error), scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def read(headers: Headers, receive: Receive, largest: int) -> bytes:
    """The whole body."""
    length = header(headers, b"content-length")
    if length.isdigit() and int(length) > largest:
        raise _too_large(largest)
    end = asyncio.get_running_loop().time() + BODY_SECONDS
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout_at(end) as limit:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise errors.RefusedError("the request ended before its body did")
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size > largest:
                    raise _too_large(largest)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
                limit.reschedule(end + size / BYTES_A_SECOND)
    except TimeoutError:
        raise responses.TooSlowError("the body came too slowly: send it at once, or over a faster line") from None


class Presence:
    """Whether the client of a request is still connected."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = asyncio.Event()
        self.answering = False
        """An answer has begun: its sender notices by itself if the client leaves."""

    def waits(self) -> bool:
        """For any thread."""
        return not self._left.is_set()

    async def during(self, work: Awaitable[T]) -> T | None:
        """Run the work; None: cancelled, because the client disconnected before an answer had begun."""
        with anyio.CancelScope() as scope:
            watching = asyncio.create_task(self._watch(scope))
            try:
                return await work
            finally:
                watching.cancel()
        return None

    async def receive(self) -> Message:
        """Replaces the request's own `receive`, which `_watch` is reading."""
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _watch(self, scope: anyio.CancelScope) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left.set()
        if not self.answering:
            scope.cancel()


def replay(body: bytes, receive: Receive) -> Receive:
    """For whoever comes after the one who has read it."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _too_large(largest: int) -> responses.TooLargeError:
    return responses.TooLargeError(f"the body is too large: at most {largest // 1024 // 1024} MiB are read here")
