"""The agent's requests to the metadata endpoint: polls for as long as it runs, and approvals until they succeed."""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from forenotice.agent.context import Context
from forenotice.client import Client, News, Pace
from forenotice.client.events import Document, Event
from forenotice.client.negotiation import NEWEST
from forenotice.core import backoff, errors
from forenotice.runtime import Runtime, Started

PACE = Pace(interval=0.93)
"""Not quite a second: the endpoint's Date then falls on every part of one, and shows a pause more exactly."""
APPROVAL_PACE = Pace(first_timeout=5.0)
"""An approval without a response is sent again within a Preempt's 30 seconds."""
LONGEST_PAUSE = 10.0
"""Between two attempts of an approval, in seconds."""
PAUSE, JOIN, NAME_AGAIN = 5.0, 5.0, 3.0
SILENT = 30.0
"""Seconds without a good response after which polling counts as broken."""


@dataclass(frozen=True, slots=True)
class Named:
    me: str


@dataclass(frozen=True, slots=True)
class ApprovalResult:
    """Without an error, the approval is durable."""

    saga: str
    error: str
    refused: bool = False
    """The endpoint refused it, and will until something changes."""
    first: bool = False
    """No other can have arrived before it."""


class Poller:
    """`record`, `hurry` and what it knows belong to the loop's thread."""

    def __init__(
        self,
        client: Client,
        post: Callable[[News | Named], None],
        context: Context,
        *,
        pause: float = PAUSE,
        name_again: float = NAME_AGAIN,
        interval: float = PACE.interval,
    ) -> None:
        self._client = client
        # Without a name the agent can do nothing, and a poll that is held would delay the request for it.
        self._client.patient = False
        self._post = post
        self._log, self._metrics, self._runtime = context.log, context.metrics, context.runtime
        self._pause = pause
        self._name_again = name_again
        self._interval = interval
        self._ended = threading.Event()
        self._thread: Started | None = None
        self._hurried = False
        self._listed: frozenset[str] | None = None
        self._unconfirmed = False
        """It may lack events that were there before: it is polled once more before long."""
        self._named = False
        self._ask_name_at = 0.0
        self._good_at: float | None = None
        self._error = "there was no answer yet"
        self._version = NEWEST
        self.ahead = timedelta(0)
        """By how much the endpoint's clock is ahead of this machine's."""

    def start(self) -> None:
        self._thread = self._runtime.start_thread(self._run, "poll")

    def stop(self) -> None:
        self._ended.set()
        self._client.close()
        if self._thread:
            self._thread.join(JOIN)

    @property
    def endpoint(self) -> str:
        return self._client.endpoint

    @property
    def silent_for(self) -> float | None:
        """Seconds since the last good response; None: there was none yet."""
        return None if self._good_at is None else self._runtime.monotonic() - self._good_at

    @property
    def works(self) -> bool:
        return (silent_for := self.silent_for) is not None and silent_for < SILENT

    @property
    def why(self) -> str:
        return self._error or f"the endpoint has been silent for more than {SILENT:.0f} s"

    def record(self, news: News) -> None:
        if news.error is not None:
            self._error = news.error.message
            self._metrics.polled("error")
            self._log.trouble("The endpoint cannot be used", action="poll.failed", reason=self._error)
            return
        self._error = ""
        self.ahead = timedelta(seconds=self._client.ahead)
        self._good_at = news.answered_at
        self._metrics.polled("ok" if news.changed else "unchanged")
        self._log.over("The endpoint answers again", action="poll.failed")
        if self._version != (version := self._client.api_version):
            self._version = version
            self._log.info("Polls use another api-version", action="poll.version", api_version=version)

    def hurry(self, hurry: bool) -> None:
        """Poll once a second rather than let the server hold the poll."""
        self._hurried = hurry
        self._decide_patience()

    def _decide_patience(self) -> None:
        self._client.patient = self._named and not self._hurried and not self._unconfirmed

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._follow()
            except Exception as error:
                # A defect; but an agent that stops polling is worse than none.
                reason = f"{type(error).__name__}: {error}"
                self._log.trouble("Polling failed and begins again", action="poll.broken", reason=reason)
                self._ended.wait(self._pause)

    def _follow(self) -> None:
        for news in self._client.follow():
            if news.error is None and news.document is not None:
                self._find_name()
            if news.shown and news.document is not None:
                before, self._listed = self._listed, frozenset(event.id for event in news.document.events)
                self._unconfirmed = news.changed and (before is None or not before <= self._listed)
                self._decide_patience()
            self._post(news)
            if self._unconfirmed:
                self._ended.wait(self._interval)

    def _find_name(self) -> None:
        """A host name is only a guess, so the endpoint is asked every few seconds until it tells the name."""
        if self._named or self._runtime.monotonic() < self._ask_name_at:
            return
        try:
            self._post(Named(self._client.me))
        except errors.ForenoticeError as error:
            self._log.trouble("The name of this VM is not known", action="name.failed", reason=error.message)
            return
        self._named = self._client.remote.name is not None
        self._ask_name_at = self._runtime.monotonic() + self._name_again
        self._decide_patience()


