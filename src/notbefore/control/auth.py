"""The gate of /v1: a valid token first, then a body of bounded size, then the routes."""

from collections.abc import Iterable

from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from notbefore.control import answers
from notbefore.control.asking import Asked, digest
from notbefore.control.errors import refused, unexpected
from notbefore.core import errors
from notbefore.service import tokens
from notbefore.service.context import Service

PREFIX = "/v1"
FLEET = "/v1/fleet"
LARGEST = 4 * 1024 * 1024
LARGEST_FLEET = 64 * 1024 * 1024

SCHEME = HTTPBearer(auto_error=False, description="A token that `notbefore token create` made.")
"""Only tells the API's description; the gate is what enforces it."""


class Gate:
    """Lets nobody without a token learn anything, not even which paths exist."""

    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._enter(scope, receive, watched)
        except errors.NotbeforeError as error:
            await refused(scope["method"], scope["path"], error)(scope, receive, send)
        except Exception as error:
            answer = unexpected(scope["method"], scope["path"], error)
            if not started:
                await answer(scope, receive, send)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path != PREFIX and not path.startswith(PREFIX + "/"):
            await self._app(scope, receive, send)
            return
        bearer = _bearer(scope["headers"])
        caller = await run_in_threadpool(tokens.authenticate, self._service, bearer)
        body = await _read(scope["headers"], receive, LARGEST_FLEET if path == FLEET else LARGEST)
        target = scope["raw_path"] + b"?" + scope["query_string"]
        asked = Asked(
            caller=caller,
            body=body,
            content_type=_header(scope["headers"], b"content-type").decode("latin-1"),
            digest=digest(scope["method"], target, body),
        )
        scope = {**scope, "headers": _as_json(scope["headers"]), "state": {**scope.get("state", {}), "asked": asked}}
        if path == FLEET:
            # Its route takes the bytes as they are; nobody else needs to hold them.
            body = b""
        await self._app(scope, _replay(body, receive), send)


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> str:
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise errors.UnauthorizedError("a token is needed: send the header Authorization: Bearer TOKEN")
    return token.strip()


def _as_json(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    # Whatever a client calls it (curl says it is a form), a body is JSON or it is refused.
    return [*(header for header in headers if header[0] != b"content-type"), (b"content-type", b"application/json")]


def _header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")


async def _read(headers: Iterable[tuple[bytes, bytes]], receive: Receive, largest: int) -> bytes:
    length = _header(headers, b"content-length")
    if length.isdigit() and int(length) > largest:
        raise _too_large(largest)
    chunks: list[bytes] = []
    size = 0
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


def _too_large(largest: int) -> answers.TooLargeError:
    return answers.TooLargeError(f"the body is too large: at most {largest // 1024 // 1024} MiB are read here")


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
