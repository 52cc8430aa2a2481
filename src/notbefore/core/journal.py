"""One line of the journal: what happened, to what, by whom."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    at: datetime
    action: str
    """A slug such as `event.approved`."""
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
