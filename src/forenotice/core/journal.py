"""One line of the journal: what happened, to what, by whom."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

SYSTEM = "system"
"""Who does what nobody asked for."""

ACTIONS = frozenset(
    f"{noun}.{what}"
    for noun, things in {
        "clock": "accepted jumped",
        "command": "unchanged",
        "database": "restored",
        "driver": "answered failed finished",
        "event": "approved canceled completed failed postponed resource_dropped scheduled silence_withdrawn started",
        "group": "added removed",
        "history": "prune_started pruned",
        "host": "added cordoned removed uncordoned",
        "operation": "canceled completed failed held planned scheduled started waiting",
        "rollout": ("canceled canceling completed gate_green gate_red host_skipped paused resumed started turn_began"),
        "scope": "listening policy_changed",
        "subscription": "added changed parked removed replayed resumed tested",
        "token": "created revoked rotated signed_in signed_out",
        "vm": "added changed left moved removed",
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
    """From where a command came: the address of whoever sent it."""
    reason: str = ""
    """Why it was given."""
    scope: str | None = None
    """Key of the scope that must be read anew after this."""
    event: str | None = None
    operation: str | None = None
    host: str | None = None
    vm: str | None = None
    rollout: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)
