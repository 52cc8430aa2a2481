"""What the agent is doing and why: a file in the state directory, for `forenotice agent status`."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from forenotice.agent import journal, status
from forenotice.agent.endpoint import Poller
from forenotice.agent.listener import Reply, Request, Routes
from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics
from forenotice.agent.posix import Notifier
from forenotice.agent.rules.policy import others_in
from forenotice.agent.rules.saga import Pause, Saga
from forenotice.agent.sagas import Sagas
from forenotice.clock import MachineClock
from forenotice.core import errors

FILE = "status.json"
STALE = timedelta(seconds=30)
"""A running agent has written it since, if it could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    polling_ok: bool
    polling_why: str
    ready: bool
    """Not from the start of preparing until recovered."""
    ready_why: str


class StepStatus(msgspec.Struct, frozen=True, kw_only=True):
    phase: str
    handler: str
    progress: str
    attempt: int
    said: str


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Another VM that the event names."""

    name: str
    ready_at: datetime | None
    """Since when; None: it has not said that it is."""
    trouble: str
    """Why it has not acknowledged what this agent tells it, or is not believed; empty when all is well."""


class SagaStatus(msgspec.Struct, frozen=True, kw_only=True):
    event_id: str
    type: str
    state: str
    why: str
    resources: tuple[str, ...]
    not_before: datetime | None
    seen_at: datetime
    would_approve_at: datetime | None = None
    done_at: datetime | None
    announced_seconds: int | None
    pause: Pause | None
    steps: tuple[StepStatus, ...]
    peers: tuple[PeerStatus, ...] = ()


class Status(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    written_at: datetime
    name: str
    observe: bool = False
    """Nothing is run or approved."""
    clock_ahead: float = 0.0
    """Seconds by which the endpoint's clock is ahead of this machine's; peers are told times by the endpoint's."""
    endpoint: str
    polling: bool
    polling_why: str
    ready: bool
    ready_why: str
    journal: bool
    """Whether the state directory can be written: else nothing is prepared or approved."""
    sagas: tuple[SagaStatus, ...]
    recent: tuple[SagaStatus, ...]


NOBODY: Mapping[str, tuple[PeerStatus, ...]] = {}


def of_sagas(sagas: Sequence[Saga], company: Mapping[str, tuple[PeerStatus, ...]] = NOBODY) -> tuple[SagaStatus, ...]:
    """`company` are the peers, by saga."""
    return tuple(
        SagaStatus(
            event_id=saga.id,
            type=saga.event.type,
            state=saga.state,
            why=saga.why,
            resources=saga.event.resources,
            not_before=saga.event.deadline,
            seen_at=saga.seen_at,
            would_approve_at=saga.would_approve_at,
            done_at=saga.done_at,
            announced_seconds=saga.event.duration_seconds,
            pause=saga.pause,
            steps=tuple(
                StepStatus(
                    phase=step.phase,
                    handler=step.handler,
                    progress=step.progress,
                    attempt=step.attempt,
                    said=step.said,
                )
                for step in saga.steps
            ),
            peers=company.get(saga.id, ()),
        )
        for saga in sagas
    )


