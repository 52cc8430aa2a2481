"""/healthz, /readyz and /metrics: for monitoring, without a token."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import structlog
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from forenotice.control import responses
from forenotice.control.asking import ServiceOf
from forenotice.control.metrics import CONTENT_TYPE, Metrics
from forenotice.control.responses import Answer
from forenotice.core import errors, explanations
from forenotice.service import clocks, upkeep
from forenotice.service.context import Service

log = structlog.get_logger()

T = TypeVar("T")

routes = APIRouter(tags=["monitoring"], include_in_schema=False)


@routes.get("/healthz")
async def healthz() -> Answer:
    return Answer({"status": "alive"})


@routes.get("/readyz")
async def readyz(request: Request, service: ServiceOf) -> Response:
    """Ready while all threads turn, and the store can be read and written; otherwise 503, like every command."""
    found = await _shared(request).look("readyz", partial(_readiness, service))
    return responses.refusal(found) if isinstance(found, errors.UnavailableError) else Answer(found)


@routes.get("/metrics")
async def metrics(request: Request) -> Response:
    found = cast(Metrics, request.app.state.metrics)
    return Response(await _shared(request).look("metrics", found.render), media_type=CONTENT_TYPE)


class Shared:
    """All who ask at the same time share one look, because without a token nobody gets their own thread."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[Any]] = {}

    async def look(self, at: str, take: Callable[[], T]) -> T:
        if at not in self._under_way:
            self._under_way[at] = looking = asyncio.create_task(run_in_threadpool(take))
            looking.add_done_callback(lambda _: self._under_way.pop(at))
        return cast(T, await asyncio.shield(self._under_way[at]))


def _shared(request: Request) -> Shared:
    return cast(Shared, request.app.state.monitoring)


def _readiness(service: Service) -> dict[str, str] | errors.UnavailableError:
    if troubles := upkeep.troubles(service):
        return _unready(service, "; ".join(troubles), errors.UnavailableError(f"Not ready: {'; '.join(troubles)}."))
    try:
        upkeep.require_ready(service)
    except (errors.UnavailableError, errors.UnsoundError) as error:
        # Whoever asks without a token is not told where the store is.
        return _unready(service, error.message, errors.UnavailableError())
    service.unready.over()
    behind = service.clock.behind
    clock = {"clock": explanations.clock_behind(behind)} if behind > clocks.WORTH_TELLING else {}
    return {"status": "ready", **clock}


def _unready(service: Service, reason: str, error: errors.UnavailableError) -> errors.UnavailableError:
    if service.unready.again(reason):
        log.warning("Not ready", action="control.unready", reason=reason, times=service.unready.times)
    return error
