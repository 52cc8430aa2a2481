"""Everything that can go wrong with a request, as one sentence in one shape."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from forenotice.control import responses
from forenotice.core import errors
from forenotice.core.fleet import RENAMED_POLICIES
from forenotice.logs import log

Handler = Callable[[Request, Exception], Awaitable[Response]]

PLACES: Mapping[str, str] = {
    "body": "the body",
    "query": "the query",
    "path": "the path",
    "header": "the header",
    "form": "the form",
}


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    async def unrouted(request: Request, error: HTTPException) -> Response:
        match error.status_code:
            case 404:
                message = f"there is nothing at {request.url.path}: see {app.openapi_url}"
                return responses.failure(404, "not_found", message)
            case 405:
                return _not_allowed(request, routes)
        right = "send JSON in UTF-8, not nested too deeply, without lone surrogates (\\ud800), NaN and Infinity"
        return responses.failure(400, "refused", f"the body cannot be read: {right}")

    app.add_exception_handler(errors.ForenoticeError, cast(Handler, _refused))
    app.add_exception_handler(RequestValidationError, cast(Handler, _invalid))
    app.add_exception_handler(HTTPException, cast(Handler, unrouted))


async def _refused(request: Request, error: errors.ForenoticeError) -> Response:
    return refused(request.method, request.url.path, error)


async def _invalid(_: Request, error: RequestValidationError) -> Response:
    return responses.failure(400, "refused", sentence(error.errors()))


def _not_allowed(request: Request, routes: Sequence[BaseRoute]) -> Response:
    # The framework names the methods of the first route that the path fits; several routes share a path.
    fitting = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    methods = {method for route in fitting if isinstance(route, Route) for method in route.methods or ()}
    allowed = ", ".join(sorted(methods or {"GET"}))
    answer = responses.failure(405, "method_not_allowed", f"{request.method} is not possible here: use {allowed}")
    answer.headers["Allow"] = allowed
    return answer


def refused(method: str, path: str, error: errors.ForenoticeError) -> Response:
    if isinstance(error, errors.UnavailableError | errors.UnsoundError) and not isinstance(error, errors.GoneError):
        log.warning(
            "A request could not be carried out",
            action="control.unavailable",
            method=method,
            path=path,
            reason=error.message,
        )
    return responses.refusal(error)


def unexpected(method: str, path: str, error: Exception) -> Response:
    """A defect of ours: the log has the details, the caller an honest answer."""
    log.error("A request failed", action="control.failed", method=method, path=path, exc_info=error)
    return responses.failure(500, "error", f"{HTTPStatus(500).phrase}: this is a defect, the service's log says more")


def sentence(found: Sequence[Any]) -> str:
    """What is wrong with the first thing that is, and what would be right."""
    first = found[0]
    place, *path = first["loc"]
    where = ".".join(str(part) for part in path if "[" not in str(part))
    named = f"{where} in {PLACES[place]}" if where else PLACES[place]
    match first["type"]:
        case "json_invalid":
            return f"the body is not JSON: {first['ctx']['error']}"
        case "missing":
            return f"{named} is missing"
        case "extra_forbidden" if path and path[-1] in RENAMED_POLICIES:
            return f"{named} is not known any more: give {RENAMED_POLICIES[path[-1]]}"
        case "extra_forbidden":
            return f"{named} is not known"
        case "value_error":
            return f"{named}: {first['ctx']['error']}"
        case "string_pattern_mismatch" if place == "path":
            return f"{named}: is not an id: give letters, digits and '-'"
        case "string_pattern_mismatch":
            return f"{named}: holds control characters: leave them out"
    return f"{named}: {first['msg'][:1].lower()}{first['msg'][1:]}"
