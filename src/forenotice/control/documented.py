"""What operators get, as the API's description tells it; the service's own views are sent as they are."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from forenotice.control.models import EventStatus
from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.journal import SubscriptionState
from forenotice.core.operations import EventType, Kind, Source, Status
from forenotice.core.roles import Role

T = TypeVar("T")


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
    "too_many": (429, "The token sends too many requests: try again after `Retry-After` seconds."),
    "error": (500, "A defect of the service, whose log says more."),
    "unavailable": (503, "The service cannot do it just now: try again after `Retry-After` seconds."),
    "overdue": (503, "It took too long and was rolled back: ask for less at once, or try again later."),
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
    labels: dict[str, str]
    capacity: float | None
    """What fits on it, in the unit of the VMs' `size`; null: any number of VMs."""
    used: float
    """Of the capacity, by its VMs and those on their way to it."""
    vms: int
    address: str | None
    """Where drivers reach it: a name, an address or a URI."""


class Policy(Shown):
    listening: Listening
    auto_approve_restart: bool
    auto_approve_redeploy: bool
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
    az_environment: str
    offer: str
    sku: str
    computer_name: str
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
    size: float | None
    """How much of its host's capacity it takes; null: 1. What guests see as `vmSize` is `facts.size`."""
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


class Warned(Shown):
    warnings: list[str]
    """Such as that the name was used before; the new one inherits neither history nor tokens."""


class AddedVm(Vm, Warned):
    pass


class AddedGroup(Group, Warned):
    pass


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
    status: EventStatus
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
    networks: list[str]
    """Source networks that it may be used from; empty: anywhere."""
    expires_at: datetime | None
    previous_until: datetime | None
    """The secret from before the last rotation still works until then."""
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
    statuses: list[EventStatus]
    status: SubscriptionState
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


class Values(Shown):
    now: Any = Field(alias="from", description="What the service has.")
    to: Any = Field(description="What the document says.")


class Difference(Shown):
    action: Literal["add", "change", "remove", "keep"]
    noun: Literal["host", "group", "vm", "policy of vm"]
    name: str
    fields: dict[str, Values] = Field(description="Those that differ, of `change` and `keep`.")


class Applied(Warned):
    changes: list[Difference]
    kept: list[Difference] = Field(description="VMs that run on another host than the document says, and stay there.")
    applied: bool


class Compared(Shown):
    differences: list[Difference]


class Fleet(Shown):
    hosts: dict[str, dict[str, Any]]
    groups: dict[str, dict[str, Any]]
    vms: dict[str, dict[str, Any]]
