"""What operators get, as the API's description tells it; the service's own views are sent as they are."""

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from notbefore.core.fleet import Listening, ScopeKind
from notbefore.core.operations import EventType, Kind, Source, Status
from notbefore.core.roles import Role

T = TypeVar("T")


class Shown(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorFacts(Shown):
    code: str
    message: str
    facts: dict[str, Any]


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
    targets: dict[str, str]
    attempt: int
    failures: dict[str, str]
    events: list[Event]


class Operations(Shown):
    operations: list[Operation]


class Explanation(Shown):
    sentence: str
    since: datetime | None
    until: datetime | None
    waiting_for: list[dict[str, Any]]


class EventExplanation(Explanation):
    event: str


class OperationExplanation(Explanation):
    operation: str


class RolloutExplanation(Explanation):
    rollout: str


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
