"""The way into every page: who visits, what they may do, a form of our own, and a response whatever goes wrong."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from forenotice.control import limits, requests
from forenotice.control import responses as control_responses
from forenotice.control.api import KEY
from forenotice.control.limits import ConcurrencyLimit, Refusals, TokenLimits
from forenotice.core import errors
from forenotice.core.roles import Access, Need
from forenotice.core.selectors import Selector
from forenotice.logs import log
from forenotice.portal import forms, responses
from forenotice.portal.renderer import Renderer
from forenotice.service import sessions
from forenotice.service.calls import Call
from forenotice.service.service import Service
from forenotice.service.tokens import Caller
from forenotice.views import base

M = TypeVar("M", bound=base.Request)

GUESTS_AT = "http://169.254.169.254"
LOOK = "forenotice-look"
"""The header that a page's live updates send."""
SENT_BEFORE = "this form was sent before, with other values: open its page again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Portal:
    """What all pages share."""

    service: Service
    rendering: Renderer
    limits: TokenLimits
    """Limits per token, shared with the API."""
    refusals: Refusals
    expensive: ConcurrencyLimit
    """Plans of rollouts are made one at a time, together with those of the API."""
    polled: Callable[[str], datetime | None]
    """When a VM last polled, as far as this process knows."""
    guests_at: str
    """Where guests find their documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    portal: Portal
    caller: Caller
    path: Mapping[str, str]
    """The parts of the path that have names."""
    query: ImmutableMultiDict[str, str]
    form: ImmutableMultiDict[str, str]
    at: str
    """The path with its query, as it was asked for."""
    origin: str
    digest: str
    form_token: str
    """What our forms bring back."""
    position: int
    """The journal's newest, before the page looked at anything."""
    cookie: str
    """The name of the one with the message that is shown once."""
    is_allowed: Callable[[], bool]
    """Whether the session is still valid, for answers that take their time."""
    is_connected: Callable[[], bool]
    """Whether the client is still connected."""
    message: str = ""

    @property
    def service(self) -> Service:
        return self.portal.service

    @property
    def access(self) -> Access:
        return self.caller.access

    @property
    def seen(self) -> Selector | None:
        """Whose things may be shown; None: everybody's."""
        return self.caller.access.scopes

    @property
    def now(self) -> datetime:
        return self.service.clock.now()

    def may(self, need: Need | str) -> bool:
        return self.access.may(Need(need))

    def call(self) -> Call:
        """A form is sent once, however often its button is pressed."""
        reason, key = base.require_reason(self.form.get("reason", "").strip()), self.form.get("form_key")
        if key and not KEY.fullmatch(key):
            raise errors.RefusedError("the form's key cannot be read: open the page again")
        return Call(
            actor=self.caller.actor,
            token_id=self.caller.id,
            key=key or None,
            digest=self.digest,
            origin=self.origin,
            reason=reason,
            access=self.access,
            is_connected=self.is_connected,
        )

    def asked(self, model: type[M], values: Mapping[str, Any]) -> M:
        """What the API would take in the same words."""
        return forms.asked(model, values)

    def page(
        self, template: str, status: int = 200, refusal: errors.ForenoticeError | None = None, **context: Any
    ) -> Response:
        """`refusal` is why a form on the page was not accepted."""
        if refusal:
            status = control_responses.status_of(refusal)
        context.setdefault("error", refusal.message if refusal else "")
        text = self.portal.rendering.page(template, visit=self, **context)
        answer = HTMLResponse(text, status)
        if self.message:
            responses.delete_cookie(answer, self.cookie)
        return answer

    def go(self, path: str, message: str = "") -> Response:
        """To another page, which tells once what was done."""
        answer = RedirectResponse(path, 303)
        if message:
            responses.set_message(answer, self.cookie, message)
        return answer


def local(path: str, otherwise: str = "/") -> str:
    """A path of ours, and nothing that leads elsewhere."""
    sound = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and len(path) <= 2000
    return path if sound else otherwise


Show = Callable[[PageRequest], Response]
Shows = TypeVar("Shows", bound=Show)
Missing = Callable[[PageRequest, errors.NotFoundError], Response]
Answer = Callable[[ExitStack, Request], Awaitable[Response]]
"""What is put on the stack is held until the response is sent, however slowly it is read."""


@dataclass(frozen=True, slots=True)
class Page:
    method: str
    path: str
    needs: Need
    show: Show
    expensive: bool
    """One at a time, together with those of the API."""
    missing: Missing | None
    """The page for what does not exist."""


class Pages:
    def __init__(self, missing: Missing | None = None) -> None:
        self.declared: list[Page] = []
        self._missing = missing

    def get(self, path: str, *, needs: Need, expensive: bool = False) -> Callable[[Shows], Shows]:
        return self._declare("GET", path, needs, expensive=expensive)

    def post(self, path: str, *, needs: Need) -> Callable[[Shows], Shows]:
        """Only with a form that one of our own pages had."""
        return self._declare("POST", path, needs, expensive=False)

    def _declare(self, method: str, path: str, needs: Need, *, expensive: bool) -> Callable[[Shows], Shows]:
        def declare(show: Shows) -> Shows:
            self.declared.append(Page(method, path, needs, show, expensive, self._missing))
            return show

        return declare


class Endpoint:
    """An application for each route."""

    def __init__(self, dispatcher: "Dispatcher", answer: Answer) -> None:
        self._dispatcher, self._answer = dispatcher, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with ExitStack() as held:
            response = await self._dispatcher.answered(request, partial(self._answer, held))
            await response(scope, receive, send)


