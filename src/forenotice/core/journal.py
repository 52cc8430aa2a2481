"""Entries of the journal: what happened, to what, by whom; and the state of those who are sent them."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

SYSTEM = "system"
"""The author of what the service does by itself."""

ACTIONS = frozenset(
    f"{noun}.{what}"
    for noun, things in {
        "clock": "accepted jumped",
        "command": "unchanged",
        "database": "restored",
        "drift": "noticed settled",
        "driver": "answered failed finished waiting",
        "edge": "forgotten lost registered returned",
        "event": "approved canceled completed failed postponed resource_dropped scheduled silence_withdrawn started",
        "group": "added removed",
        "history": "prune_started pruned",
        "host": "added changed cordoned removed uncordoned",
        "operation": "canceled completed failed held placed planned scheduled started waiting",
        "rollout": ("canceled canceling completed gate_green gate_red host_skipped paused resumed started wave_began"),
        "scope": "listening policy_changed",
        "subscription": "added changed parked removed replayed resumed tested",
        "token": "created revoked rotated signed_in signed_out",
        "vm": "added changed found left missing moved removed",
    }.items()
    for what in things.split()
)
"""All that is ever noted."""
OF_TOKENS = "token."
"""How what is for administrators alone begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    at: datetime
    action: str
    """One of ACTIONS."""
    by: str = ""
    origin: str = ""
    """The address that a command came from."""
    reason: str = ""
    """Why it was given."""
    scope: str | None = None
    """Key of the scope that must be read again after this."""
    event: str | None = None
    operation: str | None = None
    host: str | None = None
    vm: str | None = None
    rollout: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)


REPEATED = timedelta(minutes=10)
"""A command that changes nothing is journalled once in this time,"""
MOST_UNCHANGED = 100
"""and so many of one person's at most."""


class Repeats:
    """Limits the journal entries of commands that change nothing, so that repeating them does not fill the disk."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, Hashable], datetime] = {}
        self._of: Counter[str] = Counter()

    def is_news(self, by: str, asked: Hashable, now: datetime) -> bool:
        """Whether to journal it."""
        for key in [key for key, at in self._noted.items() if now - at >= REPEATED]:
            del self._noted[key]
            self._of[key[0]] -= 1
        self._of += Counter()
        if (by, asked) in self._noted or self._of[by] >= MOST_UNCHANGED:
            return False
        self._noted[by, asked] = now
        self._of[by] += 1
        return True


class SubscriptionState(StrEnum):
    ACTIVE = "active"
    PARKED = "parked"
    """Nothing is sent until an operator resumes it."""
