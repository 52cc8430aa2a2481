"""Everything that can go wrong, by who must act. The docstring of a class is its default message."""

from collections.abc import Mapping


class NotbeforeError(Exception):
    """Something went wrong."""

    code = "error"

    def __init__(self, message: str | None = None, **facts: object) -> None:
        self.message = message or type(self).__doc__ or ""
        self.facts: Mapping[str, object] = facts
        super().__init__(self.message)


class RefusedError(NotbeforeError):
    """The request is malformed: the caller must change it."""

    code = "refused"


class NotFoundError(NotbeforeError):
    """There is no such thing."""

    code = "not_found"


class ConflictError(NotbeforeError):
    """The request is well-formed but the present state does not allow it."""

    code = "conflict"


class UnauthorizedError(NotbeforeError):
    """A valid bearer token is needed."""

    code = "unauthorized"


class ForbiddenError(NotbeforeError):
    """Whoever asks is known, but may not do this."""

    code = "forbidden"


class UnavailableError(NotbeforeError):
    """The store cannot be reached just now; try again."""

    code = "unavailable"


class UnsoundError(NotbeforeError):
    """The database cannot be used as it is: an administrator must act."""

    code = "unsound"
