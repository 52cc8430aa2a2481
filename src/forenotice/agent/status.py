"""What the agent is doing and why: the file that `forenotice agent status` reads, /healthz and /readyz, and systemd."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from forenotice.agent import journal
from forenotice.agent.context import Context
from forenotice.agent.endpoint import Poller
from forenotice.agent.posix import Notifier
from forenotice.agent.rules.policy import others_in
from forenotice.agent.rules.saga import Saga
from forenotice.agent.sagas import Sagas
from forenotice.clock import MachineClock
from forenotice.core import errors

FILE = "status.json"
STALE = timedelta(seconds=30)
"""A running agent has written the file since, if it could."""
INTERVAL = 10.0
"""Seconds after which the file is written even if nothing has changed."""
HANGS = 30.0
"""Seconds in which the loop has always made a turn."""
Unacknowledged = Callable[[str], Mapping[str, str]]


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ready_at: datetime | None
    """Since when; None: it has not reported that it is."""
    trouble: str
    """Why it has not acknowledged a message, or why its messages are refused; empty when all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    polling_ok: bool
    polling_why: str
    ready: bool
    """Not from the start of preparing until recovered."""
    ready_why: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    written_at: datetime
    name: str
    observe: bool = False
    clock_ahead: float = 0.0
    """Seconds by which the endpoint's clock is ahead of this machine's; messages to peers use the endpoint's."""
    endpoint: str
    health: Health
    journal: bool
    """Whether the state directory can be written: otherwise nothing is prepared or approved."""
    sagas: tuple[Saga, ...]
    """Those that are not over; without memos and configurations, as are the recent ones."""
    recent: tuple[Saga, ...]
    peers: Mapping[str, tuple[PeerStatus, ...]] = {}
    """By saga."""


def write(directory: Path, status: Status) -> None:
    """OSError: it cannot be written. A reader sees the old file or the new one."""
    new = directory / f"{FILE}.new"
    new.unlink(missing_ok=True)
    with open(new, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(msgspec.json.encode(status) + b"\n")
    new.replace(directory / FILE)


def read(directory: Path) -> tuple[Status | None, bool | None]:
    """The last status, if there is one, and whether the agent runs; None if unknown."""

    def open_without_blocking(path: str, flags: int) -> int:
        """To open a pipe would wait for its other end."""
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))

    running = journal.is_running(directory)
    try:
        with open(directory / FILE, "rb", opener=open_without_blocking) as file:
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


class Reporter:
    """After each turn tells systemd, the load balancer and `forenotice agent status`.

    Belongs to the loop's thread, except for `health`.
    """

    def __init__(self, directory: Path, sagas: Sagas, poller: Poller, notifier: Notifier, context: Context) -> None:
        self._directory = directory
        self._sagas = sagas
        self._poller = poller
        self._notifier = notifier
        self._context = context
        self._monotonic = context.runtime.monotonic
        self._last: tuple[object, ...] = ()
        self._written_at = float("-inf")
        self._turned_at = self._monotonic()
        self._health = self._look()

    def health(self) -> Health:
        """From any thread."""
        if self._monotonic() - self._turned_at > HANGS:
            return replace(self._health, polling_ok=False, polling_why="the agent hangs")
        return self._health

    def report(self, me: str, unacknowledged: Unacknowledged | None = None) -> None:
        """Without `unacknowledged` there are no peers."""
        self._notifier.alive()
        self._health = health = self._look()
        now = self._turned_at = self._monotonic()
        live = self._sagas.live
        self._context.metrics.show("ready", float(health.ready))
        self._context.metrics.handles(Counter(saga.state for saga in live))
        peers = {saga.id: self._peers(saga, unacknowledged) for saga in live} if unacknowledged else {}
        seen = (me, health, self._sagas.writable, peers, *live)
        if seen == self._last and now - self._written_at < INTERVAL:
            return
        if seen != self._last:
            self._notifier.status(health.ready_why if health.polling_ok else health.polling_why)
        self._last, self._written_at = seen, now
        status = Status(
            pid=os.getpid(),
            written_at=self._context.clock.now(),
            name=me,
            observe=self._context.observe,
            clock_ahead=self._poller.ahead.total_seconds(),
            endpoint=self._poller.endpoint,
            health=health,
            journal=self._sagas.writable,
            sagas=tuple(replace(saga, memos={}, configs={}) for saga in live),
            recent=tuple(replace(saga, memos={}, configs={}) for saga in self._sagas.recent),
            peers=peers,
        )
        try:
            write(self._directory, status)
        except OSError as error:
            self._context.log.trouble("The status cannot be written", action="status.failed", reason=str(error))

    def _peers(self, saga: Saga, unacknowledged: Unacknowledged) -> tuple[PeerStatus, ...]:
        others = others_in(saga.event, saga.names)
        ready = self._sagas.peers.get(saga.id, {})
        why = unacknowledged(saga.id) if others else {}
        return tuple(
            PeerStatus(name=name, ready_at=ready.get(name.lower()), trouble=why.get(name, "")) for name in others
        )

    def _look(self) -> Health:
        """For anybody who can reach the listener: no message of a handler."""
        out = [saga for saga in self._sagas.pending if saga.out]
        unread, works = self._sagas.unread, self._poller.works
        reasons = "; ".join(f"{saga.event.type or 'an earlier event'}: {saga.state}" for saga in out)
        return Health(
            polling_ok=works,
            polling_why="the endpoint answers" if works else self._poller.why,
            ready=not out and not unread,
            ready_why=reasons or ("the journal has not been read yet" if unread else "no event is near"),
        )
