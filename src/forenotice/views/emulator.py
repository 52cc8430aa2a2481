"""What those who control an emulator are shown."""

from datetime import datetime

import msgspec

from forenotice.core.operations import EventType, Source
from forenotice.views.base import EventStatus, Response


class Event(Response):
    id: str
    type: EventType
    source: Source
    resources: list[str]
    description: str
    duration_seconds: int
    status: EventStatus
    created_at: datetime
    not_before: datetime
    approved_at: datetime | None
    approved_by: str | None
    implied: bool
    ended_at: datetime | None


class Note(Response):
    at: datetime
    said: str


class Playing(Response):
    """The scenario that is played."""

    name: str
    title: str
    seed: int
    done: bool
    waiting_for: str | None
    events: dict[str, str]
    """Ids by the names that the scenario gives them."""
    notes: list[Note]


class ActiveFault(Response):
    name: str
    on: str
    amount_seconds: float | None
    times: int | None
    until: datetime | None


class Fault(Response):
    name: str
    on: str
    amount_seconds: float | None
    lasts_seconds: float | None
    sees: str
    seen: str
    active: ActiveFault | None


class Vm(Response):
    name: str
    update_domain: int


class State(Response):
    now: datetime
    paused: bool
    speed: float
    endpoint: str
    as_vm: str = msgspec.field(name="as")
    vms: list[Vm]
    incarnation: int
    scenario: Playing | None
    events: list[Event]
    faults: list[ActiveFault]
    requests: int


class LoggedRequest(Response):
    at: datetime
    vm: str | None
    method: str
    target: str
    api_version: str | None
    headers: dict[str, str]
    body: str
    status: int | None
    fault: str | None
    reason: str | None
    event_ids: list[str]


class Endpoint(Response):
    vm: str
    endpoint: str
