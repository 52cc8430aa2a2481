"""The api-version of requests: the newest of ours, or after a refusal the newest that both sides know."""

import re
from collections.abc import Callable
from time import monotonic

from forenotice.client import errors
from forenotice.client.http import Response
from forenotice.wire import versions

NAMES = tuple(version.name for version in versions.ALL)
"""Oldest first; they sort by age."""
NEWEST = versions.NEWEST.name

SOON = 10.0
"""Seconds for which a refusal that does not mention versions is taken to be for the version: its cause may pass, and
the oldest versions do not list a Preempt."""

_WORDS = re.compile(r"(?:\b|api)version", re.IGNORECASE)


class Negotiation:
    def __init__(self, probe: float, now: Callable[[], float] = monotonic) -> None:
        """`probe`: seconds until the newest version is tried again at an endpoint that refused it."""
        self._probe = probe
        self._now = now
        self.version = NEWEST
        self.accepted = ""
        """The version of the last good response; a refusal without a message is then not for the version."""
        self._newest_at = self._hopeless_until = 0.0

    def begin(self) -> str:
        """The version of the next request: the endpoint may have been upgraded since the newest was refused."""
        if self._now() >= self._newest_at:
            self.version = NEWEST
        return self.version

    def is_refused(self, asked: str, response: Response) -> bool:
        """Whether a request in this version was refused for its version."""
        if response.status != 400 or errors.is_control_plane(response):
            return False
        sentence = errors.message_of(response)
        if _WORDS.search(sentence):
            return True
        if listed := errors.newest_versions(response):
            return asked not in listed
        return not sentence and asked != self.accepted

    def lower(self, asked: str, response: Response) -> str | None:
        """The version to try after this response; None: it is not refused for its version, or in all of them."""
        now = self._now()
        if now < self._hopeless_until or not self.is_refused(asked, response):
            return None
        listed = errors.newest_versions(response)
        stated, soon = bool(listed or errors.message_of(response)), min(self._probe, SOON)
        below = [name for name in NAMES if name < asked]
        # It cannot know any above the newest that it lists.
        both = [name for name in below if name in listed] or [
            name for name in below if name <= max(listed, default=asked)
        ]
        self._newest_at = now + (self._probe if stated else soon)
        if not both:
            self.version, self._hopeless_until = NEWEST, now + soon
            return None
        self.version = both[-1] if stated or self.accepted not in both else self.accepted
        return self.version

    def forget(self) -> None:
        """The connection was lost: the server that comes back may be another."""
        self.accepted = ""
        self._newest_at = self._hopeless_until = 0.0
