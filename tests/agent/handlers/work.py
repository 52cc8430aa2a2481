"""Work to hand to a handler."""

import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from forenotice.agent.handlers import Outcome, Work
from forenotice.agent.rules.policy import Phase
from forenotice.client.events import Event

EVENT = Event(
    id="C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    status="Scheduled",
    type="Reboot",
    resources=("web-1", "web-2"),
    not_before_text="Mon, 11 Apr 2022 22:26:58 GMT",
    description="Host server is undergoing maintenance.",
    source="Platform",
    duration_seconds=-1,
)
STARTED = Event(
    id=EVENT.id,
    status="Started",
    type="Reboot",
    resources=EVENT.resources,
    description=EVENT.description,
    source="Platform",
)


def work(**changes: Any) -> Work:
    """Preparing for a reboot, with ten seconds left, but for what is said."""
    usual = Work(
        handler="drain",
        phase=Phase.PREPARE,
        event=EVENT,
        me="web-1",
        attempt=1,
        deadline=datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC),
        seconds_left=10.0,
        stop=threading.Event(),
    )
    return replace(usual, **changes)


def done(message: str) -> Outcome:
    return Outcome(ok=True, message=message)


def failed(message: str) -> Outcome:
    return Outcome(ok=False, message=message)
