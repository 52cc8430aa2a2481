"""Everything that can go wrong with a request, as one sentence in one shape."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from notbefore.control import answers
from notbefore.core import errors

log = structlog.get_logger()

Handler = Callable[[Request, Exception], Awaitable[Response]]

PLACES: Mapping[str, str] = {"body": "the body", "query": "the query", "path": "the path", "header": "the header"}
CODES: Mapping[int, str] = {404: "not_found", 405: "method_not_allowed"}


def install(app: FastAPI) -> None:
    app.add_exception_handler(errors.NotbeforeError, cast(Handler, _refused))
    app.add_exception_handler(RequestValidationError, cast(Handler, _invalid))
    app.add_exception_handler(HTTPException, cast(Handler, _unrouted))


async def _refused(request: Request, error: errors.NotbeforeError) -> Response:
    return refused(request.method, request.url.path, error)


async def _invalid(_: Request, error: RequestValidationError) -> Response:
    return answers.failure(400, "refused", sentence(error.errors()))


async def _unrouted(request: Request, error: HTTPException) -> Response:
    match error.status_code:
        case 404:
            message = f"there is nothing at {request.url.path}: see /v1/openapi.json"
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            message = f"{request.method} is not possible here" + (f": use {allowed}" if allowed else "")
        case _:
            message = f"the request cannot be read: {error.detail}"
    answer = answers.failure(error.status_code, CODES.get(error.status_code, "refused"), message)
    answer.headers.update(error.headers or {})
    return answer


def refused(method: str, path: str, error: errors.NotbeforeError) -> Response:
    if isinstance(error, errors.UnavailableError | errors.UnsoundError):
        log.warning(
            "A request could not be carried out",
            action="control.unavailable",
            method=method,
            path=path,
            reason=error.message,
        )
    return answers.refusal(error)


def unexpected(method: str, path: str, error: Exception) -> Response:
    """A defect of ours: the log has the details, the caller an honest answer."""
    log.error("A request failed", action="control.failed", method=method, path=path, exc_info=error)
    return answers.failure(500, "error", f"{HTTPStatus(500).phrase}: this is a defect, the service's log says more")


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
        case "extra_forbidden":
            return f"{named} is not known"
    return f"{named}: {first['msg'][:1].lower()}{first['msg'][1:]}"
