"""The one crossing from the loop to the service: a thread that takes everything pending and answers in one go."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from forenotice.core import errors
from forenotice.core.lifecycle import Approval
from forenotice.failures import Failures
from forenotice.heartbeats import Heartbeats
from forenotice.logs import log
from forenotice.metadata.options import Limits

Approved = Callable[[errors.ForenoticeError | None], None]
Heard = Callable[[bool], None]

NAME = "guests"
TURN_SECONDS = 1.0
"""How often the thread beats while nothing is pending."""


class Guests(Protocol):
    """The service, as guests cause things in it. Blocking; called from the bridge's thread only."""

    def approve(self, approvals: Sequence[Approval]) -> list[errors.ForenoticeError | None]:
        """Durable when it returns, one answer for each; None is yes."""

    def heard(self, heard: Mapping[str, datetime]) -> None:
        """When scopes were heard, by key; durable when it returns."""


class Held:
    """An approval that waits for its one answer. Used on the loop only."""

    __slots__ = ("_done", "approval", "deadline")

    def __init__(self, approval: Approval, done: Approved) -> None:
        self.approval = approval
        self.deadline: asyncio.TimerHandle | None = None
        self._done: Approved | None = done

    def answer(self, outcome: errors.ForenoticeError | None) -> None:
        done, self._done = self._done, None
        if self.deadline is not None:
            self.deadline.cancel()
        if done is not None:
            done(outcome)


class Bridge:
    """Callbacks run on the loop, in the order of the calls."""

    def __init__(self, guests: Guests, loop: asyncio.AbstractEventLoop, limits: Limits, heartbeats: Heartbeats) -> None:
        self._guests = guests
        self._heartbeats = heartbeats
        self._loop = loop
        self._capacity = limits.approvals
        self._patience = limits.patience_seconds
        self._pending = threading.Condition()
        self._approvals: dict[Held, None] = {}
        self._heard: dict[str, datetime] = {}
        self._heard_done: list[Heard] = []
        self._closing = False
        self._failures = Failures()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="forenotice-guests", daemon=True)

    def start(self) -> None:
        self._heartbeats.beat(NAME)
        self._thread.start()

    def approve(self, approval: Approval, done: Approved) -> bool:
        """False: too many are pending, or it is too late; nothing will be done."""
        held = Held(approval, done)
        with self._pending:
            if self._closing or len(self._approvals) >= self._capacity:
                return False
            self._approvals[held] = None
            self._pending.notify()
        held.deadline = self._loop.call_later(self._patience, self._give_up, held)
        return True

    def hear(self, heard: Mapping[str, datetime], done: Heard) -> None:
        with self._pending:
            self._heard.update(heard)
            self._heard_done.append(done)
            self._pending.notify()

    async def close(self, seconds: float) -> bool:
        """Finish what is pending; False when that takes too long."""
        with self._pending:
            self._closing = True
            self._pending.notify()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return self._ended.is_set()

    def _give_up(self, held: Held) -> None:
        """The store hangs. It may still commit the approval later; approving twice is the same as once."""
        with self._pending:
            self._approvals.pop(held, None)
        held.answer(errors.UnavailableError())

    def _run(self) -> None:
        while self._take():
            pass
        self._heartbeats.end(NAME)
        self._post(self._ended.set)

    def _take(self) -> bool:
        with self._pending:
            while not (self._approvals or self._heard_done or self._closing):
                self._heartbeats.beat(NAME)
                self._pending.wait(TURN_SECONDS)
            self._heartbeats.beat(NAME)
            heard, heard_done = self._heard, self._heard_done
            approvals = tuple(self._approvals)
            self._heard, self._heard_done, self._approvals = {}, [], {}
        if heard_done:
            # First, because a scope is heard before it approves.
            succeeded = self._tell_heard(heard)
            self._post(lambda: [done(succeeded) for done in heard_done])
        if approvals:
            outcomes = self._tell_approvals([held.approval for held in approvals])
            self._post(lambda: _answer(approvals, outcomes))
        return bool(heard_done or approvals)

    def _tell_heard(self, heard: Mapping[str, datetime]) -> bool:
        try:
            if heard:
                self._guests.heard(heard)
        except Exception as error:
            self._failed(error)
            return False
        self._succeeded()
        return True

    def _tell_approvals(self, approvals: Sequence[Approval]) -> Sequence[errors.ForenoticeError | None]:
        try:
            outcomes = self._guests.approve(approvals)
            if len(outcomes) != len(approvals):
                raise RuntimeError(f"{len(approvals)} approvals got {len(outcomes)} answers")
        except Exception as error:
            self._failed(error)
            return [errors.UnavailableError()] * len(approvals)
        self._succeeded()
        return outcomes

    def _failed(self, error: Exception) -> None:
        """Logs sparingly: while the store is away, every approval fails."""
        if self._failures.again(str(error)):
            expected = isinstance(error, errors.ForenoticeError)
            log.error(
                "What guests sent cannot be kept",
                action="guests.failing",
                reason=str(error),
                failures=self._failures.times,
                exc_info=None if expected else error,
            )

    def _succeeded(self) -> None:
        if times := self._failures.over():
            log.info("What guests send is kept again", action="guests.recovered", failures=times)

    def _post(self, call: Callable[[], object]) -> None:
        # A loop that was closed meanwhile has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)


def _answer(approvals: Iterable[Held], outcomes: Iterable[errors.ForenoticeError | None]) -> None:
    for held, outcome in zip(approvals, outcomes, strict=True):
        held.answer(outcome)
