"""The control plane's application: the gate, the routes, the errors."""

from fastapi import FastAPI

from notbefore import __version__
from notbefore.control import errors
from notbefore.control.auth import Gate
from notbefore.control.metrics import Metrics
from notbefore.control.routes import (
    drivers,
    events,
    fleet,
    groups,
    health,
    history,
    hosts,
    operations,
    rollouts,
    stream,
    subscriptions,
    tokens,
    vms,
)
from notbefore.control.routing import PREFIX, operation_id
from notbefore.control.tail import Tail
from notbefore.service.context import Service


def create(service: Service, metrics: Metrics, tail: Tail | None = None) -> FastAPI:
    app = FastAPI(
        title="notbefore",
        summary="Scheduled Events for virtual machines: the operators' API.",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
    )
    app.state.service = service
    app.state.metrics = metrics
    app.state.tail = tail or Tail(service)
    fleets = (hosts, vms, groups, fleet)
    happenings = (operations, drivers, events, rollouts, history, stream, subscriptions)
    routers = [module.routes for module in (*fleets, *happenings, tokens, health)]
    for router in routers:
        app.include_router(router)
    served = [route for router in routers for route in router.routes]
    errors.install(app, served)
    app.add_middleware(Gate, service=service, routes=served)
    return app
