"""What goes wrong with an endpoint: the one error of the library, and what a response other than 200 says."""

import os
from collections.abc import Sequence
from datetime import datetime

import msgspec

from forenotice.client.discovery import VARIABLE, Candidate
from forenotice.client.events import parse_date
from forenotice.client.http import Response
from forenotice.clock import MachineClock
from forenotice.core import errors

LONGEST = 200
"""Characters of a server's message that are passed on."""


class EndpointError(errors.UnavailableError):
    """The metadata endpoint cannot be used just now."""

    code = "endpoint"

    def __init__(self, message: str, *, status: int | None = None, retry_after: float = 0.0, cause: str = "") -> None:
        super().__init__(message)
        self.status = status
        """Of its response; None: there was none, or it was no document."""
        self.retry_after = retry_after
        """Seconds until the next request may come."""
        self.cause = cause
        """Equal for failures that are alike, whatever the message says."""


def refused(candidate: Candidate, response: Response) -> EndpointError:
    if is_control_plane(response):
        message = f"{candidate.url} is the control plane's: give --endpoint of the metadata service"
    else:
        message = f"{candidate.url} answered {response.status}: {message_of(response) or response.reason[:LONGEST]}"
    return EndpointError(
        message, status=response.status, retry_after=retry_after(response), cause=f"answered {response.status}"
    )


def unreachable(failures: Sequence[tuple[Candidate, Exception]]) -> EndpointError:
    if len(failures) == 1 and isinstance(failures[0][1], EndpointError):
        return failures[0][1]
    tried = ", ".join(f"{candidate.url} ({reason(error)})" for candidate, error in failures)
    return EndpointError(
        f"cannot reach the metadata endpoint {tried}: is this inside a VM? Otherwise give --endpoint or set {VARIABLE}",
        cause=" ".join(type(error).__name__ for _, error in failures),
    )


def message_of(response: Response) -> str:
    """The sentence in the one shape that errors have; empty where they have another."""
    error = _field(response, "error")
    return error[:LONGEST] if isinstance(error, str) else ""


def newest_versions(response: Response) -> Sequence[str]:
    """Those that a refusal lists; none where it lists nothing that can be read."""
    found = _field(response, "newest-versions")
    return [version for version in found if isinstance(version, str)] if isinstance(found, list) else ()


def is_control_plane(response: Response) -> bool:
    return isinstance(_field(response, "error"), dict)


def date_of(response: Response) -> datetime | None:
    return parse_date(response.headers.get("date", ""))


def retry_after(response: Response) -> float:
    """Seconds; 0 where the header is missing or unreadable."""
    text = response.headers.get("retry-after", "").strip()
    if text.isdecimal() and text.isascii():
        return float(text[:6])
    until = parse_date(text)
    if until is None:
        return 0.0
    return max(0.0, (until - (date_of(response) or MachineClock().now())).total_seconds())


def reason(error: Exception) -> str:
    """In the words of the system, for blocking and asynchronous calls alike."""
    match error:
        case EndpointError():
            return error.cause
        case TimeoutError():
            return "timed out"
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number).lower()
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def _field(response: Response, name: str) -> object:
    try:
        found = msgspec.json.decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found.get(name) if isinstance(found, dict) else None
