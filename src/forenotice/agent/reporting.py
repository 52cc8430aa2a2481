"""After each turn: what systemd, the load balancer and `forenotice agent status` are told."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from forenotice.agent import status
from forenotice.agent.health import Standing
from forenotice.agent.log import Log
from forenotice.agent.memory import Memory
from forenotice.agent.metrics import Metrics
from forenotice.agent.polling import Polling
from forenotice.agent.posix.notify import Notifier
from forenotice.agent.rules.approval import others_in
from forenotice.agent.rules.saga import Saga
from forenotice.agent.status import PeerStatus, Status
from forenotice.clock import MachineClock

Untold = Callable[[str], Mapping[str, str]]
EVERY = 10.0
HANGS = 30.0
"""Seconds in which the loop has always made a turn."""


class Reporter:
    """Belongs to the loop's thread, except for `standing`, which anybody may read."""

    def __init__(
        self,
        directory: Path,
        memory: Memory,
        polling: Polling,
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
    def standing(self) -> Standing:
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

    def _write(self, me: str, standing: Standing, observe: bool, company: Mapping[str, tuple[PeerStatus, ...]]) -> None:
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

    def _standing(self) -> Standing:
        """Shown to whoever asks over HTTP: nothing that a handler said."""
        out = [saga for saga in self._memory.pending if saga.out]
        unread = self._memory.unread
        works = self._polling.works
        return Standing(
            polling_ok=works,
            polling_why="the endpoint answers" if works else self._polling.why,
            ready=not out and not unread,
            ready_why="; ".join(f"{saga.event.type or 'an earlier event'}: {saga.state}" for saga in out)
            or ("the journal has not been read yet" if unread else "nothing is near"),
        )
