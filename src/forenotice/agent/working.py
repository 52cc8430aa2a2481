"""Handlers at work, each in a thread of its own."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from forenotice.agent.handlers.interface import GRACE, Handler, Outcome, Work
from forenotice.agent.rules.handling import Phase

PATIENCE = 5.0
"""Seconds after which a handler that should have been killed is given up."""


@dataclass(frozen=True, slots=True)
class Job:
    saga: str
    phase: Phase
    handler: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    job: Job
    outcome: Outcome
    seconds: float
    interrupted: bool = False
    """An agent before this one has begun it, and this one has ended it."""


@dataclass(slots=True, kw_only=True)
class _Running:
    stop: threading.Event
    begun: float
    ends_by: float


class Workers:
    """Belongs to the loop's thread; what has ended is posted to it."""

    def __init__(self, post: Callable[[Ended], None], *, observe: bool = False) -> None:
        """With `observe`, handlers say what they would do, and do nothing."""
        self._post = post
        self._observe = observe
        self._running: dict[Job, _Running] = {}

    def begin(self, job: Job, handler: Handler, work: Work) -> None:
        now = time.monotonic()
        ends_by = now + work.seconds_left + GRACE + PATIENCE
        self._running[job] = _Running(stop=work.stop, begun=now, ends_by=ends_by)
        name = f"{job.phase} {job.handler}"
        threading.Thread(target=self._work, args=(job, handler, work), name=name, daemon=True).start()

    def end(self, job: Job, act: Callable[[], bool]) -> None:
        """`act` ends what an agent before this one has left; whether nothing of it is left, it says."""
        now = time.monotonic()
        threading.Thread(target=self._end, args=(job, act), name=f"end {job.handler}", daemon=True).start()
        self._running[job] = _Running(stop=threading.Event(), begun=now, ends_by=now + GRACE + 2 * PATIENCE)

    def knows(self, job: Job) -> bool:
        return job in self._running

    def unbegun(self, job: Job, error: Exception) -> Ended:
        """What is to be told of one that could not be begun."""
        self._running.setdefault(job, _Running(stop=threading.Event(), begun=0.0, ends_by=float("inf")))
        return Ended(job=job, outcome=Outcome(ok=False, said=f"{type(error).__name__}: {error}"), seconds=0.0)

    def stop(self, job: Job) -> None:
        if running := self._running.get(job):
            running.stop.set()
            running.ends_by = min(running.ends_by, time.monotonic() + GRACE + PATIENCE)

    def stop_all(self) -> None:
        for job in self._running:
            self.stop(job)

    def finish(self, ended: Ended) -> bool:
        """Whether it was still waited for."""
        return self._running.pop(ended.job, None) is not None

    def give_up(self) -> list[Ended]:
        """Those that neither ended nor could be killed: they are left behind."""
        now = time.monotonic()
        return [
            Ended(job=job, outcome=Outcome(ok=False, said="did not end when told to"), seconds=now - running.begun)
            for job, running in self._running.items()
            if now > running.ends_by
        ]

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def _end(self, job: Job, act: Callable[[], bool]) -> None:
        begun = time.monotonic()
        ended = act()
        said = "ended, as an earlier agent had left it" if ended else "left by an earlier agent, and cannot be killed"
        seconds = time.monotonic() - begun
        self._post(Ended(job=job, outcome=Outcome(ok=False, said=said), seconds=seconds, interrupted=ended))

    def _work(self, job: Job, handler: Handler, work: Work) -> None:
        begun = time.monotonic()
        try:
            outcome = handler.rehearse() if self._observe else handler.run(work)
        except Exception as error:
            outcome = Outcome(ok=False, said=f"{type(error).__name__}: {error}")
        self._post(Ended(job=job, outcome=outcome, seconds=time.monotonic() - begun))
