"""The control plane's application: the gate, the routes, the errors."""

from fastapi import FastAPI

from forenotice import __version__
from forenotice.control import errors
from forenotice.control.authentication import Gate
from forenotice.control.describing import Described
from forenotice.control.limits import ConcurrencyLimit, TokenLimits
from forenotice.control.metrics import Metrics
from forenotice.control.refusals import Refusals
from forenotice.control.routes import (
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
from forenotice.control.routing import PREFIX, operation_id
from forenotice.control.tail import Tail
from forenotice.service.context import Service

FLEET = (hosts, vms, groups, fleet)
HAPPENING = (operations, drivers, events, rollouts, history, stream, subscriptions)
ROUTERS = [module.routes for module in (*FLEET, *HAPPENING, tokens, health)]
SERVED = [route for router in ROUTERS for route in router.routes]


def described() -> Described:
    """All routes, with nothing behind them: enough to say what there is."""
    app = Described(
        title="forenotice",
        summary="Scheduled Events for virtual machines: the operators' API.",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
    )
    for router in ROUTERS:
        app.include_router(router)
    return app


def create(service: Service, metrics: Metrics, tail: Tail | None = None, *, token_rate: float | None = None) -> FastAPI:
    app = described()
    app.state.service = service
    app.state.metrics = metrics
    app.state.tail = tail or Tail(service)
    app.state.expensive = ConcurrencyLimit()
    app.state.monitoring = health.Shared()
    app.state.limits = limits = TokenLimits(token_rate)
    app.state.refusals = refusals = Refusals(service.telemetry)
    errors.install(app, SERVED)
    app.add_middleware(Gate, service=service, routes=SERVED, limits=limits, refusals=refusals)
    return app
