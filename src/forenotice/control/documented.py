"""What operators get, as the API's description tells it; the service's own views are sent as they are."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.operations import EventType, Kind, Source, Status
from forenotice.core.roles import Role
from forenotice.core.rollouts import RolloutStatus, StopStatus
from forenotice.core.subscriptions import State

T = TypeVar("T")
RolloutKind = Literal["update", "migrate", "reboot"]


class Shown(BaseModel):
    model_config = ConfigDict(extra="forbid")


CODES = {
    "refused": (400, "The request is malformed or makes no sense: change it."),
    "unauthorized": (401, "A valid token is needed."),
    "forbidden": (403, "The token's role or scopes do not allow it."),
    "not_found": (404, "There is no such thing, or nothing that the token may see; `facts` name it."),
    "method_not_allowed": (405, "The method is not possible here; the header `Allow` says which are."),
    "too_slow": (408, "The body did not come in time."),
    "conflict": (409, "The present state does not allow it; `facts` hold that state."),
    "too_large": (413, "The body is too large."),
    "error": (500, "A defect of the service, whose log says more."),
    "unavailable": (503, "The service cannot do it just now: try again after `Retry-After` seconds."),
    "unsound": (503, "The database cannot be used as it is: an administrator must act."),
}
"""The codes of errors, with their status and meaning."""


class ErrorFacts(Shown):
    code: Annotated[str, WithJsonSchema({"type": "string", "enum": list(CODES)})]
    message: str
    """One sentence: what is wrong, and what would be right."""
    facts: dict[str, Any]
    """What the sentence speaks of, for programs."""


class Error(Shown):
    error: ErrorFacts


class Page(Shown, Generic[T]):
    items: list[T]
    next: str | int | None
    """Give it as `after` for what follows; null at the end."""


class Removed(Shown):
    removed: str


class Host(Shown):
    name: str
    cordoned: bool
    vms: int


class Policy(Shown):
    listening: Listening
    auto_approve: bool
    terminate_notice_minutes: float | None
    max_user_operations: int | None
    max_unavailable: int | str | None
    """VMs that planned maintenance may have out at once: a number, or a part such as `25%`."""
    min_available: int | None
    windows: list[str]
    """When planned maintenance may start; empty: always."""


class Facts(Shown):
    location: str
    resource_group: str
    subscription: str
    size: str
    os_type: str
    zone: str
    eviction_policy: str
    tags: dict[str, str]


class Vm(Shown):
    name: str
    vm_id: str
    host: str
    group: str | None
    scope: str
    update_domain: int
    fault_domain: int
    spot: bool
    addresses: list[str]
    facts: Facts
    policy: Policy | None
    incarnation: int
    listening: bool
    last_heard: datetime | None


class Group(Shown):
    name: str
    kind: ScopeKind
    policy: Policy
    vms: int
    incarnation: int
    listening: bool
    last_heard: datetime | None


class Event(Shown):
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
    status: Status
    created_at: datetime
    not_before: datetime
    approved_at: datetime | None
    approved_by: str | None
    implied: bool
    ended_at: datetime | None


class Operation(Shown):
    id: str
    kind: Kind
    host: str
    vms: list[str]
    status: Status
    created_at: datetime
    not_before: datetime
    started_at: datetime | None
    ended_at: datetime | None
    by: str
    reason: str
    rollout: str | None
    targets: dict[str, str]
    attempt: int
    failures: dict[str, str]
    events: list[Event]


class Operations(Shown):
    operations: list[Operation]


class Explanation(Shown):
    sentence: str
    """All of it in words."""
    sentences: list[str]
    """The same, one for each reason; what has no end stands first."""
    since: datetime | None
    until: datetime | None
    waiting_for: list[dict[str, Any]]


class EventExplanation(Explanation):
    event: str


class OperationExplanation(Explanation):
    operation: str


class RolloutExplanation(Explanation):
    rollout: str


class RolloutOptions(Shown):
    kind: RolloutKind
    hosts: str
    """The selector, as it was written."""
    notice_minutes: float | None
    batch: int
    pause_minutes: float
    gate: str | None
    max_failures: int
    windows: list[str]


class Progress(Shown):
    """Hosts by what has become of them."""

    waiting: int
    under_way: int
    done: int
    failed: int
    skipped: int


class Verdict(Shown):
    green: bool
    said: str
    """Its status, or why it could not be asked."""
    line: str
    """One line of what it said beyond that; empty for those who may not manage."""
    at: datetime


class TurnProgress(Shown):
    turn: int
    update_domains: list[int]
    """Of the groups that its hosts had when the rollout began."""
    progress: Progress


class ListedRollout(RolloutOptions):
    id: str
    status: RolloutStatus
    why: str
    """Why it is paused."""
    turn: int
    """From 1 on; 0 before the first."""
    turns: int
    turn_began_at: datetime | None
    failures: int
    """Hosts that failed since it was started or resumed."""
    progress: Progress
    gate_verdict: Verdict | None
    created_at: datetime
    ended_at: datetime | None
    by: str
    reason: str


class Rollout(ListedRollout):
    by_turn: list[TurnProgress]


class RolloutHost(Shown):
    host: str
    turn: int
    update_domains: list[int]
    """Of the groups that it had when the rollout began; without groups, of its VMs."""
    status: StopStatus
    operation: str | None
    why: str


class PlannedTurn(Shown):
    turn: int
    update_domains: list[int]
    hosts: int
    vms: int
    begins_at: datetime
    first_start_at: datetime
    ends_at: datetime


class PlannedHost(Shown):
    host: str
    turn: int
    update_domains: list[int]
    vms: list[str]
    announced_at: datetime
    not_before: datetime
    ends_at: datetime


class PlannedScope(Shown):
    scope: str
    group: str | None
    members: int
    out_seconds: float
    """How long something of it is out."""
    most_out: int
    """VMs at once."""
    allowed: int | None
    budget: str | None
    """The rule that decides."""
    delayed_hosts: int
    """Hosts that have to wait for it."""


class RolloutPlan(RolloutOptions):
    begins_at: datetime
    ends_at: datetime
    turns: list[PlannedTurn]
    stops: list[PlannedHost]
    groups: list[PlannedScope]
    empty: list[str]
    """Hosts without VMs, which are skipped."""
    assumes: str


class Entry(Shown):
    seq: int
    at: datetime
    action: str
    by: str
    origin: str
    """The address from which the command came."""
    reason: str
    scope: str | None
    event: str | None
    operation: str | None
    host: str | None
    vm: str | None
    rollout: str | None
    data: dict[str, Any]


class Pruned(Shown):
    before: datetime
    entries: int
    operations: int
    events: int
    rollouts: int
    kept: int
    """Entries that are older but stay: of what is live, or a subscription is still to be told of them."""
    complete: bool
    """Whether nothing is left that could be removed."""
    dry_run: bool
    """Nothing was removed: this is what would be."""


class Token(Shown):
    id: str
    name: str
    role: Role
    scopes: str | None
    """Whose VMs, groups and events it is for, such as `web-*,vm:db`; null: all."""
    expires_at: datetime | None
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewToken(Token):
    token: str | None
    """Null when it has been shown before, under the same Idempotency-Key."""


class Subscription(Shown):
    id: str
    name: str
    url: str
    types: list[str]
    groups: str
    statuses: list[Status]
    status: State
    why: str
    """It is parked; or what was not taken last, while that is tried again."""
    position: int
    """The journal up to here was taken in."""
    pending: int
    """How much of that is still to be told."""
    created_at: datetime
    by: str


class NewSubscription(Subscription):
    secret: str | None
    """Null when it has been shown before, under the same Idempotency-Key."""


class Delivery(Shown):
    position: int
    action: str | None
    """What the entry is of; null when it is no longer in the history."""
    lane: str
    """The event, or else the operation, whose entries are told in order."""
    attempts: int
    tried_since: datetime | None
    due_at: datetime
    error: str


class Tried(Shown):
    taken: bool
    status: int | None
    error: str


class Difference(Shown):
    action: str
    noun: str
    name: str
    fields: dict[str, Any]


class Applied(Shown):
    changes: list[Difference]
    applied: bool


class Fleet(Shown):
    hosts: dict[str, dict[str, Any]]
    groups: dict[str, dict[str, Any]]
    vms: dict[str, dict[str, Any]]
