"""The gate of /v1: a valid token first, then what its role is granted, then a body of bounded size, then the routes."""

from collections.abc import Iterable, Sequence
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forenotice.control import limits, requests
from forenotice.control.asking import Asked, digest
from forenotice.control.limits import Slot, TokenLimits
from forenotice.control.refusals import Refusals
from forenotice.control.routing import PREFIX, need_of
from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.service import results, tokens
from forenotice.service.context import Service
from forenotice.service.tokens import Caller

FLEET = frozenset({"/v1/fleet", "/v1/fleet/diff"})
LARGEST = 4 * 1024 * 1024
LARGEST_FLEET = 64 * 1024 * 1024


class Gate:
    """Lets nobody without a token learn anything, not even which paths exist."""

    def __init__(
        self, app: ASGIApp, *, service: Service, routes: Sequence[BaseRoute], limits: TokenLimits, refusals: Refusals
    ) -> None:
        self._app = app
        self._service = service
        self._routes = routes
        self._limits = limits
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = _Watch(self._refusals, scope, send)
        await requests.guarded(partial(self._enter, watch), scope, receive, watch.send)

    async def _enter(self, watch: "_Watch", scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path != PREFIX and not path.startswith(PREFIX + "/"):
            await self._app(scope, receive, send)
            return
        bearer = _bearer(scope["headers"])
        try:
            caller = await run_in_threadpool(self._known, bearer, requests.origin(scope))
        except errors.ForenoticeError as error:
            watch.token = error.token
            raise
        watch.token = caller.id
        limits.recognise(scope)
        with self._limits.counted(caller.id):
            self._admit(caller, scope)
            await self._go_on(watch, caller, scope, receive, send)

    def _known(self, bearer: str, origin: str) -> Caller:
        if bearer.startswith(results.PREFIX):
            return results.authenticate(self._service, bearer)
        return tokens.authenticate(self._service, bearer, origin)

    async def _go_on(self, watch: "_Watch", caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        body = await requests.read(scope["headers"], receive, LARGEST_FLEET if path in FLEET else LARGEST)
        watch.presence = requests.Presence(receive)
        target = scope["raw_path"] + b"?" + scope["query_string"]
        asked = Asked(
            caller=caller,
            body=body,
            content_type=requests.header(scope["headers"], b"content-type").decode("latin-1"),
            digest=digest(scope["method"], target, body),
            origin=requests.origin(scope),
            wanted=watch.presence.waits,
        )
        scope = {**scope, "headers": _as_json(scope["headers"]), "state": {**scope.get("state", {}), "asked": asked}}
        if path in FLEET:
            # Their routes take the bytes as they are; nobody else needs to hold them.
            body = b""
        receive = requests.replay(body, watch.presence.receive)
        await watch.presence.during(self._work(watch, caller, scope, receive, send))

    async def _work(self, watch: "_Watch", caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        watch.slot = await self._limits.slot(caller.id)
        try:
            await self._app(scope, receive, send)
        finally:
            watch.slot.end()

    def _admit(self, caller: Caller, scope: Scope) -> None:
        """Before the body is read. What fits no route is left to the application, which says so."""
        access = caller.access
        if caller.call is not None:
            if scope["path"] != f"{PREFIX}/operations/{caller.call[0]}/result":
                raise errors.ForbiddenError("this token can only report the result of one driver call")
            return
        if found := _fitting(self._routes, scope):
            access.require(need_of(found))
        elif _fitting(scope["app"].routes, scope):
            # The API's description is for everybody; nothing else is served that was not declared to the gate.
            access.require(Need.SEE if scope["path"] == scope["app"].openapi_url else None)


class _Watch:
    """Sees the start of each answer: counts refusals, and ends the turn of a stream."""

    def __init__(self, refusals: Refusals, scope: Scope, send: Send) -> None:
        self.token = ""
        """Whose request it is, once that is known."""
        self.slot: Slot | None = None
        self.presence: requests.Presence | None = None
        self._refusals, self._scope, self._send = refusals, scope, send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self.presence:
                self.presence.answering = True
            if self.slot and requests.header(message["headers"], b"content-type").startswith(b"text/event-stream"):
                # A stream lasts, but needs a thread only now and then.
                self.slot.end()
            self._refusals.note(
                message["status"],
                address=requests.origin(self._scope),
                token=self.token,
                method=self._scope["method"],
                path=self._scope["path"],
            )
        await self._send(message)


def _fitting(routes: Sequence[BaseRoute], scope: Scope) -> BaseRoute | None:
    # Matching writes into the scope, which is not the gate's.
    own = dict(scope)
    return next((route for route in routes if route.matches(own)[0] is Match.FULL), None)


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> str:
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise errors.UnauthorizedError("a token is needed: send the header Authorization: Bearer TOKEN")
    return token.strip()


def _as_json(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    # Whatever a client calls it (curl says it is a form), a body is JSON or it is refused.
    return [*(header for header in headers if header[0] != b"content-type"), (b"content-type", b"application/json")]
