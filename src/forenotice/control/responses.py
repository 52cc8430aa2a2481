"""Answers as they are sent: JSON made of the service's plain values, and the one shape of errors."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from forenotice.core import errors

RETRY_AFTER_SECONDS = 1


class Answer(Response):
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


STATUS: Mapping[type[errors.ForenoticeError], int] = {
    errors.ForenoticeError: 500,
    errors.RefusedError: 400,
    TooLargeError: 413,
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


def refusal(error: errors.ForenoticeError) -> Answer:
    answer = failure(status_of(error), error.code, error.message, error.facts)
    answer.headers.update(waiting(error))
    return answer


def waiting(error: errors.ForenoticeError) -> Mapping[str, str]:
    """The header that says when to try again, where that is known."""
    return {"Retry-After": str(error.retry_after)} if isinstance(error, TooManyError) else {}


def failure(status: int, code: str, message: str, facts: Mapping[str, object] | None = None) -> Answer:
    content = {"error": {"code": code, "message": message, "facts": dict(facts or {})}}
    return Answer(content, status_code=status, headers=HEADERS.get(status))
