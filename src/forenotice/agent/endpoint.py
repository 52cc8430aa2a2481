"""The thread that asks the endpoint for as long as the agent runs, and what is known of how that goes."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics, Poll
from forenotice.client import Client, News, Pace
from forenotice.client.events import Document, Event
from forenotice.client.negotiation import NEWEST
from forenotice.core import backoff, errors

PACE = Pace(interval=0.93)
"""Not quite a second: the endpoint's Date then falls on every part of one, and shows a pause more exactly."""
PAUSE = 5.0
JOIN = 5.0
NAME_AGAIN = 3.0
SILENT = 30.0
"""Seconds without a good answer after which polling does not work."""


@dataclass(frozen=True, slots=True)
class Polled:
    news: News


@dataclass(frozen=True, slots=True)
class Named:
    """This VM's own name is known."""

    me: str


@dataclass(frozen=True, slots=True)
class Answered:
    """An approval was answered; without an error it is durable."""

    saga: str
    error: str
    refused: bool = False
    """The endpoint will not have it, as far as it knows now."""
    first: bool = False
    """No other can have arrived before it."""


class Poller:
    """`heard`, `hurry` and what it knows belong to the loop's thread."""

    def __init__(
        self,
        client: Client,
        post: Callable[[Polled | Named], None],
        log: Log,
        metrics: Metrics,
        *,
        pause: float = PAUSE,
        name_again: float = NAME_AGAIN,
        interval: float = PACE.interval,
    ) -> None:
        self._client = client
        # Without a name nothing can be done, and a poll that is held would only keep us from asking for it.
        self._client.patient = False
        self._post = post
        self._log = log
        self._metrics = metrics
        self._pause = pause
        self._name_again = name_again
        self._interval = interval
        self._ended = threading.Event()
        self._hurried = False
        self._listed: frozenset[str] | None = None
        """What the last document listed."""
        self._unconfirmed = False
        """It may lack what was there before: it is asked for once more before long."""
        self._named = False
        """For good."""
        self._ask_name_at = 0.0
        self._good_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)
        self._error = "there was no answer yet"
        self._version = NEWEST
        self.ahead = timedelta(0)
        """Of this machine's clock, the endpoint's."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._client.close()
        self._thread.join(JOIN)

    @property
    def endpoint(self) -> str:
        return self._client.endpoint

    @property
    def silent_for(self) -> float | None:
        """Seconds since the last good answer; None: there was none yet."""
        return None if self._good_at is None else time.monotonic() - self._good_at

    @property
    def works(self) -> bool:
        silent_for = self.silent_for
        return silent_for is not None and silent_for < SILENT

    @property
    def why(self) -> str:
        """Why it does not work."""
        return self._error or f"the endpoint has been silent for more than {SILENT:.0f} s"

    def heard(self, news: News) -> None:
        if news.error is not None:
            self._error = news.error.message
            self._metrics.polled(Poll.ERROR)
            self._log.trouble("The endpoint cannot be used", action="poll.failed", reason=self._error)
            return
        self._error = ""
        self.ahead = timedelta(seconds=self._client.ahead)
        self._good_at = news.answered_at
        self._metrics.polled(Poll.OK if news.changed else Poll.UNCHANGED)
        self._log.over("The endpoint answers again", action="poll.failed")
        if self._version != (version := self._client.api_version):
            self._version = version
            self._log.info("The endpoint is asked in another version", action="poll.version", api_version=version)

    def hurry(self, hurry: bool) -> None:
        """Poll once a second rather than wait long."""
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
                self._log.trouble("Polling broke off and begins again", action="poll.broken", reason=reason)
                self._ended.wait(self._pause)

    def _follow(self) -> None:
        for news in self._client.follow():
            if news.error is None and news.document is not None:
                self._find_name()
            if news.shown and news.document is not None:
                before, self._listed = self._listed, frozenset(event.id for event in news.document.events)
                self._unconfirmed = news.changed and (before is None or not before <= self._listed)
                self._decide_patience()
            self._post(Polled(news))
            if self._unconfirmed:
                self._ended.wait(self._interval)

    def _find_name(self) -> None:
        """Once for good; a host name is only a guess, so the endpoint is asked again every few seconds."""
        if self._named or time.monotonic() < self._ask_name_at:
            return
        try:
            self._post(Named(self._client.me))
        except errors.ForenoticeError as error:
            self._log.trouble("The name of this VM is not known", action="name.failed", reason=error.message)
            return
        self._named = self._client.remote.name is not None
        self._ask_name_at = time.monotonic() + self._name_again
        self._decide_patience()


LONGEST_PAUSE = 10.0
APPROVAL_PACE = Pace(first_timeout=5.0)
"""An approval that is not answered is sent again while a Preempt's 30 seconds last."""