class Approver:
    """Belongs to the loop's thread; results are posted to it."""

    def __init__(
        self, client: Client, post: Callable[[ApprovalResult], None], runtime: Runtime, pace: Pace = APPROVAL_PACE
    ) -> None:
        self._client = client
        self._post = post
        self._runtime = runtime
        self._pace = pace
        self._under_way: set[str] = set()
        self._failures: dict[str, tuple[int, float]] = {}
        """How many in a row, and when to try again, by saga."""

    def may_send(self, saga: str) -> bool:
        _, again_at = self._failures.get(saga, (0, 0.0))
        return saga not in self._under_way and self._runtime.monotonic() >= again_at

    def send(self, saga: str, event: Event, *, first: bool = False) -> None:
        self._under_way.add(saga)
        try:
            self._runtime.start_thread(lambda: self._post(self._sent(saga, event, first)), "approve")
        except RuntimeError as error:
            self._post(ApprovalResult(saga, str(error)))

    def record(self, result: ApprovalResult) -> None:
        self._under_way.discard(result.saga)
        failures, _ = self._failures.pop(result.saga, (0, 0.0))
        if result.error:
            again_at = self._runtime.monotonic() + backoff.pause(failures + 1, 1.0, LONGEST_PAUSE)
            self._failures[result.saga] = (failures + 1, again_at)

    def _sent(self, saga: str, event: Event, first: bool) -> ApprovalResult:
        try:
            with Client(self._client.endpoint, pace=self._pace) as client:
                client.remote.negotiation = self._client.remote.negotiation
                client.approve(event)
        except errors.ForenoticeError as error:
            refused = isinstance(error, errors.RefusedError)
            return ApprovalResult(saga, error.message, refused=refused, first=first)
        except Exception as error:
            return ApprovalResult(saga, f"{type(error).__name__}: {error}")
        return ApprovalResult(saga, "")


class EventList:
    """The listed events. Belongs to the loop's thread.

    Events that one document lacks, such as that of a server that has just started, may be back in the next: an event is
    gone when two polls in a row did not show it.
    """

    def __init__(self) -> None:
        self.document: Document | None = None
        self.asked_at: float | None = None
        """When the poll was sent that gave it or confirmed it, by the monotonic clock."""
        self._events: Mapping[str, Event] = {}
        self._before: Collection[str] | None = None
        """The events of the poll before; None: nothing that this one would confirm."""

    def record(self, news: News) -> bool:
        if news.error is None:
            self.asked_at = news.asked_at
        if not news.shown or news.document is None:
            return False
        last, self.document = self.document, news.document
        confirmed, events = self._before, self._events
        # A server whose incarnation falls has started anew, and may not know all events yet.
        anew = last is None or news.document.incarnation < last.incarnation
        self._before = None if anew else events.keys()
        if news.document is not last:
            self._events = {event.id.upper(): event for event in reversed(news.document.events)}
        return self._events is not events or self._before != confirmed

    def find(self, event_id: str) -> Event | None:
        return self._events.get(event_id)

    def knows(self, event_id: str) -> bool:
        """Whether it is certain that it is listed, or that it is gone."""
        return event_id in self._events or (self._before is not None and event_id not in self._before)
