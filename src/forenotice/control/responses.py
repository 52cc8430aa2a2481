"""JSON responses and the error shape."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from forenotice.core import errors
from forenotice.logs import log

RETRY_AFTER_SECONDS = 1


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content, enc_hook=str)


class TooLargeError(errors.RefusedError):
    """The body is too large."""

    code = "too_large"


class TooSlowError(errors.RefusedError):
    """The body does not come."""

    code = "too_slow"


class TooManyError(errors.ForenoticeError):
    """Too many requests: wait before the next."""

    code = "too_many"

    def __init__(self, message: str | None = None, retry_after: int = RETRY_AFTER_SECONDS) -> None:
        super().__init__(message, retry_after=retry_after)
        self.retry_after = retry_after


class MethodNotAllowedError(errors.RefusedError):
    """The method is not possible here."""

    code = "method_not_allowed"

    def __init__(self, method: str = "", allowed: Sequence[str] = ("GET",)) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(f"{method} is not possible here: use {self.allowed}")


STATUS: Mapping[type[errors.ForenoticeError], int] = {
    errors.ForenoticeError: 500,
    errors.RefusedError: 400,
    TooLargeError: 413,
    MethodNotAllowedError: 405,
    TooSlowError: 408,
    errors.UnauthorizedError: 401,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    TooManyError: 429,
    errors.UnavailableError: 503,
    errors.UnsoundError: 503,
}
HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": 'Bearer realm="forenotice"'},
    503: {"Retry-After": str(RETRY_AFTER_SECONDS)},
}


def status_of(error: errors.ForenoticeError) -> int:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def refusal(error: errors.ForenoticeError) -> JsonResponse:
    response = failure(status_of(error), error.code, error.message, error.facts)
    response.headers.update(headers_of(error))
    return response


def headers_of(error: errors.ForenoticeError) -> Mapping[str, str]:
    """When to try again, or by which method, where that is known."""
    if isinstance(error, TooManyError):
        return {"Retry-After": str(error.retry_after)}
    return {"Allow": error.allowed} if isinstance(error, MethodNotAllowedError) else {}


def logged_refusal(method: str, path: str, error: errors.ForenoticeError) -> Response:
    if isinstance(error, errors.UnavailableError | errors.UnsoundError) and not isinstance(error, errors.GoneError):
        log.warning(
            "A request could not be carried out",
            action="control.unavailable",
            method=method,
            path=path,
            reason=error.message,
        )
    return refusal(error)


def defect(method: str, path: str, error: Exception) -> Response:
    """Of ours: the log has the details, the caller an honest response."""
    log.error("A request failed", action="control.failed", method=method, path=path, exc_info=error)
    return failure(500, "error", f"{HTTPStatus(500).phrase}: this is a defect, the service's log says more")


def failure(status: int, code: str, message: str, facts: Mapping[str, object] | None = None) -> JsonResponse:
    content = {"error": {"code": code, "message": message, "facts": dict(facts or {})}}
    return JsonResponse(content, status_code=status, headers=HEADERS.get(status))