class Approver:
    """Belongs to the loop's thread; what was answered is posted to it."""

    def __init__(self, client: Client, post: Callable[[Answered], None], pace: Pace = APPROVAL_PACE) -> None:
        """`client` knows the endpoint, and the version to ask it in."""
        self._client = client
        self._pace = pace
        self._post = post
        self._under_way: set[str] = set()
        self._failures: dict[str, int] = {}
        self._again_at: dict[str, float] = {}

    def may_send(self, saga: str) -> bool:
        return saga not in self._under_way and time.monotonic() >= self._again_at.get(saga, 0.0)

    def send(self, saga: str, event: Event, *, first: bool = False) -> None:
        self._under_way.add(saga)
        try:
            threading.Thread(target=self._send, args=(saga, event, first), name="approve", daemon=True).start()
        except RuntimeError as error:
            self._post(Answered(saga, str(error)))

    def answered(self, answer: Answered) -> None:
        self._under_way.discard(answer.saga)
        if not answer.error:
            self._failures.pop(answer.saga, None)
            self._again_at.pop(answer.saga, None)
            return
        failures = self._failures.get(answer.saga, 0) + 1
        self._failures[answer.saga] = failures
        self._again_at[answer.saga] = time.monotonic() + backoff.pause(failures, 1.0, LONGEST_PAUSE)

    def _send(self, saga: str, event: Event, first: bool) -> None:
        try:
            with Client(self._client.endpoint, pace=self._pace) as client:
                client.remote.negotiation = self._client.remote.negotiation
                client.approve(event)
        except errors.ForenoticeError as error:
            refused = isinstance(error, errors.RefusedError)
            self._post(Answered(saga, error.message, refused=refused, first=first))
        except Exception as error:
            self._post(Answered(saga, f"{type(error).__name__}: {error}"))
        else:
            self._post(Answered(saga, ""))


NOBODY: Mapping[str, Event] = {}


class EventList:
    """Belongs to the loop's thread.

    What one document lacks, such as that of a server that has just been started, may be back in the next: an event is
    gone when two polls in a row did not show it.
    """

    def __init__(self) -> None:
        self.document: Document | None = None
        self.asked_at: float | None = None
        """When the endpoint was asked for it, or whether it still holds, by the monotonic clock."""
        self._events = NOBODY
        self._before: Collection[str] | None = None
        """What the poll before showed; None: nothing that this one would confirm."""

    def heard(self, news: News) -> bool:
        """Whether it says anything new."""
        if news.error is None:
            self.asked_at = news.asked_at
        if not news.shown or news.document is None:
            return False
        last, self.document = self.document, news.document
        was_certain, before = self._before, self._events
        # Whoever counts from the beginning again has begun again, and may not know everything yet.
        anew = last is None or news.document.incarnation < last.incarnation
        self._before = None if anew else before.keys()
        if news.document is not last:
            self._events = {event.id.upper(): event for event in reversed(news.document.events)}
        return self._events is not before or self._before != was_certain

    def find(self, event_id: str) -> Event | None:
        return self._events.get(event_id)

    def knows(self, event_id: str) -> bool:
        """Whether it is certain that it is listed, or that it is not."""
        return event_id in self._events or (self._before is not None and event_id not in self._before)
