"""Who asks, and for what: settled before a route sees the request."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, cast
from urllib.parse import unquote

from fastapi import Depends, Header, Request

from forenotice.control import models
from forenotice.core import errors
from forenotice.core.selectors import Selector
from forenotice.service import tokens
from forenotice.service.calls import Call
from forenotice.service.context import Service
from forenotice.service.tokens import Caller

KEY = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    caller: Caller
    body: bytes
    content_type: str
    """As the client gave it."""
    digest: str
    origin: str
    """The address that it came from."""
    wanted: Callable[[], bool]
    """Whether the client is still connected."""


def digest(method: str, target: bytes, body: bytes) -> str:
    """The same for the same request, so that a key can be held to one."""
    return hashlib.sha256(b"\0".join((method.encode(), target, body))).hexdigest()


async def _service(request: Request) -> Service:
    return cast(Service, request.app.state.service)


async def _asked(request: Request) -> Asked:
    return cast(Asked, request.state.asked)


async def _call(
    asked: Annotated[Asked, Depends(_asked)],
    idempotency_key: Annotated[
        Annotated[str, models.text(KEY.pattern)] | None,
        Header(description="Under the same key the same request takes effect once in 24 hours."),
    ] = None,
    forenotice_reason: Annotated[
        str, Header(description="Why, for the history: percent-encoded UTF-8.", examples=["disk%20swap"])
    ] = "",
) -> Call:
    if idempotency_key is not None and not KEY.fullmatch(idempotency_key):
        raise errors.RefusedError("Idempotency-Key must be 1 to 200 printable ASCII characters without spaces")
    return Call(
        actor=asked.caller.actor,
        token_id=asked.caller.id,
        key=idempotency_key,
        digest=asked.digest,
        origin=asked.origin,
        reason=_reason(forenotice_reason),
        access=asked.caller.access,
        wanted=asked.wanted,
    )


def _reason(given: str) -> str:
    # Percent-encoded, because a header takes no more than ASCII from one end to the other.
    try:
        return models.require_reason(unquote(given.encode("ascii").decode(), errors="strict"))
    except UnicodeError:
        raise errors.RefusedError("Forenotice-Reason must be percent-encoded UTF-8") from None
    except ValueError as error:
        raise errors.RefusedError(str(error)) from None


async def _seen(asked: Annotated[Asked, Depends(_asked)]) -> Selector | None:
    return asked.caller.access.scopes


async def _still_allowed(request: Request) -> Callable[[], bool]:
    service, asked = await _service(request), await _asked(request)
    bearer = request.headers["Authorization"].partition(" ")[2].strip()

    def is_allowed() -> bool:
        try:
            return tokens.authenticate(service, bearer, asked.origin).access.scopes == asked.caller.access.scopes
        except errors.ForenoticeError:
            return False

    return is_allowed


ServiceOf = Annotated[Service, Depends(_service)]
AskedOf = Annotated[Asked, Depends(_asked)]
CallOf = Annotated[Call, Depends(_call)]
SeenOf = Annotated[Selector | None, Depends(_seen)]
"""Whose things whoever asks may see; None: everybody's."""
StillAllowed = Annotated[Callable[[], bool], Depends(_still_allowed)]
"""Whether the token is still valid, for answers that take their time."""
