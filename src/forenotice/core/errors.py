"""Everything that can go wrong, by who must act. The docstring of a class is its default message."""

from collections.abc import Mapping


class ForenoticeError(Exception):
    """Something went wrong."""

    code = "error"

    def __init__(self, message: str | None = None, **facts: object) -> None:
        self.message = message or type(self).__doc__ or ""
        self.facts: Mapping[str, object] = facts
        self.token = ""
        """The id of the token in the request, if known: for the log, not for the answer."""
        super().__init__(self.message)


class RefusedError(ForenoticeError):
    """The request is malformed: the caller must change it."""

    code = "refused"


class NotFoundError(ForenoticeError):
    """There is no such thing."""

    code = "not_found"


class ConflictError(ForenoticeError):
    """The request is well-formed but the present state does not allow it."""

    code = "conflict"


class UnauthorizedError(ForenoticeError):
    """A valid bearer token is needed."""

    code = "unauthorized"


class ForbiddenError(ForenoticeError):
    """Whoever asks is known, but may not do this."""

    code = "forbidden"


class UnavailableError(ForenoticeError):
    """The store cannot be reached just now; try again."""

    code = "unavailable"


class OverdueError(UnavailableError):
    """It took too long and was stopped; nothing was done."""

    code = "overdue"


class GoneError(UnavailableError):
    """The client has disconnected; nothing was done."""


class UnsoundError(ForenoticeError):
    """The database cannot be used as it is: an administrator must act."""

    code = "unsound"
