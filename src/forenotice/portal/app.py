"""The portal's application: its pages and its files, beside the API."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from forenotice.control.app import Api, serves
from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.portal import progress_bar
from forenotice.portal.dispatch import Dispatcher
from forenotice.portal.live import Live
from forenotice.portal.page import GUESTS_AT, Declared, Portal
from forenotice.portal.pages import (
    act,
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

ROOMS = (act, events, fleet, history, now, rollout_plan, rollouts, subscriptions, tokens)
DECLARED: Sequence[Declared] = [declared for room in ROOMS for declared in room.pages.declared]


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
    """The portal beside the API; `polled` says when a VM was last heard here."""
    rendering = Renderer(
        Assets(), PLACES=PLACES, now=service.clock.now, rollout_title=rollouts.title, meter=progress_bar.meter
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
    routes: list[BaseRoute] = [_route(dispatcher, declared) for declared in DECLARED]
    routes += SignIn(dispatcher, once).routes
    routes.append(Route("/live", Live(dispatcher, api.tail), methods=["GET"]))
    routes.append(Route(PLACE + "/{version}/{name}", partial(_file, dispatcher, rendering.assets), methods=["GET"]))
    pages = Router(routes, redirect_slashes=False, default=_Otherwise(dispatcher, api))

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        await (api if serves(scope.get("path", "")) else pages)(scope, receive, send)

    return dispatch


def _route(dispatcher: Dispatcher, declared: Declared) -> Route:
    return Route(declared.path, _Page(dispatcher, declared), methods=[declared.method])


class _Page:
    def __init__(self, dispatcher: Dispatcher, declared: Declared) -> None:
        self._dispatcher = dispatcher
        self._declared = declared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._dispatcher.visited(self._declared, Request(scope, receive), send)


async def _file(dispatcher: Dispatcher, assets: Assets, request: Request) -> Response:
    async def answer(request: Request) -> Response:
        found = assets.answer(request.path_params["version"], request.path_params["name"])
        return found or await _missing(request)

    return await dispatcher.answered(request, answer)


class _Otherwise:
    """Paths that nobody has: for people who mistyped one a page that says so, for programs the API's error."""

    def __init__(self, dispatcher: Dispatcher, api: Api) -> None:
        self._dispatcher = dispatcher
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if scope["method"] == "GET" and "text/html" in request.headers.get("accept", ""):
            response = await self._dispatcher.answered(request, _missing)
            await response(scope, receive, send)
        else:
            await self._api(scope, receive, send)


async def _missing(request: Request) -> Response:
    raise errors.NotFoundError(f"there is no page {request.url.path}")
