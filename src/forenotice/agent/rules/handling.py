"""Which handlers an event concerns, and when each may begin."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from forenotice.client.events import Event

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
