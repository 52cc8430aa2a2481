"""The thread that asks the endpoint for as long as the agent runs, and what is known of how that goes."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from forenotice.agent.log import Log
from forenotice.agent.messages import Named, Polled
from forenotice.agent.metrics import Metrics, Poll
from forenotice.client import Client, News, Pace
from forenotice.client.negotiating import NEWEST
from forenotice.core import errors

PACE = Pace(interval=0.93)
"""Not quite a second: the endpoint's Date then falls on every part of one, and shows a pause more exactly."""
PAUSE = 5.0
JOIN = 5.0
NAME_AGAIN = 3.0
SILENT = 30.0
"""Seconds without a good answer after which polling does not work."""


class Polling:
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
        self._named = self._client.session.naming.known is not None
        self._ask_name_at = time.monotonic() + self._name_again
        self._decide_patience()
