"""Asking again and again: once a second, or held by the server where it can, and slower while something is wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import TypeVar

from forenotice.client.endpoint import Endpoint, Heard, Known
from forenotice.client.errors import EndpointError
from forenotice.client.events import Document
from forenotice.client.flow import Pause, Stream
from forenotice.client.pace import Pace

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What became of one request; of one that the server was to hold and that failed, only the plain one after it."""

    document: Document | None
    """The last good one; None: there was none yet."""
    changed: bool
    """It is another document than that of the news before."""
    error: EndpointError | None
    """Why there was no good answer; then nothing is known of the present."""
    date: datetime | None
    """The endpoint's clock, in whole seconds, when it answered."""
    asked_at: float
    answered_at: float
    """Both by the monotonic clock."""
    shown: bool = True
    """The answer was this document, or that it still holds: not an error, nothing at all, or an older document."""


def follow(endpoint: Endpoint, pace: Pace, patient: Callable[[], bool], tell: Callable[[News], Stream[T]]) -> Stream[T]:
    """For ever. What is made of the news, `tell` says."""
    shown: bytes | None = None
    failures = 0
    waiting = Waiting(pace)
    while True:
        asked_at = monotonic()
        known = endpoint.known
        # Somebody else may have asked meanwhile: what is not told yet is not to be waited for.
        can_wait = known is not None and bool(known.tag) and known.body == shown
        patiently = can_wait and not failures and patient() and waiting.worth_asking(asked_at)
        try:
            heard = yield from endpoint.poll(pace.wait if patiently else 0)
        except EndpointError as error:
            failures += 1
            waiting.failed(patiently, failures, monotonic())
            if not patiently:
                yield from tell(_news(endpoint.known, False, asked_at, error=error, shown=False))
            yield Pause(pace.after(failures, error))
            continue
        failures = 0
        answered_at = monotonic()
        known = heard.known
        changed = known is not None and known.body != shown
        shown = known.body if known else None
        waiting.learn(heard, changed, asked_at, answered_at)
        yield from tell(_news(known, changed, asked_at, answered_at, date=heard.date, shown=heard.shown))
        yield Pause(max(0.0, asked_at + pace.interval - monotonic()))


def _news(
    known: Known | None,
    changed: bool,
    asked_at: float,
    answered_at: float | None = None,
    *,
    date: datetime | None = None,
    error: EndpointError | None = None,
    shown: bool,
) -> News:
    return News(
        document=known.document if known else None,
        changed=changed,
        error=error,
        date=date,
        asked_at=asked_at,
        answered_at=monotonic() if answered_at is None else answered_at,
        shown=shown,
    )


class Waiting:
    """Whether the server holds polls until there is something new, found out by asking it to."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._probe_at = 0.0

    def worth_asking(self, now: float) -> bool:
        return now >= self._probe_at

    def learn(self, heard: Heard, changed: bool, asked_at: float, answered_at: float) -> None:
        if heard.waited and not changed and answered_at - asked_at < self._pace.at_once:
            self._probe_at = answered_at + self._pace.probe

    def failed(self, waited: bool, times: int, now: float) -> None:
        if waited:
            # It may be the wish to wait that is not borne; whether it is more than that, a plain poll will tell.
            self._probe_at = now + self._pace.probe
        elif times > 1:
            # Whoever comes back may be another.
            self._probe_at = 0.0
