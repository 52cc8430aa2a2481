"""/healthz, /readyz and /metrics: for monitoring, without a token."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from forenotice.control import responses
from forenotice.control.metrics import CONTENT_TYPE, Metrics
from forenotice.control.responses import JsonResponse
from forenotice.control.router import Route
from forenotice.core import errors, explanations
from forenotice.service import clocks, housekeeping
from forenotice.service.service import Service

log = structlog.get_logger()

T = TypeVar("T")


class Monitoring:
    """All who ask at the same time share one look, because without a token nobody gets their own thread."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self.service = service
        self.metrics = metrics
        self._under_way: dict[str, asyncio.Task[Any]] = {}

    async def look(self, at: str, take: Callable[[], T]) -> T:
        if at not in self._under_way:
            self._under_way[at] = looking = asyncio.create_task(run_in_threadpool(take))
            looking.add_done_callback(lambda _: self._under_way.pop(at))
        return cast(T, await asyncio.shield(self._under_way[at]))


async def healthz(_: Monitoring) -> Response:
    return JsonResponse({"status": "alive"})


async def readyz(monitoring: Monitoring) -> Response:
    """Ready while all threads turn, and the store can be read and written; otherwise 503, like every command."""
    found = await monitoring.look("readyz", partial(_readiness, monitoring.service))
    return responses.refusal(found) if isinstance(found, errors.UnavailableError) else JsonResponse(found)


async def metrics(monitoring: Monitoring) -> Response:
    return Response(await monitoring.look("metrics", monitoring.metrics.render), media_type=CONTENT_TYPE)


ROUTES = tuple(
    Route("GET", f"/{handler.__name__}", None, handler, described=False) for handler in (healthz, readyz, metrics)
)


def _readiness(service: Service) -> dict[str, str] | errors.UnavailableError:
    if problems := housekeeping.problems(service):
        return _unready(service, "; ".join(problems), errors.UnavailableError(f"Not ready: {'; '.join(problems)}."))
    try:
        housekeeping.require_ready(service)
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
