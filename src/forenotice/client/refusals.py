"""What an endpoint says when it does not say what is announced, and what to make of it."""

import os
from collections.abc import Sequence
from datetime import datetime

import msgspec

from forenotice.client import moments
from forenotice.client.errors import EndpointError
from forenotice.client.exchange import Answer
from forenotice.client.finding import VARIABLE, Candidate
from forenotice.clock import MachineClock

LONGEST = 200
"""Characters of what a stranger says that are passed on."""


def refusal(candidate: Candidate, answer: Answer) -> EndpointError:
    if is_control_plane(answer):
        message = f"{candidate.url} is the control plane's: give --endpoint of the metadata service"
    else:
        message = f"{candidate.url} answered {answer.status}: {said(answer) or answer.reason[:LONGEST]}"
    return EndpointError(
        message, status=answer.status, retry_after=retry_after(answer), cause=f"answered {answer.status}"
    )


def unreachable(failures: Sequence[tuple[Candidate, Exception]]) -> EndpointError:
    if len(failures) == 1 and isinstance(failures[0][1], EndpointError):
        return failures[0][1]
    tried = ", ".join(f"{candidate.url} ({reason(error)})" for candidate, error in failures)
    return EndpointError(
        f"cannot reach the metadata endpoint {tried}: is this inside a VM? Otherwise give --endpoint or set {VARIABLE}",
        cause=" ".join(type(error).__name__ for _, error in failures),
    )


def no_document(candidate: Candidate, error: ValueError) -> EndpointError:
    return EndpointError(f"{candidate.url} gave no Scheduled Events document: {error}", cause="no document")


def no_name(candidate: Candidate, answer: Answer) -> EndpointError:
    if answer.status != 200:
        return refusal(candidate, answer)
    return EndpointError(f"{candidate.url} did not say what this VM is called", cause="no name")


def said(answer: Answer) -> str:
    """The sentence in the one shape that errors have (PROTOCOL, errors); empty where they have another."""
    error = _field(answer, "error")
    return error[:LONGEST] if isinstance(error, str) else ""


def newest_versions(answer: Answer) -> Sequence[str]:
    """Those that a refusal lists; none where it lists nothing that can be read."""
    found = _field(answer, "newest-versions")
    return [version for version in found if isinstance(version, str)] if isinstance(found, list) else ()


def date(answer: Answer) -> datetime | None:
    return moments.read(answer.headers.get("date", ""))


def retry_after(answer: Answer) -> float:
    """Seconds; none where it says nothing that can be read."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isdecimal() and text.isascii():
        return float(text[:6])
    until = moments.read(text)
    if until is None:
        return 0.0
    return max(0.0, (until - (date(answer) or MachineClock().now())).total_seconds())


def _field(answer: Answer, name: str) -> object:
    try:
        found = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found.get(name) if isinstance(found, dict) else None


def is_control_plane(answer: Answer) -> bool:
    return isinstance(_field(answer, "error"), dict)


def reason(error: Exception) -> str:
    """In the words of the system, whichever way it was asked."""
    match error:
        case EndpointError():
            return error.cause
        case TimeoutError():
            return "timed out"
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number).lower()
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
