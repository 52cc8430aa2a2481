"""What prepares for an event and recovers from it: the contract of a handler, and what handlers share."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

from forenotice.agent.rules.policy import Phase
from forenotice.client.events import Event
from forenotice.core import errors
from forenotice.runtime import Runtime

GRACE = 5.0
"""Seconds between asking a handler to stop and killing it."""
T = TypeVar("T")
_NAMES = msgspec.json.Decoder(tuple[str, ...])
_LOOK = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    handler: str
    phase: Phase
    event: Event
    me: str
    attempt: int
    """Counts from 1; higher after a failure, and after the agent died during an attempt."""
    deadline: datetime
    """When the handler must have ended, by the endpoint's clock."""
    seconds_left: float
    pause: float | None = None
    """How long this VM stood still, in seconds, once that was measured."""
    memo: str = ""
    remember: Callable[[str], None] = lambda _: None
    """Write a memo. It is durable when this returns, so a handler calls it before it acts. OSError: it is not."""
    on_start: Callable[[int], None] = lambda _: None
    """Write the number of a process group before it begins. OSError: it is not written, and must not begin."""
    stop: threading.Event
    """Set when the handler is to end at once, without success."""


class HandlerError(errors.UnavailableError):
    """The handler failed."""

    code = "handler"


class StoppedError(HandlerError):
    """stopped, as the agent asked"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    ok: bool
    message: str = ""
    """Why it failed, or the end of its output; short, without secrets."""
    interrupted: bool = False
    """An earlier agent began it, and this one has ended it."""

    @classmethod
    def of(cls, act: Callable[[], str]) -> "Outcome":
        try:
            return cls(ok=True, message=act())
        except errors.ForenoticeError as error:
            return cls(ok=False, message=error.message)
        except Exception as error:
            return cls(ok=False, message=f"{type(error).__name__}: {error}")


class Handler(Protocol):
    """Both methods return what is worth logging. An exception is a failure; a ForenoticeError is shown as it is."""

    def run(self, work: Work) -> str:
        """Do it, blocking, in a thread of its own.

        When `work.seconds_left` have passed or `work.stop` is set, it ends whatever it started, kills that GRACE
        seconds later, and fails. May be called again for the same event and phase, with a higher attempt.
        """

    def rehearse(self) -> str:
        """Check whether it could run, changing nothing; tells what it would do."""


def write_memo(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


def read_memo(memo: str) -> Sequence[str] | None:
    """None: unknown, which is not the same as none."""
    try:
        return _NAMES.decode(memo) if memo else None
    except msgspec.DecodeError:
        return None


def within(
    call: Callable[[], T],
    runtime: Runtime,
    *,
    until: float,
    stop: threading.Event,
    interrupt: Callable[[], None] = lambda: None,
) -> T:
    """Its result or exception; TimeoutError after `until`, by the monotonic clock; StoppedError when `stop` is set.

    A call that does not end on `interrupt`, such as the lookup of a host name, is abandoned in its thread.
    """
    results: list[T] = []
    failures: list[Exception] = []
    ended = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            failures.append(error)
        ended.set()

    runtime.start_thread(run, "handler call")
    while not ended.is_set():
        left = until - runtime.monotonic()
        if left <= 0 or stop.is_set():
            interrupt()
            raise StoppedError if stop.is_set() else TimeoutError("timed out")
        ended.wait(min(left, _LOOK))
    if failures:
        raise failures[0]
    return results[0]