class Dispatcher:
    def __init__(self, portal: Portal) -> None:
        self.portal = portal

    def route(self, method: str, path: str, answer: Answer) -> Route:
        return Route(path, Endpoint(self, answer), methods=[method])

    def page(self, page: Page) -> Route:
        return self.route(page.method, page.path, partial(self._visited, page))

    async def answered(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """The page, or why there is none; always with our headers."""
        try:
            found = await answer(request)
        except errors.ForenoticeError as error:
            request.state.token = error.token or getattr(request.state, "token", "")
            found = self._refused(request, error)
        except Exception as error:
            log.error(
                "A page failed", action="portal.failed", method=request.method, path=request.url.path, exc_info=error
            )
            found = self.failure(500, "This is a defect: the service's log says more.")
        for name, value in responses.HEADERS.items():
            found.headers.setdefault(name, value)
        self.portal.refusals.note(
            found.status_code,
            address=requests.origin(request.scope),
            token=getattr(request.state, "token", ""),
            method=request.method,
            path=request.url.path,
        )
        return found

    async def caller(self, request: Request, *, used: bool = False) -> Caller:
        resume = partial(sessions.resume, self.portal.service, origin=requests.origin(request.scope), used=used)
        found = await run_in_threadpool(resume, self.secret(request))
        limits.recognise(request.scope)
        return found

    def is_allowed(self, request: Request, caller: Caller) -> bool:
        """Whether that session still stands for somebody who may do the same."""
        try:
            found = sessions.resume(self.portal.service, self.secret(request), origin=requests.origin(request.scope))
            return found.access == caller.access
        except errors.ForenoticeError:
            return False

    def secret(self, request: Request) -> str:
        return request.cookies.get(responses.name("session", request), "")

    def failure(self, status: int, message: str) -> Response:
        text = self.portal.rendering.page("error.html", code=status, message=message, visit=None, back="")
        return HTMLResponse(text, status)

    async def _visited(self, page: Page, held: ExitStack, request: Request) -> Response:
        caller = await self.caller(request, used=LOOK not in request.headers)
        request.state.token = caller.id
        held.enter_context(self.portal.limits.counted(caller.id))
        caller.access.require(page.needs)
        token = forms.csrf_token(self.secret(request))
        body, form = b"", forms.NO_FIELDS
        if page.method == "POST":
            body, form = await forms.read(request)
            forms.require_own(request.headers, form.get("form_token", ""), token)
        forms.require_sound(request.path_params, request.query_params, form)
        presence = requests.Presence(request.receive)
        visit = PageRequest(
            portal=self.portal,
            caller=caller,
            path=request.path_params,
            query=request.query_params,
            form=form,
            at=_target(request),
            origin=requests.origin(request.scope),
            digest=hashlib.sha256(b"\0".join((request.url.path.encode(), body))).hexdigest(),
            form_token=token,
            position=await run_in_threadpool(self._position),
            cookie=responses.name("message", request),
            is_allowed=partial(self.is_allowed, request, caller),
            message=responses.message(request),
            is_connected=presence.waits,
        )
        found = await presence.during(self._answer(page, held, request, visit))
        if found is None:
            raise errors.GoneError
        return found

    async def _answer(self, page: Page, held: ExitStack, request: Request, visit: PageRequest) -> Response:
        held.enter_context(await self.portal.limits.slot(visit.caller.id))
        try:
            async with self.portal.expensive.slot() if page.expensive else nullcontext():
                return await run_in_threadpool(page.show, visit)
        except errors.UnauthorizedError:
            raise
        except errors.ForenoticeError as error:
            if page.missing and isinstance(error, errors.NotFoundError):
                return page.missing(visit, error)
            code = self._logged(request, error)
            message = SENT_BEFORE if error.facts.get("key") else error.message
            return visit.page("error.html", code, code=code, message=message, back=_back(request))

    def _position(self) -> int:
        with self.portal.service.store.read() as reader:
            last = reader.journal.last()
        return last[0] if last else 0

    def _refused(self, request: Request, error: errors.ForenoticeError) -> Response:
        by_person = request.headers.get("accept") != "text/event-stream"
        if isinstance(error, errors.UnauthorizedError) and request.method in ("GET", "HEAD") and by_person:
            return self._to_sign_in(request)
        failure = self.failure(self._logged(request, error), error.message)
        failure.headers.update(control_responses.headers_of(error))
        return failure

    def _logged(self, request: Request, error: errors.ForenoticeError) -> int:
        """The status that says it."""
        status = control_responses.status_of(error)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, errors.GoneError):
            log.warning(
                "A page could not be made",
                action="portal.unavailable",
                method=request.method,
                path=request.url.path,
                reason=error.message,
            )
        return status

    def _to_sign_in(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A link of another site: the browser keeps a strict cookie back until the next step, which is our own.
            return HTMLResponse(self.portal.rendering.page("onward.html", onward=_target(request)))
        target = _target(request)
        return RedirectResponse("/sign-in" + (f"?next={quote(target)}" if target != "/" else ""), 303)


def _back(request: Request) -> str:
    """The page of ours that a refused form was on."""
    referer = request.headers.get("referer", "")
    if request.method != "POST" or not referer or forms.netloc(referer) != request.headers.get("host", "").lower():
        return ""
    came = urlsplit(referer)
    return local(came.path + (f"?{came.query}" if came.query else ""))


def _target(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")
