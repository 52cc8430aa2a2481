"""What agent.toml asks for: which events concern a handler, when it may begin, and when this agent approves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from forenotice.client.events import Event, same_name

EVENT_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
NOT_SENT = "no message sent yet"


class Phase(StrEnum):
    PREPARE = "prepare"
    ON_STARTED = "on_started"
    RECOVER = "recover"
    UNDO = "undo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which events are meant; what is empty or None matches every event."""

    types: frozenset[str] = frozenset()
    sources: frozenset[str | None] = frozenset()
    """With None also an event whose source the endpoint does not tell."""
    shorter_than: timedelta | None = None
    longer_than: timedelta | None = None
    """An event of unknown duration counts as long."""

    def fits(self, event: Event) -> bool:
        told = event.duration_seconds
        duration = timedelta.max if told is None or told < 0 else timedelta(seconds=told)
        return (
            (not self.types or event.type in self.types)
            and (not self.sources or event.source in self.sources)
            and (self.shorter_than is None or duration < self.shorter_than)
            and (self.longer_than is None or duration > self.longer_than)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    name: str
    phases: frozenset[Phase]
    """In which it has something to do."""
    match: Match = Match()
    stage: int = 0
    lead: timedelta | None = None
    """How long before NotBefore it prepares; None: at once."""
    timeout: timedelta = timedelta(minutes=1)
    retries: int = 2
    blocks: bool = True
    """An event that it could not prepare for is not approved."""
    always_recover: bool = False

    def due(self, event: Event) -> datetime | None:
        """When it may begin to prepare; None: now."""
        return None if self.lead is None or event.deadline is None else event.deadline - self.lead


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    approves: bool = True
    unprepared: bool = False
    """Whether events that no handler prepares for are approved too."""
    at_once: tuple[Match, ...] = ()
    peer_timeout: timedelta | None = None
    """How long the next VM in Resources waits for the one before it to approve; None: there are no peers."""

    def needs_nothing(self, event: Event) -> bool:
        return any(match.fits(event) for match in self.at_once)

    def peers_may_approve(self, event: Event, names: Sequence[str]) -> bool:
        """Whether peers may approve this event once this VM, one of `names`, has told them that it is ready."""
        return self.approves and self.peer_timeout is not None and bool(others_in(event, names))


def blocker(
    policy: Policy,
    event: Event,
    names: Sequence[str],
    ready_at: datetime,
    peers: Mapping[str, datetime],
    unacknowledged: Mapping[str, str],
    now: datetime,
) -> str:
    """Why this agent does not approve now, although its own VM is ready; empty when it does.

    `names` are the VMs that it acts for, `peers` since when others are ready, by lower-case name,
    `unacknowledged` who has not acknowledged this VM's readiness, and why.
    """
    if not policy.approves:
        return "ready; agent.toml says never to approve"
    if event.type not in EVENT_TYPES:
        return f"not approved, because the event type {event.type!r} is unknown"
    others = others_in(event, names)
    if not others:
        return ""
    if policy.peer_timeout is None:
        return f"ready; not approved, because the event also names {', '.join(others)} and [peers] is not set"
    if missing := [name for name in others if name.lower() not in peers]:
        titles = ", ".join(_with_reason(name, unacknowledged) for name in missing)
        return f"ready; waits until {titles} {'is' if len(missing) == 1 else 'are'} ready too"
    position = min(index for index, name in enumerate(event.resources) if name not in others)
    # Nobody waits for a peer's clock that was ahead.
    since = min(now, max([ready_at, *(peers[name.lower()] for name in others)]))
    if now < since + position * policy.peer_timeout:
        return f"all are ready; {_with_reason(event.resources[0], unacknowledged)} approves first"
    return ""


def others_in(event: Event, names: Sequence[str]) -> list[str]:
    return [name for name in event.resources if not any(same_name(name, mine) for mine in names)]


def _with_reason(name: str, unacknowledged: Mapping[str, str]) -> str:
    why = unacknowledged.get(name, NOT_SENT)
    return name if why == NOT_SENT else f"{name} ({why})"
