"""The api-version to ask in: the newest of ours, or after a refusal the newest that both sides know."""

import re
from collections.abc import Callable
from time import monotonic

from forenotice.client import refusals
from forenotice.client.exchange import Answer
from forenotice.wire import versions

NAMES = tuple(version.name for version in versions.ALL)
"""Oldest first; they sort by age."""
NEWEST = versions.NEWEST.name

SOON = 10.0
"""Seconds for which a refusal that does not speak of versions is believed to be for the version: it may have been for
something that passes, and the oldest versions do not list a Preempt."""

_WORDS = re.compile(r"(?:\b|api)version", re.IGNORECASE)


class Negotiation:
    def __init__(self, probe: float, now: Callable[[], float] = monotonic) -> None:
        """`probe` is the seconds until an endpoint that refused the newest version is asked in it once more."""
        self._probe = probe
        self._now = now
        self.version = NEWEST
        self.accepted = ""
        """The version of the last good answer; what is then refused without a word is not refused for it."""
        self._newest_at = self._hopeless_until = 0.0

    def begin(self) -> str:
        """The version of the next request: the endpoint may have been upgraded since the newest was refused."""
        if self._now() >= self._newest_at:
            self.version = NEWEST
        return self.version

    def is_refused(self, asked: str, answer: Answer) -> bool:
        """Whether a request in this version was refused for its version."""
        if answer.status != 400 or refusals.is_control_plane(answer):
            return False
        sentence = refusals.said(answer)
        if _WORDS.search(sentence):
            return True
        if listed := refusals.newest_versions(answer):
            return asked not in listed
        return not sentence and asked != self.accepted

    def lower(self, asked: str, answer: Answer) -> str | None:
        """The version to try after this answer; None: it is not refused for its version, or in all of them."""
        now = self._now()
        if now < self._hopeless_until or not self.is_refused(asked, answer):
            return None
        listed = refusals.newest_versions(answer)
        spoken, soon = bool(listed or refusals.said(answer)), min(self._probe, SOON)
        below = [name for name in NAMES if name < asked]
        # None above the newest that is listed can be known to it.
        both = [name for name in below if name in listed] or [
            name for name in below if name <= max(listed, default=asked)
        ]
        self._newest_at = now + (self._probe if spoken else soon)
        if not both:
            self.version, self._hopeless_until = NEWEST, now + soon
            return None
        self.version = both[-1] if spoken or self.accepted not in both else self.accepted
        return self.version

    def forget(self) -> None:
        """The connection was lost: whoever comes back may be another."""
        self.accepted = ""
        self._newest_at = self._hopeless_until = 0.0
