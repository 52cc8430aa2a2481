"""The page's application: its one page, its forms, its files, and /live."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import timedelta
from functools import partial
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from forenotice.control import requests
from forenotice.control import responses as control_responses
from forenotice.core import errors
from forenotice.emulator.api import Controller
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.portal import page
from forenotice.logs import log
from forenotice.portal import forms, responses
from forenotice.portal.forms import Fields
from forenotice.portal.renderer import PLACE, Assets, Renderer, form_key
from forenotice.views import emulator as views

HOME, LIVE = "/", "/live"
CHOSEN = {"scenario": 200, "resources": 2000, "vm": 100, "api-version": 20}
"""What the page's address may say, and how long each may be."""
MOST_FORMS = 1000


class Pages:
    """There is no token: forms must come from this page and this process."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._rendering = Renderer(Assets(), "forenotice.emulator.portal", now=controller.emulator.clock.now)
        self._form_token = secrets.token_hex(16)
        self._results = FormResults()
        self.live = Live(controller.emulator)

    def take(self, scope: Scope) -> bool:
        """Whether a page responds; browsers also get a page for a path that does not exist."""
        path: str = scope["path"]
        if path in (HOME, LIVE) or path in FORMS or path.startswith(f"{PLACE}/"):
            return True
        return (
            scope["method"] == "GET"
            and not path.startswith("/v1")
            and b"text/html" in requests.header(scope["headers"], b"accept")
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._respond(request, request.url.path)
        except errors.ForenoticeError as error:
            response = self._failure(control_responses.status_of(error), error.message)
            if isinstance(error, control_responses.MethodNotAllowedError):
                response.headers["Allow"] = error.allowed
        except Exception as error:
            log.error("A page failed", action="emulator.page_failed", path=request.url.path, exc_info=error)
            response = self._failure(500, "this is a defect: see the emulator's log")
        for name, value in responses.HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _respond(self, request: Request, path: str) -> Response:
        allowed = ("GET", "HEAD", "POST") if path in FORMS else ("GET", "HEAD")
        if request.method not in allowed:
            raise control_responses.MethodNotAllowedError(request.method, allowed)
        if path in FORMS:
            return await self._act(request)
        if path == LIVE:
            return self.live.respond(request)
        if path.startswith(f"{PLACE}/"):
            version, _, name = path.removeprefix(f"{PLACE}/").partition("/")
            return self._rendering.assets.answer(version, name) or Response(status_code=404)
        if path != HOME:
            raise errors.NotFoundError(f"there is no page {path}")
        response = await run_in_threadpool(self._page, request)
        if responses.message(request):
            responses.delete_cookie(response, responses.name("message", request))
        return response

    async def _act(self, request: Request) -> Response:
        query, path = _query(request), request.url.path
        if request.method != "POST":
            # The page that refused a form is reloaded.
            return RedirectResponse(f"{HOME}{query}", 303)
        body, form = await forms.read(request)
        forms.require_own(request.headers, form.get("form_token", ""), self._form_token)
        try:
            act, pressed = FORMS[path]
            key = form.get("form_key") and f"{path} {hashlib.sha256(body).hexdigest()}"
            message = await self._results.once(key or "", partial(act, self._controller, form))
        except (errors.RefusedError, errors.NotFoundError, errors.ConflictError) as error:
            return await run_in_threadpool(self._page, request, form, error)
        # Keyboard users go on from the button that they have pressed, or from where it was.
        button = pressed.format_map({"by": "", "how": "play", "name": "", **form})
        fragment = f"#{button}" if button.replace("-", "").isalnum() and button.isascii() else ""
        response = RedirectResponse(f"{HOME}{query}{fragment}", 303)
        responses.set_message(response, responses.name("message", request), message)
        return response

    def _page(
        self, request: Request, form: Fields | None = None, refusal: errors.ForenoticeError | None = None
    ) -> Response:
        clock = self._controller.emulator.clock
        chosen = {name: _chosen(request, name) for name in CHOSEN}
        if form and "scenario" in form:
            chosen["scenario"] = form["scenario"]
        text = self._rendering.page(
            "emulator.html",
            visit={
                "position": position(self._controller.emulator),
                "now": clock.now() - clock.ahead,
                "at": HOME,
                "form_token": self._form_token,
                # Of all forms of this look; each is carried out once as it is filled in.
                "form_key": form_key(),
                "message": responses.message(request),
                # For the forms to lead back to.
                "query": _query(request),
            },
            given=form or {},
            refused_at=request.url.path if refusal else "",
            error=refusal.message if refusal else "",
            **page.shown(self._controller, chosen),
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


# What the forms do: a function each, which returns a sentence for the user


def _play(controller: Controller, form: Fields) -> str:
    wanted: dict[str, object] = {"scenario": form.get("scenario", ""), "resources": page.names(form.get("resources"))}
    own = controller.own.get(form.get("scenario", ""))
    if own is not None:
        wanted |= {"scenario": own.text.content, "source": own.text.source}
    paused = form.get("how") == "step"
    scenario = controller.play(forms.asked(views.Play, wanted), paused=paused)
    how = ", and the clock stands: press Step for what comes next" if paused else ""
    return f"{scenario.title} has begun{how}."


def _step(controller: Controller, _: Fields) -> str:
    before = controller.emulator.clock.now()
    minutes, seconds = divmod(round((controller.emulator.step() - before).total_seconds()), 60)
    return f"The clock was moved on by {minutes} min {seconds} s, to what came next."


def _advance(controller: Controller, form: Fields) -> str:
    controller.advance_clock(forms.asked(views.Advance, {"by": form.get("by", "")}))
    return f"The clock was moved on by {form['by'].strip()}."


def _pause(controller: Controller, _: Fields) -> str:
    controller.emulator.pause()
    return "The clock stands: only Step and Advance move it."


def _resume(controller: Controller, _: Fields) -> str:
    controller.emulator.resume()
    return "The clock goes on from where it stood."


def _reset(controller: Controller, _: Fields) -> str:
    controller.emulator.reset()
    done = "All is reset: no scenario, no events, no faults, no requests. The VMs stay."
    if controller.emulator.clock.ahead < timedelta(seconds=1):
        return done
    return f"{done} The clock stays ahead of this machine's: only a new start of the emulator sets it back."


def _announce(controller: Controller, form: Fields) -> str:
    given = _given(form, "kind", "notice", "takes", "description") | {"resources": page.names(form.get("resources"))}
    event = controller.announce_event(forms.asked(views.NewEvent, given))
    return f"{event.type} of {', '.join(event.resources)} is {event.status}."


def _approve(controller: Controller, form: Fields) -> str:
    event = controller.approve_emulated_event(form.get("event", ""))
    return f"{event.type} of {', '.join(event.resources)} was approved in its guests' place: it is {event.status}."


def _cancel(controller: Controller, form: Fields) -> str:
    event = controller.cancel_emulated_event(form.get("event", ""))
    return f"{event.type} of {', '.join(event.resources)} was cancelled."


def _switch_on(controller: Controller, form: Fields) -> str:
    given = _given(form, "name", "amount", "on", "lasts", "times")
    try:
        given |= {"times": int(str(given["times"]))} if "times" in given else {}
    except ValueError:
        raise errors.RefusedError(f"times is a whole number, not {str(given['times'])[:80]!r}") from None
    return f"{controller.switch_fault_on(forms.asked(views.NewFault, given)).name} is switched on."


def _switch_off(controller: Controller, form: Fields) -> str:
    name = form.get("name") or None
    controller.emulator.switch_off(name)
    return f"{name} is switched off." if name else "All faults are switched off."


def _open_endpoint(controller: Controller, form: Fields) -> str:
    opened = controller.open_endpoint(forms.asked(views.NewEndpoint, {"vm": form.get("vm", "").strip()}))
    return f"Every caller of {opened.endpoint} is {opened.vm}."


def _given(form: Fields, *fields: str) -> dict[str, object]:
    """What was left empty was not given."""
    return {name: text for name in fields if (text := form.get(name, "").strip())}


FORMS: Mapping[str, tuple[Callable[[Controller, Fields], str], str]] = {
    "/play": (_play, "run-{how}"),
    "/step": (_step, "step"),
    "/advance": (_advance, "advance-{by}"),
    "/pause": (_pause, "go"),
    "/resume": (_resume, "go"),
    "/reset": (_reset, "reset"),
    "/announce": (_announce, "events"),
    "/approve": (_approve, "events"),
    "/cancel": (_cancel, "events"),
    "/fault-on": (_switch_on, "switch-{name}"),
    "/fault-off": (_switch_off, "switch-{name}"),
    "/endpoint": (_open_endpoint, ""),
}
"""By path; with the id of the button that is pressed."""

LOOK_SECONDS = 0.25
ALIVE_SECONDS = 15.0
LINE_SECONDS = 10.0
"""Before speed divides them."""
MOST_FOLLOWED = 32


def position(emulator: Emulator) -> str:
    """Another one whenever something looks different, but for time that passes."""
    return emulator.look(lambda: hashlib.sha256(repr(_looks(emulator)).encode()).hexdigest()[:16])


def _looks(emulator: Emulator) -> tuple[object, ...]:
    simulation, player, clock = emulator.simulation, emulator.player, emulator.clock
    # While something is to come, the line of now moves on: seen from afar every few seconds are enough.
    moves = not clock.stands and emulator.due is not None
    line = clock.now().timestamp() // max(LINE_SECONDS / emulator.timing.speed, 1.0) if moves else None
    return (
        (id(simulation), simulation.scope.incarnation, len(simulation.entries), emulator.as_vm),
        player and (player.played, player.waiting_for, len(player.deviations)),
        [(each.fault.name, each.times, each.until) for each in emulator.faults.active],
        len(emulator.requests),
        clock.now() if clock.stands else round(clock.ahead.total_seconds()),
        line,
    )


class Live:
    def __init__(self, emulator: Emulator, alive: float = ALIVE_SECONDS) -> None:
        """`alive` is after how many seconds without a change a comment is sent."""
        self._emulator = emulator
        self._alive = alive
        self._ending = asyncio.Event()
        self._followed = 0

    def end(self) -> None:
        self._ending.set()

    def respond(self, request: Request) -> Response:
        if self._followed >= MOST_FOLLOWED:
            raise errors.UnavailableError(f"{MOST_FOLLOWED} pages are followed already: close some of them")
        changes = self.stream(request.query_params.get("after", ""))
        return StreamingResponse(changes, headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")

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
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), LOOK_SECONDS)
        finally:
            self._followed -= 1
