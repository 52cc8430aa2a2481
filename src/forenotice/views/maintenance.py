"""Operations and their events, why they wait, previews of them, and all that is live now."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from forenotice.core.operations import EventType, Kind, Source, Status
from forenotice.views.base import (
    EVENT,
    HOST_PATTERN,
    NOW,
    OPERATION,
    SOON,
    EventStatus,
    LongText,
    Minutes,
    Name,
    Reason,
    Request,
    Response,
    example,
)
from forenotice.views.history import Entry

MAX_NAMES = 10_000
Selected = Annotated[str, Meta(extra_json_schema={"pattern": f"^{HOST_PATTERN}$"})]
"""Core says what is wrong with one."""


class Event(Response):
    id: str
    operation: str
    kind: Kind
    host: str
    scope: str
    group: str | None
    resources: list[str]
    type: EventType
    source: Source
    description: str
    duration_seconds: int
    status: EventStatus
    created_at: datetime
    not_before: datetime
    approved_at: datetime | None
    approved_by: str | None
    implied: bool
    ended_at: datetime | None


class Operation(Response):
    id: str
    kind: Kind
    host: str
    vms: list[str]
    status: Status
    created_at: datetime
    not_before: datetime | None
    """null while it is Planned and the time is not known yet; its explanation says why."""
    announce_at: datetime | None
    """When guests will be told of a Planned operation, unless something changes; null if that is not known yet."""
    started_at: datetime | None
    ended_at: datetime | None
    by: str
    reason: str
    rollout: str | None
    targets: dict[str, str]
    attempt: int
    failures: dict[str, str]
    events: Sequence[Event]


class Operations(Response):
    operations: list[Operation]


class NewOperation(Request):
    kind: Kind
    names: Annotated[list[Selected], Meta(min_length=1, extra_json_schema={"maxItems": MAX_NAMES})]
    """Of VMs; or of hosts, also as the parts of a selector such as `label:rack=r1`. The role limits how many."""
    notice_minutes: Minutes | None = None
    reason: Reason = ""


class DriverResult(Request):
    """The result of each VM that a driver's call was about."""

    attempt: Annotated[int, Meta(ge=1, le=1000)]
    done: Annotated[list[Name], Meta(max_length=MAX_NAMES)] = []
    failures: Annotated[dict[Name, LongText], Meta(max_length=MAX_NAMES)] = {}


class Explanation(Response):
    sentence: str
    """All of it in words."""
    sentences: list[str]
    """The same, one for each reason; what has no end stands first."""
    since: datetime | None
    until: datetime | None
    waiting_for: list[dict[str, Any]]
    """The facts of each blocker, for programs."""


class EventExplanation(Explanation):
    event: str


class OperationExplanation(Explanation):
    operation: str


class RolloutExplanation(Explanation):
    rollout: str


class PreviewedEvent(Event):
    """It does not exist yet: its id and its operation's are empty."""

    told: dict[str, Any]
    """As guests would read it in their document."""


class PreviewedOperation(Operation):
    """It does not exist yet: its id is empty."""

    events: Sequence[PreviewedEvent]
    earliest: datetime | None
    latest: datetime | None
    sentence: str
    sentences: list[str]
    waiting_for: list[dict[str, Any]]


class EndedOperation(Response):
    id: str
    kind: Kind
    host: str
    vms: list[str]
    status: Status


class Preview(Response):
    """What a command would do now."""

    at: datetime
    kind: Kind
    operations: list[PreviewedOperation]
    ends: list[EndedOperation]
    """Operations that would be over."""
    cordons: list[str]
    """Hosts that would be cordoned."""


class Bar(Response):
    """An event's life, to be drawn."""

    id: str
    scope: str
    resources: list[str]
    type: EventType
    status: Status
    created_at: datetime
    not_before: datetime
    started_at: datetime | None
    ended_at: datetime | None
    expected_end: datetime | None


class LiveEvent(Event):
    """With why it waits, and what this caller may do."""

    started_at: datetime | None
    why: EventExplanation
    may_approve: bool
    may_cancel: bool


class LiveEvents(Response):
    items: list[LiveEvent]
    more: bool


class PlannedOperation(Operation):
    why: OperationExplanation


class PlannedOperations(Response):
    items: list[PlannedOperation]
    more: bool


class EventDetail(Response):
    event: Event
    operation: Operation
    told: dict[str, Any] | None
    """As guests read it in their document; null when it is over."""
    entries: list[Entry]
    """Of the event and its operation, and other approvals of it; the first and the last of many."""
    may_approve: bool
    may_cancel: bool


class More(Response):
    live: bool
    ended: bool


class Overview(Response):
    """What is going on now."""

    now: datetime
    counts: dict[Status, int]
    """Live events by status."""
    live: int
    bars: list[Bar]
    """Live events, the most urgent first, then ended ones, the last first."""
    more: More
    """Whether there are other live or ended events than those drawn."""
    listed: list[LiveEvent]
    """One page of the live ones, the most urgent first."""
    page: int
    pages: int


EXAMPLE_EVENT = example(
    Event(
        id=EVENT,
        operation=OPERATION,
        kind=Kind.RESTART,
        host="rack1-01",
        scope="group:web",
        group="web",
        resources=["web-0"],
        type=EventType.REBOOT,
        source=Source.USER,
        description="Virtual machine is going to be restarted as requested by authorized user.",
        duration_seconds=-1,
        status="Scheduled",
        created_at=NOW,
        not_before=SOON,
        approved_at=None,
        approved_by=None,
        implied=False,
        ended_at=None,
    )
)
EXAMPLE_OPERATION = example(
    Operation(
        id=OPERATION,
        kind=Kind.RESTART,
        host="rack1-01",
        vms=["web-0"],
        status=Status.SCHEDULED,
        created_at=NOW,
        not_before=SOON,
        announce_at=None,
        started_at=None,
        ended_at=None,
        by="operator:admin",
        reason="new kernel",
        rollout=None,
        targets={},
        attempt=0,
        failures={},
        events=[EXAMPLE_EVENT],
    )
)
_WAITS = "It waits for approval by web (web-0), until 2026-03-01 12:15:00 UTC at the latest."
_EXPLANATION = Explanation(
    sentence=_WAITS,
    sentences=[_WAITS],
    since=NOW,
    until=SOON,
    waiting_for=[
        {
            "kind": "approval",
            "scope": "group:web",
            "event": EVENT,
            "resources": ["web-0"],
            "until": "2026-03-01T12:15:00Z",
        }
    ],
)

example(EventExplanation(event=EVENT, **msgspec.structs.asdict(_EXPLANATION)))
example(OperationExplanation(operation=OPERATION, **msgspec.structs.asdict(_EXPLANATION)))
example(RolloutExplanation(rollout="5f3c9f0a-2a55-4b0e-8a53-0c7d0e2f6b7a", **msgspec.structs.asdict(_EXPLANATION)))
example(Operations(operations=[EXAMPLE_OPERATION]))
example(NewOperation(kind=Kind.RESTART, names=["web-0"], notice_minutes=20, reason="new kernel"))
example(DriverResult(attempt=1, done=["web-0"], failures={"db": "no such machine"}))
