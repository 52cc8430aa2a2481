"""Who asks, and for what: settled before a route sees the request."""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Header, Request

from notbefore.core import errors
from notbefore.service.calls import Call
from notbefore.service.context import Service
from notbefore.service.tokens import Caller

KEY = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    caller: Caller
    body: bytes
    content_type: str
    """As the client gave it."""
    digest: str


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
        str | None, Header(description="Under the same key the same request takes effect once in 24 hours.")
    ] = None,
) -> Call:
    if idempotency_key is not None and not KEY.fullmatch(idempotency_key):
        raise errors.RefusedError("Idempotency-Key must be 1 to 200 printable ASCII characters without spaces")
    return Call(
        actor=f"operator:{asked.caller.name}", token_id=asked.caller.id, key=idempotency_key, digest=asked.digest
    )


ServiceOf = Annotated[Service, Depends(_service)]
AskedOf = Annotated[Asked, Depends(_asked)]
CallOf = Annotated[Call, Depends(_call)]
