"""What every handler promises."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

from forenotice.agent.rules.policy import Phase
from forenotice.client.events import Event
from forenotice.core import errors

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


_NAMES = msgspec.json.Decoder(tuple[str, ...])


def write_memo(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


def read_memo(memo: str) -> Sequence[str] | None:
    """None: nothing is known, which is not the same as nothing."""
    try:
        return _NAMES.decode(memo) if memo else None
    except msgspec.DecodeError:
        return None


T = TypeVar("T")
_LOOK = 0.05


class StoppedError(errors.UnavailableError):
    """stopped, as the agent asked"""

    code = "stopped"


def within(call: Callable[[], T], *, until: float, stop: threading.Event, interrupt: Callable[[], None]) -> T:
    """Its result or exception; TimeoutError after `until`, by the monotonic clock; StoppedError when `stop` is set.

    Nothing can end a look-up of a host's name, for one: a call that does not heed `interrupt` is left behind.
    """
    ends: list[Callable[[], T]] = []
    thread = threading.Thread(target=lambda: ends.append(_end(call)), name="handler call", daemon=True)
    thread.start()
    while thread.is_alive():
        left = until - time.monotonic()
        if left <= 0 or stop.is_set():
            interrupt()
            raise StoppedError if stop.is_set() else TimeoutError("timed out")
        thread.join(min(left, _LOOK))
    return ends[0]()


def _end(call: Callable[[], T]) -> Callable[[], T]:
    try:
        result = call()
    except Exception as error:
        failure = error

        def fail() -> T:
            raise failure

        return fail
    return lambda: result
