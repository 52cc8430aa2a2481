"""What every handler promises."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from forenotice.agent.rules.handling import Phase
from forenotice.client.events import Event

GRACE = 5.0
"""Seconds between asking a handler to stop and killing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One phase of one event, to be done now."""

    handler: str
    phase: Phase
    event: Event
    me: str
    """This VM's name."""
    attempt: int
    """Counts from 1; higher after a failure, and when the agent died during the one before."""
    deadline: datetime
    """When the handler must have ended, by the endpoint's clock."""
    seconds_left: float
    """Until the deadline, when the work was handed out."""
    pause: float | None = None
    """How long this VM stood still, in seconds, once that was measured."""
    memo: str = ""
    """What this handler last asked to be reminded of for this event."""
    remember: Callable[[str], None] = lambda _: None
    """Keep a memo. It is durable when this returns, so a handler calls it before it acts. OSError: it is not."""
    born: Callable[[int], None] = lambda _: None
    """Keep the number of a process group that is about to work. OSError: it is not kept, and must not begin."""
    stop: threading.Event
    """Set when the handler is to end at once, without success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    ok: bool
    said: str = ""
    """Why it failed, or the end of what it printed; short, without secrets."""


class Handler(Protocol):
    def run(self, work: Work) -> Outcome:
        """Do it, in a thread of its own, blocking. An exception is a failure.

        When `work.seconds_left` have passed or `work.stop` is set, whatever it started is asked to end, and killed
        GRACE seconds later; it then returns a failure. May be called again for the same event and phase, with a
        higher attempt.
        """

    def rehearse(self) -> Outcome:
        """Look whether it could run, changing nothing; `said` tells what it would do, or what is missing."""
