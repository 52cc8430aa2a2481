"""Following an endpoint: the result of each poll as news, and what happened to events from one to the next."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import TypeAlias, TypeVar

from forenotice.client.endpoint import Endpoint, Pause, Stream
from forenotice.client.errors import EndpointError
from forenotice.client.events import Document, Event
from forenotice.failures import Failures

T = TypeVar("T")

LOGGER = "forenotice.client"


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """The result of one request; of a long poll that failed, only of the plain poll after it."""

    document: Document | None
    """The last good one; None: there was none yet."""
    changed: bool
    """It is another document than that of the news before."""
    error: EndpointError | None
    """Why there was no good response; then nothing is known of the present."""
    date: datetime | None
    """The endpoint's clock, in whole seconds, when it responded."""
    asked_at: float
    answered_at: float
    """Both by the monotonic clock."""
    shown: bool = True
    """The response was this document, or that it still holds: not an error, nothing at all, or an older document."""


@dataclass(frozen=True, slots=True)
class Appeared:
    event: Event


@dataclass(frozen=True, slots=True)
class Started:
    event: Event


@dataclass(frozen=True, slots=True)
class Gone:
    """It is over, or was cancelled before it started, or is about this VM no longer."""

    event: Event
    """As it was last listed."""
    started: bool
    """It was seen as Started; otherwise it may yet have started and ended between two polls."""


Change: TypeAlias = Appeared | Started | Gone


def follow(endpoint: Endpoint) -> Stream[News]:
    return _follow(endpoint, _as_it_is)


def watch(endpoint: Endpoint, mine: bool) -> Stream[Change]:
    """With `mine`, events that are not about this VM are left out."""
    return _follow(endpoint, _Watch(endpoint, mine).changes)


def _as_it_is(news: News) -> Stream[News]:
    yield news


def _follow(endpoint: Endpoint, tell: Callable[[News], Stream[T]]) -> Stream[T]:
    """Poll for ever: once a second, by long polls where the server supports them, slower while something is wrong."""
    pace = endpoint.pace
    shown: bytes | None = None
    failures = 0
    long_polls_from = 0.0
    """When long polling is worth a try; whether the server supports it is found out by trying."""
    while True:
        asked_at = monotonic()
        known = endpoint.known
        # Somebody else may have polled meanwhile: what is not told yet is not to be waited for.
        can_wait = known is not None and bool(known.tag) and known.body == shown
        long = can_wait and not failures and endpoint.patient and asked_at >= long_polls_from
        polled = error = None
        try:
            polled = yield from endpoint.poll(pace.wait if long else 0)
        except EndpointError as failure:
            error = failure
        answered_at = monotonic()
        failures = 0 if error is None else failures + 1
        if error is not None and long:
            # Perhaps the server does not support long polling; a plain poll shows whether it is more than that.
            long_polls_from = answered_at + pace.probe
            yield Pause(pace.after(failures, error))
            continue
        if failures > 1:
            # The server that comes back may be another.
            long_polls_from = 0.0
        known = polled.known if polled else endpoint.known
        changed = polled is not None and known is not None and known.body != shown
        if polled is not None:
            shown = known.body if known else None
            if polled.waited and not changed and answered_at - asked_at < pace.at_once:
                long_polls_from = answered_at + pace.probe
        yield from tell(
            News(
                document=known.document if known else None,
                changed=changed,
                error=error,
                date=polled.date if polled else None,
                asked_at=asked_at,
                answered_at=answered_at,
                shown=polled is not None and polled.shown,
            )
        )
        yield Pause(pace.after(failures, error) if error else max(0.0, asked_at + pace.interval - monotonic()))


class _Watch:
    """From news to changes. Failures are logged, and no event is gone because of them."""

    def __init__(self, endpoint: Endpoint, mine: bool) -> None:
        self._endpoint = endpoint
        self._mine = mine
        self._ledger = Ledger()
        self._failures = Failures(ignore_numbers=False)
        self._seen: Document | None = None

    def changes(self, news: News) -> Stream[Change]:
        if news.error is not None:
            self._log_failure(news.error)
            return
        if news.document is not None and news.document is not self._seen:
            try:
                events = yield from self._endpoint.relevant(news.document, self._mine)
            except EndpointError as error:
                # The next news brings the same document, and another try.
                self._log_failure(error)
                return
            if not self._mine or self._endpoint.name is not None or len(events) == len(news.document.events):
                self._seen = news.document
            # Otherwise the name is a guess that leaves something out: with the next news the endpoint is asked again.
            yield from self._ledger.compare(events)
        if times := self._failures.over():
            import logging

            logging.getLogger(LOGGER).info(
                "the metadata endpoint answers again", extra={"action": "watch.recovered", "times": times}
            )

    def _log_failure(self, error: EndpointError) -> None:
        if self._failures.again(error.cause):
            # Imported only now: most processes never need it, and it is not small.
            import logging

            logging.getLogger(LOGGER).warning(
                "the metadata endpoint cannot be used: %s",
                error.message,
                extra={"action": "watch.failed", "times": self._failures.times},
            )


class Ledger:
    """The events that are listed, each only ever moving forward."""

    def __init__(self) -> None:
        self._listed: dict[str, Event] = {}

    def compare(self, events: Iterable[Event]) -> Iterator[Change]:
        # Ids are compared without regard to case.
        present = {event.id.upper(): event for event in events}
        for key in [key for key in self._listed if key not in present]:
            event = self._listed.pop(key)
            yield Gone(event, event.started)
        for key, event in present.items():
            before = self._listed.get(key)
            if before is not None and before.started:
                # A document that shows it as Scheduled again is an old one.
                continue
            self._listed[key] = event
            if before is None:
                yield Appeared(event)
            if event.started:
                yield Started(event)
