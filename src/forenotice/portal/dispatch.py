"""The way into every page: who visits, what they may do, a form of our own, and an answer whatever goes wrong."""

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Send

from forenotice.control import limits, requests
from forenotice.control import responses as control_responses
from forenotice.core import errors
from forenotice.logs import log
from forenotice.portal import csrf, forms, responses
from forenotice.portal.page import Declared, PageRequest, Portal, local
from forenotice.portal.responses import HEADERS
from forenotice.service import sessions
from forenotice.service.tokens import Caller

LOOK = "forenotice-look"
"""The header that a page's live updates send."""
SENT_BEFORE = "this form was sent before, with other values: open its page again"


class Dispatcher:
    def __init__(self, portal: Portal) -> None:
        self.portal = portal

    async def visited(self, declared: Declared, request: Request, send: Send) -> None:
        await self.sent(request, send, partial(self._visited, declared))

    async def sent(
        self, request: Request, send: Send, answer: Callable[[ExitStack, Request], Awaitable[Response]]
    ) -> None:
        """What is put on the stack is held until the answer is sent, however slowly it is read."""
        with ExitStack() as held:
            found = await self.answered(request, partial(answer, held))
            await found(request.scope, request.receive, send)

    async def answered(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """What a page says, or why there is none; always with our headers."""
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
        for name, value in HEADERS.items():
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

    async def _visited(self, declared: Declared, held: ExitStack, request: Request) -> Response:
        caller = await self.caller(request, used=LOOK not in request.headers)
        request.state.token = caller.id
        held.enter_context(self.portal.limits.counted(caller.id))
        caller.access.require(declared.needs)
        token = csrf.token_of(self.secret(request))
        body, form = b"", forms.NO_FIELDS
        if declared.method == "POST":
            body, form = await forms.read(request)
            csrf.require_own(request.headers, form.get("form_token", ""), token)
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
        found = await presence.during(self._answer(declared, held, request, visit))
        if found is None:
            raise errors.GoneError
        return found

    async def _answer(self, declared: Declared, held: ExitStack, request: Request, visit: PageRequest) -> Response:
        held.callback((await self.portal.limits.slot(visit.caller.id)).end)
        try:
            async with self.portal.expensive.slot() if declared.expensive else nullcontext():
                return await run_in_threadpool(declared.answer, visit)
        except errors.UnauthorizedError:
            raise
        except errors.ForenoticeError as error:
            if declared.missing and isinstance(error, errors.NotFoundError):
                return declared.missing(visit, error)
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
    if request.method != "POST" or not referer or csrf.netloc(referer) != request.headers.get("host", "").lower():
        return ""
    came = urlsplit(referer)
    return local(came.path + (f"?{came.query}" if came.query else ""))


def _target(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")
