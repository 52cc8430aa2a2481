"""The concurrency limit as a dependency of routes."""

from collections.abc import AsyncIterator
from typing import Annotated, cast

from fastapi import Depends, Request

from forenotice.control.limits import ConcurrencyLimit


async def _limited(request: Request) -> AsyncIterator[None]:
    async with cast(ConcurrencyLimit, request.app.state.expensive).slot():
        yield


Expensive = Annotated[None, Depends(_limited)]
