"""Routes as a table: method, path, need, and a handler or a function of the service, whose signature is read."""

import inspect
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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


class Query(base.Request):
    """Parameters that a function of the service takes by name."""

    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


Handler = Callable[..., Any]
Content = Mapping[str, Mapping[str, Any]]
"""Media types and their schemas, where a body is no JSON of a struct."""


OF_THE_REQUEST = ("service", "call", "seen", "access")
"""Parameters of the service's functions that a request knows."""


class Route:
    """A handler takes the request, then the parts of the path by name, `query` and `body` where it has them.

    A function of the service can stand for one: it has a `name` here, and takes the parts of the path and the body in
    this order, and the fields of the `query` by name. What blocks runs in a thread. Both give a struct, or a response
    that is sent as it is.
    """

    def __init__(
        self,
        method: str,
        path: str,
        need: Need | None,
        handler: Handler,
        name: str = "",
        *,
        query: type[Query] | None = None,
        about: str = "",
        status: int = 200,
        changes: bool | None = None,
        expensive: bool = False,
        described: bool = True,
        accepts: Content | None = None,
        sends: Content | None = None,
        headers: Sequence[Mapping[str, Any]] = (),
        kinds: Mapping[str, Any] | None = None,
    ) -> None:
        """`need` None: nobody may, or everybody where no token is needed. `kinds` are types of parts of the path."""
        self.method, self.path, self.need, self.handler = method, path, need, handler
        self.name = name or handler.__name__
        self.about = about if name else inspect.getdoc(handler) or ""
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
        self.query: type[base.Request] | None = query or hints.pop("query", None)
        self.body: Any = hints.get("body") or next(filter(_is_request, hints.values()), None)
        self.of_service = bool(name)
        self._known_here = [each for each in hints if each in OF_THE_REQUEST]
        self.pattern, _, convertors = compile_path(path)
        usual = {each: base.Id if each.endswith("_id") else base.Name for each in convertors}
        known = {**usual, **(kinds or ({} if name else hints))}
        self.parts = msgspec.defstruct("Path", [(each, known[each]) for each in convertors])

    @property
    def may_lack_body(self) -> bool:
        return type(None) in typing.get_args(self.body)

    def bind(self, request: Any, path: str, query: bytes, body: bytes) -> Callable[[], Any]:
        """All is decoded once; RefusedError says what is wrong."""
        found = self.pattern.match(path)
        read = base.convert(found.groupdict() if found else {}, self.parts, "the path")
        # Ids are read in any case.
        parts: dict[str, Any] = {
            name: value.lower() if name.endswith("_id") else value
            for name, value in msgspec.structs.asdict(read).items()
        }
        given, sent = self._known(query), {}
        if self.body is not None:
            sent["body"] = None if not body and self.may_lack_body else base.decode(body, self.body)
        asked = base.convert(given, self.query, "the query", strict=False) if self.query else None
        if not self.of_service:
            return partial(self.handler, request, **parts, **sent, **({"query": asked} if asked else {}))
        known = {name: getattr(request, name) for name in self._known_here}
        first = [known.pop(name) for name in ("service", "call") if name in known]
        fields = asked.arguments() if isinstance(asked, Query) else {}
        return partial(self.handler, *first, *parts.values(), *sent.values(), **known, **fields)

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
    """`request` is what handlers take first, and what knows the parameters of the service's functions."""
    work = route.bind(request, path, query, body)
    found = await work() if inspect.iscoroutinefunction(route.handler) else await run_in_threadpool(work)
    return found if isinstance(found, Response) else responses.JsonResponse(found, route.status)


def _is_request(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, base.Request)
