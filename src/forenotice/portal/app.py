"""The portal's application: its pages, its files, and behind them the API."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from forenotice.control.routing import PREFIX
from forenotice.core import errors
from forenotice.core.roles import Need
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
from forenotice.service.context import Service

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
    api: FastAPI,
    service: Service,
    *,
    once: SignInLink | None = None,
    polled: Polled = lambda _: None,
    guests_at: str | None = None,
) -> ASGIApp:
    """The portal in front of the API; `polled` says when a VM was last heard here."""
    rendering = Renderer(Assets(), PLACES=PLACES, now=service.clock.now)
    portal = Portal(
        service=service,
        rendering=rendering,
        limits=api.state.limits,
        refusals=api.state.refusals,
        expensive=api.state.expensive,
        polled=polled,
        guests_at=guests_at or GUESTS_AT,
    )
    dispatcher = Dispatcher(portal)
    routes: list[BaseRoute] = [_route(dispatcher, declared) for declared in DECLARED]
    routes += SignIn(dispatcher, once).routes
    routes.append(Route("/live", Live(dispatcher, api.state.tail), methods=["GET"]))
    routes.append(Route(PLACE + "/{version}/{name}", partial(_file, dispatcher, rendering.assets), methods=["GET"]))
    return Router(routes, redirect_slashes=False, default=_Otherwise(dispatcher, api))


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
    """Paths that no page has: the API's, and for people who mistyped one a page that says so."""

    def __init__(self, dispatcher: Dispatcher, api: FastAPI) -> None:
        self._dispatcher = dispatcher
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        by_person = scope["method"] == "GET" and "text/html" in request.headers.get("accept", "")
        if by_person and not scope["path"].startswith(PREFIX) and not self._is_known(scope):
            answer = await self._dispatcher.answered(request, _missing)
            await answer(scope, receive, send)
        else:
            await self._api(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        # Matching writes into the scope, which the API is to have as it came.
        return any(route.matches(dict(scope))[0] is not Match.NONE for route in self._api.routes)


async def _missing(request: Request) -> Response:
    raise errors.NotFoundError(f"there is no page {request.url.path}")
