"""Which handlers an event concerns, and when each may begin."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from forenotice.client.events import Event, same_name

EVENT_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")


class Phase(StrEnum):
    PREPARE = "prepare"
    ON_STARTED = "on_started"
    RECOVER = "recover"
    UNDO = "undo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which events are meant; what is empty or None asks for nothing."""

    types: frozenset[str] = frozenset()
    sources: frozenset[str | None] = frozenset()
    """With None also an event whose source is not told."""
    shorter_than: float | None = None
    """Seconds; an event of unknown duration is not short."""
    longer_than: float | None = None
    """Seconds; an event of unknown duration counts as long."""

    def fits(self, event: Event) -> bool:
        told = event.duration_seconds
        duration = float("inf") if told is None or told < 0 else told
        return (
            (not self.types or event.type in self.types)
            and (not self.sources or event.source in self.sources)
            and (self.shorter_than is None or duration < self.shorter_than)
            and (self.longer_than is None or duration > self.longer_than)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When and how a handler is called."""

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
    """What it could not prepare is never approved."""
    always_recover: bool = False

    def due(self, event: Event) -> datetime | None:
        """From when on it may prepare; None: from now on."""
        deadline = event.deadline
        return None if self.lead is None or deadline is None else deadline - self.lead


def concerned(rules: Iterable[Rule], event: Event, phase: Phase) -> Sequence[Rule]:
    return [rule for rule in rules if phase in rule.phases and rule.match.fits(event)]


NOT_TOLD = "not told yet"
"""Of a peer that nobody has tried to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    approves: bool = True
    unprepared: bool = False
    """Whether events that no handler prepares for are approved too."""
    at_once: tuple[Match, ...] = ()
    """Events that need no preparation here."""
    peer_timeout: timedelta | None = None
    """How long the next VM in Resources waits for the one before it to approve; None: peers are not asked."""

    def needs_nothing(self, event: Event) -> bool:
        return any(match.fits(event) for match in self.at_once)


def blocker(
    policy: Policy,
    event: Event,
    names: Sequence[str],
    ready_at: datetime,
    peers: Mapping[str, datetime],
    untold: Mapping[str, str],
    now: datetime,
) -> str:
    """Why this agent does not approve now, although its own VM is ready; empty when it does.

    `names` are the VMs that it acts for, `peers` since when others are ready, by lower-case name,
    `untold` who has not acknowledged that this VM is ready or not, and why.
    """
    if not policy.approves:
        return "ready; this agent is set never to approve"
    if event.type not in EVENT_TYPES:
        return f"not approved, as nobody here knows what {event.type!r} means"
    others = others_in(event, names)
    if not others:
        return ""
    if policy.peer_timeout is None:
        return f"ready; not approved, as the event is also about {', '.join(others)} and [peers] is not set"
    missing = [name for name in others if name.lower() not in peers]
    if missing:
        called = ", ".join(_called(name, untold) for name in missing)
        return f"ready; waits until {called} {'is' if len(missing) == 1 else 'are'} ready too"
    turn = min(position for position, name in enumerate(event.resources) if name not in others)
    # A clock that was ahead when it was asked does not make anybody wait for it.
    since = min(now, max([ready_at, *(peers[name.lower()] for name in others)]))
    if now < since + turn * policy.peer_timeout:
        return f"all are ready; {_called(event.resources[0], untold)} approves first"
    return ""


def may_be_a_peers(policy: Policy, event: Event, names: Sequence[str]) -> bool:
    """Whether others may approve this event once they are told that this VM is ready."""
    return policy.approves and policy.peer_timeout is not None and bool(others_in(event, names))


def others_in(event: Event, names: Sequence[str]) -> list[str]:
    """The VMs that an event names beside these."""
    return [name for name in event.resources if not any(same_name(name, mine) for mine in names)]


def _called(name: str, untold: Mapping[str, str]) -> str:
    """With what keeps it from being told."""
    why = untold.get(name, NOT_TOLD)
    return name if why == NOT_TOLD else f"{name} ({why})"
