"""The page's application: its one page, its forms, its files, and /live."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from forenotice.control import requests
from forenotice.control import responses as control_responses
from forenotice.core import errors
from forenotice.emulator.control.app import Controller
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.portal import actions, page
from forenotice.emulator.portal.actions import FORMS
from forenotice.emulator.portal.page import Choice
from forenotice.logs import log
from forenotice.portal import csrf, forms, responses
from forenotice.portal.forms import Fields
from forenotice.portal.renderer import PLACE, Assets, Renderer, form_key
from forenotice.portal.responses import HEADERS

HOME = "/"
CHOSEN = {"scenario": 200, "resources": 2000, "vm": 100, "api-version": 20}
"""What the page's address may say, and how long each may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One look at the page, as templates know it."""

    position: str
    now: datetime
    at: str
    form_token: str
    form_key: str
    """Of all forms of this look; each is carried out once as it is filled in."""
    message: str
    query: str
    """The choices, for the forms to lead back to."""


class Pages:
    """There is no token: forms must come from this page and this process."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._rendering = Renderer(Assets(), "forenotice.emulator.portal", now=controller.emulator.clock.now)
        self._form_token = secrets.token_hex(16)
        self._results = FormResults()
        self.live = Live(controller.emulator)
        self._router = Router(
            [
                Route(HOME, partial(self._answered, self._show), methods=["GET"]),
                Route("/live", partial(self._answered, self.live.answer), methods=["GET"]),
                Route(PLACE + "/{version}/{name}", partial(self._answered, self._file), methods=["GET"]),
                *(Route(path, partial(self._answered, self._act), methods=["GET", "POST"]) for path in FORMS),
            ],
            redirect_slashes=False,
            default=self._missing,
        )

    def take(self, scope: Scope) -> bool:
        """Whether a page responds; browsers also get a page for a path that does not exist."""
        path: str = scope["path"]
        if path in (HOME, "/live") or path in FORMS or path.startswith(f"{PLACE}/"):
            return True
        return (
            scope["method"] == "GET"
            and not path.startswith("/v1")
            and b"text/html" in requests.header(scope["headers"], b"accept")
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # With an app in its scope, the router raises what it refuses.
            await self._router({**scope, "app": self}, receive, send)
        except HTTPException as refusal:
            # The router's: this path has another method.
            answer = self._failure(refusal.status_code, f"{scope['method']} is not what {scope['path']} is for")
            answer.headers.update({**HEADERS, **(refusal.headers or {})})
            await answer(scope, receive, send)

    async def _answered(self, answer: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        try:
            found = await answer(request)
        except errors.ForenoticeError as error:
            found = self._failure(control_responses.status_of(error), error.message)
        except Exception as error:
            log.error("A page failed", action="emulator.page_failed", path=request.url.path, exc_info=error)
            found = self._failure(500, "this is a defect: see the emulator's log")
        for name, value in HEADERS.items():
            found.headers.setdefault(name, value)
        return found

    async def _show(self, request: Request) -> Response:
        answer = await run_in_threadpool(self._page, request)
        if responses.message(request):
            responses.delete_cookie(answer, responses.name("message", request))
        return answer

    async def _act(self, request: Request) -> Response:
        query = _query(request)
        if request.method != "POST":
            # The page that refused a form is reloaded.
            return RedirectResponse(f"{HOME}{query}", 303)
        body, form = await forms.read(request)
        csrf.require_own(request.headers, form.get("form_token", ""), self._form_token)
        try:
            do = partial(FORMS[request.url.path].act, self._controller, form)
            key = form.get("form_key") and f"{request.url.path} {hashlib.sha256(body).hexdigest()}"
            message = await self._results.once(key or "", do)
        except (errors.RefusedError, errors.NotFoundError, errors.ConflictError) as error:
            return await run_in_threadpool(self._page, request, form, error)
        answer = RedirectResponse(f"{HOME}{query}{actions.fragment(request.url.path, form)}", 303)
        responses.set_message(answer, responses.name("message", request), message)
        return answer

    async def _file(self, request: Request) -> Response:
        assets = self._rendering.assets
        found = assets.answer(request.path_params["version"], request.path_params["name"])
        return found or Response(status_code=404)

    async def _missing(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def refuse(request: Request) -> Response:
            raise errors.NotFoundError(f"there is no page {request.url.path}")

        answer = await self._answered(refuse, Request(scope, receive))
        await answer(scope, receive, send)

    def _page(
        self, request: Request, form: Fields | None = None, refusal: errors.ForenoticeError | None = None
    ) -> Response:
        emulator = self._controller.emulator
        given = form or forms.NO_FIELDS
        choice = Choice(
            scenario=given.get("scenario", _chosen(request, "scenario")),
            resources=_chosen(request, "resources"),
            vm=_chosen(request, "vm"),
            version=_chosen(request, "api-version"),
        )
        visit = Visit(
            position=position(emulator),
            now=emulator.clock.now() - emulator.clock.ahead,
            at=HOME,
            form_token=self._form_token,
            form_key=form_key(),
            message=responses.message(request),
            query=_query(request),
        )
        context = page.shown(self._controller, choice)
        text = self._rendering.page(
            "emulator.html",
            visit=visit,
            given=form or {},
            refused_at=request.url.path if refusal else "",
            error=refusal.message if refusal else "",
            **context,
        )
        return HTMLResponse(text, control_responses.status_of(refusal) if refusal else 200)

    def _failure(self, status: int, message: str) -> Response:
        return HTMLResponse(
            self._rendering.page("error.html", code=status, message=message, visit=None, back=""), status
        )


def _chosen(request: Request, name: str) -> str:
    return request.query_params.get(name, "")[: CHOSEN[name]]


def _query(request: Request) -> str:
    found = {name: text for name in CHOSEN if (text := _chosen(request, name))}
    return f"?{urlencode(found)}" if found else ""


LOOK_SECONDS = 0.25
ALIVE_SECONDS = 15.0
LINE_SECONDS = 10.0
"""Before speed divides them."""
MOST_FOLLOWED = 32
"""Pages that are followed at a time."""


def position(emulator: Emulator) -> str:
    """Another one whenever something looks different, but for time that passes."""
    return emulator.look(lambda: hashlib.sha256(repr(_looks(emulator)).encode()).hexdigest()[:16])


def _looks(emulator: Emulator) -> tuple[object, ...]:
    simulation, player, clock = emulator.simulation, emulator.player, emulator.clock
    return (
        (id(simulation), simulation.scope.incarnation, len(simulation.entries), emulator.as_vm),
        player and (player.played, player.waiting_for, len(player.deviations)),
        [(each.fault.name, each.times, each.until) for each in emulator.faults.active],
        len(emulator.requests),
        clock.now() if clock.stands else round(clock.ahead.total_seconds()),
        None if clock.stands or emulator.due is None else _tick(emulator),
    )


def _tick(emulator: Emulator) -> int:
    """While something is to come, the line of now moves on: seen from afar every few seconds are enough."""
    seconds = max(LINE_SECONDS / emulator.timing.speed, 1.0)
    return int(emulator.clock.now().timestamp() / seconds)


class Live:
    def __init__(self, emulator: Emulator, alive: float = ALIVE_SECONDS) -> None:
        """`alive` is after how many seconds without a change a comment is sent."""
        self._emulator = emulator
        self._alive = alive
        self._followed = 0
        self._ending = asyncio.Event()

    def end(self) -> None:
        """End all streams."""
        self._ending.set()

    async def answer(self, request: Request) -> Response:
        if self._followed >= MOST_FOLLOWED:
            raise errors.UnavailableError(f"{MOST_FOLLOWED} pages are followed already: close some of them")
        return _Changes(self, request.query_params.get("after", ""))

    async def stream(self, before: str) -> AsyncGenerator[bytes, None]:
        self._followed += 1
        try:
            yield b"retry: 1000\n\n"
            quiet = 0.0
            while not self._ending.is_set():
                now = await run_in_threadpool(position, self._emulator)
                if now != before:
                    before, quiet = now, 0.0
                    yield b"id: %b\ndata: changed\n\n" % now.encode()
                elif quiet >= self._alive:
                    quiet = 0.0
                    yield b": alive\n\n"
                quiet += LOOK_SECONDS
                await self._pause()
        finally:
            self._followed -= 1

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._ending.wait()
        except TimeoutError:
            pass


class _Changes(StreamingResponse):
    media_type = "text/event-stream"

    def __init__(self, live: Live, after: str) -> None:
        super().__init__((), headers={"X-Accel-Buffering": "no"})
        self._live = live
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = self._live.stream(self._after)
        self.body_iterator = stream
        try:
            await super().__call__(scope, receive, send)
        finally:
            await stream.aclose()


MOST_FORMS = 1000
"""Forms that are remembered."""


class FormResults:
    """On one loop."""

    def __init__(self) -> None:
        self._known: dict[str, asyncio.Task[str]] = {}
        """By the key of the form, oldest first."""

    async def once(self, key: str, do: Callable[[], str]) -> str:
        """The message or the error of the first time; a form without a key is carried out each time."""
        task = self._known.get(key)
        if task is None:
            task = asyncio.create_task(run_in_threadpool(do))
            if key:
                self._known[key] = task
                if len(self._known) > MOST_FORMS:
                    del self._known[next(iter(self._known))]
        return await asyncio.shield(task)
