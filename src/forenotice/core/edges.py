"""Edges: processes on hosts that show the guests there their events, and what the service knows of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from forenotice.core.operations import Event

PATIENCE = timedelta(minutes=15)


class EdgeState(StrEnum):
    CURRENT = "current"
    """It is heard, and has the newest state that is known to be published for it."""
    BEHIND = "behind"
    """It is heard, and has an older one."""
    LOST = "lost"
    """It is not heard: what its guests see and do is not known."""
    UNHEARD = "unheard"
    """The process that looks has not heard it, but has not listened for long enough to call it lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    host: str
    since: datetime
    """When it was first heard."""
    lost_since: datetime | None = None
    """When it was last heard, if it is lost: what its guests see and do is not known since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEdges:
    """What all edges have shown their guests, as far as the process knows that decides."""

    shown: Mapping[str, datetime | None] = field(default_factory=dict)
    """By host, for each that has an edge: everything in the journal up to then. None: it has not told."""
    patience: timedelta = PATIENCE
    """How long after its NotBefore an operation waits for an edge that has not shown it."""

    def have_shown(self, event: Event, host: str) -> bool:
        """Whether guests on the host can have seen it: its edge has, or it has none."""
        shown = self.shown.get(host, event.created_at)
        return shown is not None and shown >= event.created_at


NO_EDGES = KnownEdges()
