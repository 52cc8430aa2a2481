"""Operations and their events, why they wait, previews of them, and all that is live now."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from forenotice.core.operations import EventType, Kind, Source, Status
from forenotice.views import base
from forenotice.views.base import Request, Response, example
from forenotice.views.history import Entry

MAX_NAMES = 10_000
Selected = Annotated[str, Meta(extra_json_schema={"pattern": f"^{base.HOST_PATTERN}$"})]
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
    status: base.EventStatus
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
    duration_seconds: int
    """As guests are told; -1 is unknown."""
    targets: dict[str, str]
    attempt: int
    failures: dict[str, str]
    waiting: dict[str, str]
    """By VM: why the driver has not gone on."""
    events: Sequence[Event]


class Operations(Response):
    operations: list[Operation]


class NewOperation(Request):
    kind: Kind
    names: Annotated[list[Selected], Meta(min_length=1, extra_json_schema={"maxItems": MAX_NAMES})]
    """Of VMs; or of hosts, also as the parts of a selector such as `label:rack=r1`. The role limits how many."""
    notice_minutes: base.Minutes | None = None
    duration_seconds: base.FreezeSeconds | None = None
    """How long a host update freezes the VMs; null: 9 seconds."""
    reason: base.Reason = ""


class DriverResult(Request):
    """The result of each VM that a driver's call was about."""

    attempt: Annotated[int, Meta(ge=1, le=1000)]
    done: Annotated[list[base.Name], Meta(max_length=MAX_NAMES)] = []
    failures: Annotated[dict[base.Name, base.LongText], Meta(max_length=MAX_NAMES)] = {}


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


class PlannedOperation(Operation):
    why: OperationExplanation


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


EXAMPLE_EVENT = example(Event, id=base.EVENT)
EXAMPLE_OPERATION = example(Operation, id=base.OPERATION, reason="new kernel", events=[EXAMPLE_EVENT])
_WAITS = "It waits for approval by web (web-0), until 2026-03-01 12:15:00 UTC at the latest."
_EXPLANATION: dict[str, Any] = {
    "sentence": _WAITS,
    "sentences": [_WAITS],
    "since": base.NOW,
    "until": base.SOON,
    "waiting_for": [
        {
            "kind": "approval",
            "scope": "group:web",
            "event": base.EVENT,
            "resources": ["web-0"],
            "until": "2026-03-01T12:15:00Z",
        }
    ],
}
example(EventExplanation, **_EXPLANATION)
example(OperationExplanation, **_EXPLANATION)
example(RolloutExplanation, **_EXPLANATION, rollout=base.ROLLOUT)
example(Operations, operations=[EXAMPLE_OPERATION])
example(NewOperation, kind=Kind.RESTART, names=["web-0"], notice_minutes=20, reason="new kernel")
example(DriverResult, attempt=1, done=["web-0"], failures={"db": "no such machine"})
