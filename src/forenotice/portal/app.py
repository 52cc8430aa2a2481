"""The portal's application: its pages and its files, beside the API."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from forenotice.control.app import Api, serves
from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.portal.live import Live
from forenotice.portal.page import GUESTS_AT, Dispatcher, Endpoint, Page, Portal
from forenotice.portal.pages import (
    act,
    edges,
    events,
    fleet,
    history,
    now,
    rollout_plan,
    rollouts,
    subscriptions,
    tokens,
)
from forenotice.portal.pages.sign_in import SignIn, SignInLink
from forenotice.portal.renderer import PLACE, Assets, Renderer
from forenotice.service.service import Service

MODULES = (act, edges, events, fleet, history, now, rollout_plan, rollouts, subscriptions, tokens)
DECLARED: Sequence[Page] = [page for module in MODULES for page in module.pages.declared]
PLACES = (
    ("Now", "/", Need.SEE),
    ("Fleet", "/fleet", Need.SEE),
    ("Act", "/act", Need.OPERATE),
    ("Rollouts", "/rollouts", Need.OVERSEE),
    ("History", "/history", Need.SEE),
    ("Subscriptions", "/subscriptions", Need.OVERSEE),
    ("Tokens", "/tokens", Need.ADMINISTER),
)
"""What the head of every page leads to, for those who may go there."""

Polled = Callable[[str], datetime | None]


def beside(
    api: Api,
    service: Service,
    *,
    once: SignInLink | None = None,
    polled: Polled = lambda _: None,
    guests_at: str | None = None,
) -> ASGIApp:
    """The portal beside the API; `polled` says when a VM last polled here."""
    rendering = Renderer(
        Assets(), PLACES=PLACES, now=service.clock.now, rollout_title=rollouts.title, meter=rollouts.meter
    )
    portal = Portal(
        service=service,
        rendering=rendering,
        limits=api.limits,
        refusals=api.refusals,
        expensive=api.expensive,
        polled=polled,
        guests_at=guests_at or GUESTS_AT,
    )
    dispatcher = Dispatcher(portal)
    routes = [
        *map(dispatcher.page, DECLARED),
        *SignIn(dispatcher, once).routes,
        dispatcher.route("GET", "/live", Live(dispatcher, api.tail).follow),
        dispatcher.route("GET", PLACE + "/{version}/{name}", partial(_file, rendering.assets)),
    ]
    missing = Endpoint(dispatcher, _missing)

    async def otherwise(scope: Scope, receive: Receive, send: Send) -> None:
        # For people who mistyped a path a page that says so, for programs the API's error.
        is_page = scope["method"] == "GET" and "text/html" in Request(scope).headers.get("accept", "")
        await (missing if is_page else api)(scope, receive, send)

    pages = Router(routes, redirect_slashes=False, default=otherwise)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        await (api if serves(scope.get("path", "")) else pages)(scope, receive, send)

    return dispatch


async def _file(assets: Assets, held: ExitStack, request: Request) -> Response:
    found = assets.answer(request.path_params["version"], request.path_params["name"])
    return found or await _missing(held, request)


async def _missing(_: ExitStack, request: Request) -> Response:
    raise errors.NotFoundError(f"there is no page {request.url.path}")
