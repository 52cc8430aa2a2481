"""Edges: what operators see of them."""

from datetime import datetime

from forenotice.core.edges import EdgeState
from forenotice.views import base
from forenotice.views.base import Response, example


class Edge(Response):
    """The edge of a host, as the process that responds hears it."""

    host: str
    state: EdgeState
    since: datetime
    """When it was first heard."""
    lost_since: datetime | None
    version: str | None
    """What runs there; null, as all that follows, until the process that responds has heard it."""
    last_beat: datetime | None
    last_beat_seconds: float | None
    """How long ago that is."""
    confirmed: datetime | None
    """When the edge last learnt that its state is the newest; null: it has not."""
    confirmed_seconds: float | None
    """How long ago that is: the age of what the edge knows."""
    epoch: int | None
    position: int | None
    """Of the journal: it has everything up to there that concerns it; null: it has no state yet."""
    shown_until: datetime | None
    """The time of that position."""
    behind: int | None
    """Positions between that and the newest state published for it; null: unknown, as another process publishes."""
    refused: int
    """States that it could not read, since it started."""
    refusal: str
    """Why it could not read the last of them."""


example(
    Edge,
    host="rack1-01",
    state=EdgeState.CURRENT,
    since=base.NOW,
    version="1.0.0",
    last_beat=base.NOW,
    last_beat_seconds=4.2,
    confirmed=base.NOW,
    confirmed_seconds=31.5,
    epoch=0,
    position=1234,
    shown_until=base.NOW,
    behind=0,
)
