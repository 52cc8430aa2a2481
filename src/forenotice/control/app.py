"""The control plane's application: a valid token first, then what its role is granted, then the body, then a route."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from functools import cached_property, partial
from typing import Any, TypeVar, cast

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from forenotice.control import api, limits, openapi, requests, responses
from forenotice.control.api import PREFIX, ApiRequest
from forenotice.control.limits import ConcurrencyLimit, Refusals, TokenLimits
from forenotice.control.metrics import CONTENT_TYPE, Metrics
from forenotice.control.responses import JsonResponse
from forenotice.control.router import Route, Router, respond
from forenotice.control.stream import Tail
from forenotice.core import errors, explanations
from forenotice.core.timing import CLOCK_TOLERANCE
from forenotice.logs import log
from forenotice.service import housekeeping, results, tokens
from forenotice.service.service import Service
from forenotice.service.tokens import Caller

LARGEST = 4 * 1024 * 1024
LARGEST_FLEET = 64 * 1024 * 1024
T = TypeVar("T")


# Monitoring, without a token


class Monitoring:
    """Requests at the same time share one look, because without a token none gets a thread of its own."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self.service = service
        self.metrics = metrics
        self._under_way: dict[str, asyncio.Task[Any]] = {}

    async def look(self, at: str, take: Callable[[], T]) -> T:
        if at not in self._under_way:
            self._under_way[at] = looking = asyncio.create_task(run_in_threadpool(take))
            looking.add_done_callback(lambda _: self._under_way.pop(at))
        return cast(T, await asyncio.shield(self._under_way[at]))


async def healthz(_: Monitoring) -> Response:
    return JsonResponse({"status": "alive"})


async def readyz(monitoring: Monitoring) -> Response:
    """Ready while all threads turn, and the store can be read and written; otherwise 503, like every command."""
    found = await monitoring.look("readyz", partial(_readiness, monitoring.service))
    return responses.refusal(found) if isinstance(found, errors.UnavailableError) else JsonResponse(found)


async def metrics(monitoring: Monitoring) -> Response:
    return Response(await monitoring.look("metrics", monitoring.metrics.render), media_type=CONTENT_TYPE)


def _readiness(service: Service) -> dict[str, str] | errors.UnavailableError:
    if problems := housekeeping.problems(service):
        return _unready(service, "; ".join(problems), errors.UnavailableError(f"Not ready: {'; '.join(problems)}."))
    try:
        housekeeping.require_ready(service)
    except (errors.UnavailableError, errors.UnsoundError) as error:
        # A response without a token does not tell where the store is.
        return _unready(service, error.message, errors.UnavailableError())
    service.unready.over()
    behind = service.clock.behind
    clock = {"clock": explanations.clock_behind(behind)} if behind > CLOCK_TOLERANCE else {}
    return {"status": "ready", **clock}


def _unready(service: Service, reason: str, error: errors.UnavailableError) -> errors.UnavailableError:
    if service.unready.again(reason):
        log.warning("Not ready", action="control.unready", reason=reason, times=service.unready.times)
    return error


MONITORING = Router(
    [Route("GET", f"/{each.__name__}", None, each, described=False) for each in (healthz, readyz, metrics)],
    api.DESCRIPTION,
)
V1 = Router(api.ROUTES, api.DESCRIPTION)


# The API


def described() -> openapi.Schema:
    return openapi.describe(
        api.ROUTES,
        title="forenotice",
        summary="Scheduled Events for virtual machines: the operators' API.",
        about=openapi.about(),
    )


def serves(path: str) -> bool:
    """Whether a path belongs to the API or to monitoring; all others are the portal's."""
    return path == PREFIX or path.startswith(PREFIX + "/") or MONITORING.fits(path)


class Api:
    """Callers without a token learn nothing, not even which paths exist."""

    def __init__(
        self, service: Service, metrics: Metrics, tail: Tail | None = None, *, token_rate: float | None = None
    ) -> None:
        self.service = service
        self.tail = tail or Tail(service)
        self.limits = TokenLimits(token_rate)
        self.expensive = ConcurrencyLimit()
        self.refusals = Refusals(service.telemetry)
        self.monitoring = Monitoring(service, metrics)

    @cached_property
    def description(self) -> openapi.Schema:
        return described()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = _Watch(self.refusals, scope, send)
        await requests.guarded(partial(self._enter, watch), scope, receive, watch.send)

    async def _enter(self, watch: "_Watch", scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path != PREFIX and not path.startswith(PREFIX + "/"):
            route = MONITORING.find(scope["method"], path)
            response = await respond(route, self.monitoring, path, scope["query_string"], b"")
            await response(scope, receive, send)
            return
        bearer = _bearer(scope["headers"])
        try:
            caller = await run_in_threadpool(self._authenticate, bearer, requests.origin(scope))
        except errors.ForenoticeError as error:
            watch.token = error.token
            raise
        watch.token = caller.id
        limits.recognise(scope)
        with self.limits.counted(caller.id):
            await self._work(watch, caller, _authorised(caller, scope), scope, receive, send)

    def _authenticate(self, bearer: str, origin: str) -> Caller:
        if bearer.startswith(results.PREFIX):
            return results.authenticate(self.service, bearer)
        return tokens.authenticate(self.service, bearer, origin)

    async def _work(
        self, watch: "_Watch", caller: Caller, route: Route, scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = await requests.read(scope["headers"], receive, LARGEST_FLEET if route.accepts else LARGEST)
        watch.presence = presence = requests.Presence(receive)
        target = scope["raw_path"] + b"?" + scope["query_string"]
        request = ApiRequest(
            api=self,
            caller=caller,
            body=body,
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            digest=api.digest(scope["method"], target, body),
            origin=requests.origin(scope),
            is_connected=presence.waits,
        )

        async def work() -> None:
            with await self.limits.slot(caller.id) as watch.slot:
                async with self.expensive.slot() if route.expensive else nullcontext():
                    response = await respond(route, request, scope["path"], scope["query_string"], body)
                await response(scope, presence.receive, send)

        await presence.during(work())


def _authorised(caller: Caller, scope: Scope) -> Route:
    """Before the body is read."""
    if caller.call is not None and scope["path"] != f"{PREFIX}/operations/{caller.call[0]}/result":
        raise errors.ForbiddenError("this token can only report the result of one driver call")
    route = V1.find(scope["method"], scope["path"])
    if caller.call is None:
        caller.access.require(route.need)
    return route


class _Watch:
    """Sees the start of each response: counts refusals, and ends the slot of a stream."""

    def __init__(self, refusals: Refusals, scope: Scope, send: Send) -> None:
        self.token = ""
        """Whose request it is, once that is known."""
        self.slot: ExitStack | None = None
        self.presence: requests.Presence | None = None
        self._refusals, self._scope, self._send = refusals, scope, send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self.presence:
                self.presence.answering = True
            if self.slot and requests.header(message["headers"], b"content-type").startswith(b"text/event-stream"):
                # A stream lasts, but needs a thread only now and then.
                self.slot.close()
            self._refusals.note(
                message["status"],
                address=requests.origin(self._scope),
                token=self.token,
                method=self._scope["method"],
                path=self._scope["path"],
            )
        await self._send(message)


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> str:
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise errors.UnauthorizedError("a token is needed: send the header Authorization: Bearer TOKEN")
    return token.strip()
