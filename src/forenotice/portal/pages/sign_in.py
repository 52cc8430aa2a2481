"""/sign-in and /sign-out: a token for a session, and back."""

import hmac
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from forenotice.control import requests
from forenotice.core import errors
from forenotice.portal import forms, responses
from forenotice.portal.page import Dispatcher, local
from forenotice.service import sessions, tokens

LINK_MINUTES = 15
SPENT = f"This link has been used already, or is older than {LINK_MINUTES} minutes: sign in with a token."
WRONG = "This is not a valid token. It begins with fn_ and is copied whole."


class SignInLink:
    """Worth one sign-in with a token that the user of the link need not know."""

    def __init__(self, bearer: str, seconds_now: Callable[[], float] = monotonic) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._bearer: str | None = bearer
        self._seconds_now = seconds_now
        self._expires_at = seconds_now() + LINK_MINUTES * 60
        self._lock = threading.Lock()

    def take(self, secret: str) -> str | None:
        """The token, for the first use of the secret before it expires."""
        if not hmac.compare_digest(secret.encode(), self.secret.encode()):
            return None
        with self._lock:
            bearer, self._bearer = self._bearer, None
        return bearer if self._seconds_now() < self._expires_at else None


class SignIn:
    def __init__(self, dispatcher: Dispatcher, link: SignInLink | None) -> None:
        """`link` signs in once."""
        self._dispatcher = dispatcher
        self._link = link

    @property
    def routes(self) -> list[Route]:
        return [
            self._dispatcher.route("GET", "/sign-in", self._show),
            self._dispatcher.route("POST", "/sign-in", self._sign_in),
            self._dispatcher.route("POST", "/sign-out", self._sign_out),
        ]

    async def _show(self, _: ExitStack, request: Request) -> Response:
        if await self._is_known(request):
            return self._onward("/")
        secret = request.query_params.get("once")
        if secret is None or request.method == "HEAD":
            # Link previews, which send HEAD, must not use it up.
            return self._page(request)
        bearer = self._link.take(secret) if self._link else None
        if bearer is None:
            return self._page(request, SPENT, 401)
        return self._kept(self._onward("/"), request, await self._begin(request, bearer))

    async def _sign_in(self, _: ExitStack, request: Request) -> Response:
        form = (await forms.read(request))[1]
        forms.require_same_origin(request.headers)
        bearer = form.get("token", "").strip()
        try:
            secret = await self._begin(request, bearer)
        except errors.UnauthorizedError as error:
            request.state.token = error.token
            return self._page(request, error.message if "expired" in error.message else WRONG, 401)
        return self._kept(RedirectResponse(local(form.get("next", "/")), 303), request, secret)

    async def _begin(self, request: Request, bearer: str) -> str:
        """In place of the session that this browser had."""
        service, address = self._dispatcher.portal.service, requests.origin(request.scope)
        caller = await run_in_threadpool(tokens.authenticate, service, bearer, address)
        with self._dispatcher.portal.limits.counted(caller.id):
            secret, _ = await run_in_threadpool(sessions.begin, service, bearer, address)
            if before := self._dispatcher.secret(request):
                await run_in_threadpool(sessions.end, service, before, address)
        return secret

    async def _sign_out(self, _: ExitStack, request: Request) -> Response:
        form = (await forms.read(request))[1]
        secret = self._dispatcher.secret(request)
        forms.require_own(request.headers, form.get("form_token", ""), forms.csrf_token(secret))
        await run_in_threadpool(sessions.end, self._dispatcher.portal.service, secret, requests.origin(request.scope))
        answer = RedirectResponse("/sign-in", 303)
        responses.delete_cookie(answer, responses.name("session", request))
        return answer

    async def _is_known(self, request: Request) -> bool:
        try:
            await self._dispatcher.caller(request)
        except (errors.UnauthorizedError, errors.ForbiddenError):
            return False
        return True

    def _page(self, request: Request, error: str = "", status: int = 200) -> Response:
        onward = local(request.query_params.get("next", "/"))
        text = self._dispatcher.portal.rendering.page("sign_in.html", visit=None, error=error, onward=onward)
        return HTMLResponse(text, status)

    def _onward(self, path: str) -> Response:
        # Not a redirection: after a link of another site the browser would keep the cookie back from it.
        return HTMLResponse(self._dispatcher.portal.rendering.page("onward.html", onward=path))

    def _kept(self, answer: Response, request: Request, secret: str) -> Response:
        responses.set_cookie(answer, responses.name("session", request), secret, int(sessions.LASTS.total_seconds()))
        return answer
