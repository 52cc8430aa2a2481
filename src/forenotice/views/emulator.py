"""What those who control an emulator send and are shown."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from forenotice.core.operations import EventType, Kind, Source
from forenotice.validation import pattern
from forenotice.views.base import EVENT, EventStatus, LongText, Name, Request, Response, Text, example

KINDS: Mapping[str, Kind] = {
    "reboot": Kind.RESTART,
    "freeze": Kind.HOST_UPDATE,
    "preempt": Kind.EVICTION,
    "terminate": Kind.DELETION,
    **{kind.value: kind for kind in Kind},
}
"""By the types of events, beside the kinds of operation."""
MOST_TIMES = 10_000
MOST_RESOURCES = 1000
LIMIT, LARGEST_PAGE = 100, 1000

_DURATION = r"\s*\d+(\.\d+)?\s*(ms|s|m|min|h|d)\s*"
Duration = Annotated[str, pattern(_DURATION, 'must be a duration such as "30s", "5m" or "2h"', examples=["15m"])]
SignedDuration = Annotated[str, pattern(f"-?{_DURATION}", 'must be a duration such as "2s" or "-5m"', examples=["-5m"])]
KindName = Annotated[str, pattern(f"(?i:{'|'.join(KINDS)})", f"must be one of {', '.join(KINDS)}")]
Resources = Annotated[tuple[Name, ...], Meta(max_length=MOST_RESOURCES)]


class NewEvent(Request):
    kind: KindName
    resources: Resources = ()
    """Empty: the VM that callers are."""
    notice: Duration | None = None
    takes: Duration | None = None
    """How long it is Started."""
    description: LongText | None = None
    duration_seconds: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None


class Play(Request):
    scenario: Annotated[str, Meta(min_length=1, max_length=256 * 1024)]
    """The name of a scenario in the catalogue, or the TOML of another."""
    source: Text = "scenario.toml"
    """The file that errors in the TOML name."""
    resources: Resources = ()
    seed: int | None = None


class Advance(Request):
    by: Duration


class NewFault(Request):
    name: Text
    amount: SignedDuration | None = None
    on: Annotated[str, pattern("polls|approvals|all", "must be one of polls, approvals, all")] | None = None
    times: Annotated[int, Meta(ge=1, le=MOST_TIMES)] | None = None
    lasts: Duration | None = None


class NewEndpoint(Request):
    vm: Name


class Page(Request):
    after: Annotated[int, Meta(ge=0, le=2**31, description="What `next` was in the page before.")] = 0
    limit: Annotated[int, Meta(ge=1, le=LARGEST_PAGE, description="How many at most.")] = LIMIT


class EventPage(Page):
    live: Annotated[bool | None, Meta(description="Only those that have not ended, or only those that have.")] = None


class Vm(Response):
    name: str
    update_domain: int


class Deviation(Response):
    """A step that was skipped or late."""

    at: datetime
    message: str


class PlayedScenario(Response):
    name: str
    title: str
    seed: int
    done: bool
    waiting_for: str
    events: dict[str, str]
    """Their ids, by the labels of the scenario."""
    deviations: list[Deviation]


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


class ActiveFault(Response):
    name: str
    on: str
    amount_seconds: float | None
    times: int | None
    """How many more requests meet it; null: no limit."""
    until: datetime | None


class Fault(Response):
    name: str
    on: str
    amount_seconds: float | None
    lasts_seconds: float | None
    symptom: str
    """What the client sees."""
    evidence: str
    """Where that was seen."""
    active: ActiveFault | None
    """Null: it is off."""


class State(Response):
    now: datetime
    paused: bool
    speed: float
    endpoint: str
    as_vm: str = msgspec.field(name="as")
    """The VM that callers are."""
    vms: list[Vm]
    incarnation: int
    scenario: PlayedScenario | None
    events: list[Event]
    faults: list[ActiveFault]
    requests: int


class ScenarioSummary(Response):
    name: str
    title: str
    description: str
    timing: str
    resources: list[str]
    picture: list[str]


class ScenarioText(ScenarioSummary):
    toml: str


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


example(Event, id=EVENT)
example(NewEvent, kind="reboot", resources=("web-0",), notice="5m", takes="1m")
example(Play, scenario="reboot", resources=("web-0",), seed=1)
example(NewFault, name="error-503", amount="5s", on="polls", times=3)
