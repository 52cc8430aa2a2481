"""What a guest may have to bear with."""

from forenotice.core import errors


class EndpointError(errors.UnavailableError):
    """The metadata endpoint cannot be used just now."""

    code = "endpoint"

    def __init__(self, message: str, *, status: int | None = None, retry_after: float = 0.0, cause: str = "") -> None:
        super().__init__(message)
        self.status = status
        """Of its answer; None: there was none, or it was no document."""
        self.retry_after = retry_after
        """Seconds for which it wants to be left alone."""
        self.cause = cause
        """Equal for failures that are alike, whatever the message says."""