def write(directory: Path, status: Status) -> None:
    """OSError when it cannot be written; a reader sees the old one or the new one."""
    new = directory / f"{FILE}.new"
    new.unlink(missing_ok=True)
    with open(new, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(msgspec.json.encode(status) + b"\n")
    new.replace(directory / FILE)


def read(directory: Path) -> tuple[Status | None, bool | None]:
    """What was last written, if anything was, and whether the agent runs; None when that cannot be told."""
    running = journal.is_running(directory)
    try:
        with open(directory / FILE, "rb", opener=_without_waiting) as file:
            found = msgspec.json.decode(file.read(), type=Status)
    except FileNotFoundError:
        return None, running
    except OSError as error:
        raise errors.UnavailableError(f"the state directory {directory} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise errors.UnavailableError(f"{directory / FILE} cannot be read: {error}") from None
    if running is None and abs(MachineClock().now() - found.written_at) < STALE:
        running = True
    return found, running


def _without_waiting(path: str, flags: int) -> int:
    """If it is a pipe, opening it would wait for the other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


Untold = Callable[[str], Mapping[str, str]]
EVERY = 10.0
HANGS = 30.0
"""Seconds in which the loop has always made a turn."""


class Reporter:
    """Belongs to the loop's thread, except for `standing`, which anybody may read."""

    def __init__(
        self,
        directory: Path,
        memory: Sagas,
        polling: Poller,
        clock: MachineClock,
        log: Log,
        metrics: Metrics,
        notifier: Notifier,
    ) -> None:
        self._directory = directory
        self._memory = memory
        self._polling = polling
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._notifier = notifier
        self._last: tuple[object, ...] = ()
        self._written_at = float("-inf")
        self._turned_at = time.monotonic()
        self._stands = self._standing()

    @property
    def standing(self) -> Health:
        if time.monotonic() - self._turned_at > HANGS:
            return replace(self._stands, polling_ok=False, polling_why="the agent hangs")
        return self._stands

    def report(self, me: str, *, observe: bool = False, untold: Untold | None = None) -> None:
        """`untold` says of an event which peers have not acknowledged, and why; None: there are no peers."""
        self._notifier.alive()
        self._stands = standing = self._standing()
        self._turned_at = time.monotonic()
        self._metrics.became(ready=standing.ready)
        self._metrics.handles(Counter(saga.state for saga in self._memory.live))
        company = {saga.id: self._company(saga, untold) for saga in self._memory.live} if untold else {}
        seen = (me, standing, self._memory.writable, company, *self._memory.live)
        if seen == self._last and time.monotonic() - self._written_at < EVERY:
            return
        if seen != self._last:
            self._notifier.status(standing.ready_why if standing.polling_ok else standing.polling_why)
        self._last, self._written_at = seen, time.monotonic()
        self._write(me, standing, observe, company)

    def _company(self, saga: Saga, untold: Untold) -> tuple[PeerStatus, ...]:
        others = others_in(saga.event, saga.names)
        ready = self._memory.peers.get(saga.id, {})
        why = untold(saga.id) if others else {}
        return tuple(
            PeerStatus(name=name, ready_at=ready.get(name.lower()), trouble=why.get(name, "")) for name in others
        )

    def _write(self, me: str, standing: Health, observe: bool, company: Mapping[str, tuple[PeerStatus, ...]]) -> None:
        report = Status(
            pid=os.getpid(),
            written_at=self._clock.now(),
            name=me,
            observe=observe,
            clock_ahead=self._polling.ahead.total_seconds(),
            endpoint=self._polling.endpoint,
            polling=standing.polling_ok,
            polling_why=standing.polling_why,
            ready=standing.ready,
            ready_why=standing.ready_why,
            journal=self._memory.writable,
            sagas=status.of_sagas(self._memory.live, company),
            recent=status.of_sagas(self._memory.recent),
        )
        try:
            status.write(self._directory, report)
        except OSError as error:
            self._log.trouble("The status cannot be written", action="status.failed", reason=str(error))

    def _standing(self) -> Health:
        """Shown to whoever asks over HTTP: nothing that a handler said."""
        out = [saga for saga in self._memory.pending if saga.out]
        unread = self._memory.unread
        works = self._polling.works
        return Health(
            polling_ok=works,
            polling_why="the endpoint answers" if works else self._polling.why,
            ready=not out and not unread,
            ready_why="; ".join(f"{saga.event.type or 'an earlier event'}: {saga.state}" for saga in out)
            or ("the journal has not been read yet" if unread else "nothing is near"),
        )


def routes(standing: Callable[[], Health]) -> Routes:
    """Asked anew for each request, from any thread."""

    def healthz(_: Request) -> Reply:
        now = standing()
        return _said(now.polling_ok, now.polling_why)

    def readyz(_: Request) -> Reply:
        now = standing()
        return _said(now.ready, now.ready_why)

    return {("GET", "/healthz"): healthz, ("GET", "/readyz"): readyz}


def _said(ok: bool, why: str) -> Reply:
    return Reply.json({"ok": ok, "why": why}, 200 if ok else 503)
