"""/healthz, /readyz and /metrics: for monitoring, without a token."""

from typing import cast

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from forenotice.control import answers
from forenotice.control.answers import Answer
from forenotice.control.asking import ServiceOf
from forenotice.control.metrics import CONTENT_TYPE, Metrics
from forenotice.core import errors, explaining
from forenotice.service import clocks, upkeep
from forenotice.service.context import Service

log = structlog.get_logger()

routes = APIRouter(tags=["monitoring"], include_in_schema=False)


@routes.get("/healthz")
async def healthz() -> Answer:
    return Answer({"status": "alive"})


@routes.get("/readyz")
def readyz(service: ServiceOf) -> Response:
    """Ready while all threads turn, and the store can be read and written; otherwise 503, like every command."""
    if troubles := upkeep.troubles(service):
        return _unready(service, "; ".join(troubles), errors.UnavailableError(f"Not ready: {'; '.join(troubles)}."))
    try:
        upkeep.require_ready(service)
    except (errors.UnavailableError, errors.UnsoundError) as error:
        # Whoever asks without a token is not told where the store is.
        return _unready(service, error.message, errors.UnavailableError())
    service.unready.over()
    behind = service.clock.behind
    clock = {"clock": explaining.clock_behind(behind)} if behind > clocks.WORTH_TELLING else {}
    return Answer({"status": "ready", **clock})


def _unready(service: Service, reason: str, error: errors.UnavailableError) -> Response:
    if service.unready.again(reason):
        log.warning("Not ready", action="control.unready", reason=reason, times=service.unready.times)
    return answers.refusal(error)


@routes.get("/metrics")
def metrics(request: Request) -> Response:
    found = cast(Metrics, request.app.state.metrics)
    return Response(found.render(), media_type=CONTENT_TYPE)
