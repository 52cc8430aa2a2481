"""Routes as a table: method, path, need and handler. What a handler takes and gives is read from its signature."""

import inspect
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import compile_path

from forenotice.control import responses
from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.views import base

Handler = Callable[..., Any]
Content = Mapping[str, Mapping[str, Any]]
"""Media types and their schemas, where a body is no JSON of a struct."""


class Route:
    """Its handler takes the request, then the parts of the path by name, `query` and `body` where it has them.

    A handler that blocks runs in a thread. It gives a struct, or a response that is sent as it is.
    """

    def __init__(
        self,
        method: str,
        path: str,
        need: Need | None,
        handler: Handler,
        *,
        status: int = 200,
        changes: bool | None = None,
        expensive: bool = False,
        described: bool = True,
        accepts: Content | None = None,
        sends: Content | None = None,
        headers: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`need` None: nobody may, or everybody where no token is needed."""
        self.method, self.path, self.need, self.handler = method, path, need, handler
        self.status = status
        self.changes = method != "GET" if changes is None else changes
        """Whether it takes an Idempotency-Key and a reason."""
        self.expensive = expensive
        self.described = described
        self.accepts = accepts
        """Set where the handler reads the bytes itself."""
        self.sends = sends
        self.headers = headers
        """That its description has beside those of every change."""
        hints = typing.get_type_hints(handler, include_extras=True)
        self.gives: Any = hints.pop("return")
        self.query: type[base.Request] | None = hints.pop("query", None)
        self.body: Any = hints.pop("body", None)
        self.pattern, _, convertors = compile_path(path)
        self.parts = msgspec.defstruct("Path", [(name, hints[name]) for name in convertors])

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def may_lack_body(self) -> bool:
        return type(None) in typing.get_args(self.body)

    def arguments(self, path: str, query: bytes, body: bytes) -> dict[str, Any]:
        """Decoded once; RefusedError says what is wrong."""
        found = self.pattern.match(path)
        parts = base.convert(found.groupdict() if found else {}, self.parts, "the path")
        # Ids are read in any case.
        arguments: dict[str, Any] = {
            name: value.lower() if name.endswith("_id") else value
            for name, value in msgspec.structs.asdict(parts).items()
        }
        given = self._known(query)
        if self.query is not None:
            arguments["query"] = base.convert(given, self.query, "the query", strict=False)
        if self.body is not None:
            arguments["body"] = None if not body and self.may_lack_body else base.decode(body, self.body)
        return arguments

    def _known(self, query: bytes) -> dict[str, str]:
        """A parameter that is misspelt or given twice is refused: a `dryrun` would otherwise be none."""
        try:
            given = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
        except ValueError:
            raise errors.RefusedError("the query must be percent-encoded UTF-8") from None
        known = sorted(self.query.__struct_encode_fields__) if self.query else []
        for name, times in Counter(name for name, _ in given).items():
            if name not in known:
                right = f"known are {', '.join(known)}" if known else "there is nothing to give here"
                raise errors.RefusedError(f"{name[:80]} in the query is not known: {right}")
            if times > 1:
                raise errors.RefusedError(f"{name} in the query is given twice: give it once")
        return dict(given)


class Router:
    def __init__(self, routes: Sequence[Route], description: str) -> None:
        """`description` is the path of the API's description."""
        self.routes = routes
        self._description = description

    def fits(self, path: str) -> bool:
        return any(route.pattern.match(path) for route in self.routes)

    def find(self, method: str, path: str) -> Route:
        fitting = [route for route in self.routes if route.pattern.match(path)]
        for route in fitting:
            if route.method == method:
                return route
        if not fitting:
            raise errors.NotFoundError(f"there is nothing at {path}: see {self._description}")
        raise responses.MethodNotAllowedError(method, sorted({route.method for route in fitting}))


async def respond(route: Route, request: object, path: str, query: bytes, body: bytes) -> Response:
    """`request` is what handlers take first."""
    arguments = route.arguments(path, query, body)
    if inspect.iscoroutinefunction(route.handler):
        found = await route.handler(request, **arguments)
    else:
        found = await run_in_threadpool(route.handler, request, **arguments)
    return found if isinstance(found, Response) else responses.JsonResponse(found, route.status)
