"""What is known for a decision, and the changes decided so far.

`Draft.changes` raises the DocumentIncarnation of each scope whose guests can see a difference, once a transaction.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from forenotice.core import documents, errors
from forenotice.core.documents import Document
from forenotice.core.edges import NO_EDGES, KnownEdges
from forenotice.core.fleet import Drift, FormerScope, Host, Scope, Vm
from forenotice.core.journal import Entry
from forenotice.core.operations import LIVE, Event, EventType, Operation, Source, Status
from forenotice.core.placement import Targets
from forenotice.core.rollouts import Rollout, RolloutHost
from forenotice.core.timing import Timing

Thing = TypeVar("Thing")
Subject = Host | Scope | Vm | Operation | Event | Rollout
Index = defaultdict[str, dict[str, None]]
COLUMNS: Mapping[type, Mapping[str, str]] = {
    Event: {"scope": "scope", "event": "id", "operation": "operation"},
    Operation: {"operation": "id", "host": "host", "rollout": "rollout"},
    Vm: {"scope": "scope", "vm": "name", "host": "host"},
    Rollout: {"rollout": "id"},
    Host: {"host": "name"},
    Scope: {"scope": "key"},
    type(None): {},
}
"""Columns of the journal by their subject, and where each comes from."""
NOUNS = ("scope", "event", "operation", "host", "vm", "rollout")


@dataclass(slots=True, kw_only=True)
class World:
    """What was loaded: with an operation all its events, with a scope its live events, with a host its VMs.

    To explain, there is less of what concerns others: no more than may be in the way.
    """

    hosts: dict[str, Host] = field(default_factory=dict)
    vms: dict[str, Vm] = field(default_factory=dict)
    scopes: dict[str, Scope] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    occupancy: dict[str, int] = field(default_factory=dict)
    """VMs on each host that could take more: neither cordoned, nor to be updated or rebooted, nor in `lost_edges`;
    loaded only for moves."""
    lost_edges: set[str] = field(default_factory=set)
    """Hosts whose edge is lost: what happens to guests there could not be told to them. Loaded only for moves."""
    awaiting: set[str] = field(default_factory=set)
    """Hosts that are being emptied, have maintenance planned, or wait for a rollout; loaded only for moves."""
    used: dict[str, float] = field(default_factory=dict)
    """Of the hosts in `occupancy` that have a capacity: what their VMs take, where not all of these were loaded."""
    incoming: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    """VMs on their way to a host with a capacity, whoever moves them, each with that host and its size; loaded only
    for moves."""
    addresses: dict[str, str] = field(default_factory=dict)
    """Which VM is known by an address or a vmId (in lower case); loaded for those that a command names."""
    awaited_elsewhere: set[str] = field(default_factory=set)
    """Operations with unapproved events that were not loaded; loaded only for approvals by guests."""
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    """Those that loaded operations are a part of, and those that a command names."""
    sizes: dict[str, int] = field(default_factory=dict)
    """How many VMs each scope with a budget has, where not all of them were loaded."""
    domains: dict[tuple[str, str], dict[tuple[int, int], int]] = field(default_factory=dict)
    """How many VMs a group has on a host, by update and fault domain: loaded for moves where the VMs were not."""
    asked_by: Counter[str] = field(default_factory=Counter)
    """How many live users' operations of the whole fleet each person requested; loaded where they are limited."""
    former: dict[str, FormerScope] = field(default_factory=dict)
    """Of the scopes of events that have ended, those whose key was removed at least once."""
    drift: dict[tuple[str, str], Drift] = field(default_factory=dict)
    """By host and name; loaded only to record what a host has."""


@dataclass(slots=True, kw_only=True)
class Changes:
    """What to write, in one transaction. None stands for removal."""

    hosts: dict[str, Host | None] = field(default_factory=dict)
    vms: dict[str, Vm | None] = field(default_factory=dict)
    scopes: dict[str, Scope | None] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    rollout_hosts: dict[tuple[str, str], RolloutHost] = field(default_factory=dict)
    drift: dict[tuple[str, str], Drift | None] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    """The documents that differ from before, ready for publication."""
    members: dict[str, None] = field(default_factory=dict)
    """Keys of the scopes whose VMs or policy differ from before."""
    woken: dict[str, None] = field(default_factory=dict)
    """Keys of the scopes in which something ended: what was held because of it may start."""
    replanned: dict[str, None] = field(default_factory=dict)
    """Keys of the scopes whose policy changed: Planned operations on the hosts of their VMs are checked again."""
    room_made: bool = False
    """A host may take VMs that it could not before: what was held for want of a target may start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """How many users' operations may be live at once; None: any number."""

    fleet: int | None = None
    tenant: int | None = None
    """Of those that one tenant requested."""

    @property
    def any(self) -> bool:
        return self.fleet is not None or self.tenant is not None


NO_LIMITS = UserLimits()


@dataclass(eq=False)
class Draft:
    """A world under change: reads see what was put, and `changes` tells the difference."""

    world: World
    _: KW_ONLY
    now: datetime
    timing: Timing
    new_id: Callable[[], str]
    by: str = ""
    origin: str = ""
    reason: str = ""
    allowance: timedelta = timedelta(0)
    """How long after `now` the commit may come: notice counts from the commit."""
    allows_loopback: bool = False
    """Whether VMs may have loopback addresses."""
    limits: UserLimits = NO_LIMITS
    edges: KnownEdges = NO_EDGES

    def __post_init__(self) -> None:
        self._changes = Changes()
        self._visible: dict[str, None] = {}
        self._vms_on: Index = defaultdict(dict)
        self._vms_in: Index = defaultdict(dict)
        self._operations_on: Index = defaultdict(dict)
        self._events_of: Index = defaultdict(dict)
        self._events_in: Index = defaultdict(dict)
        self._started_in: Index = defaultdict(dict)
        self._awaited_deletions_in: Index = defaultdict(dict)
        self._naming: Index = defaultdict(dict)
        self._asked_in: Index = defaultdict(dict)
        self._targets = Targets(self.world) if self.world.occupancy else None
        for vm in self.world.vms.values():
            self._index_vm(vm)
        for operation in self.world.operations.values():
            self._index_operation(operation, is_live=operation.status in LIVE)
        for event in self.world.events.values():
            self._index_event(event)

    # What is known

    def host(self, name: str) -> Host:
        return _known(self.world.hosts, name, "host", name)

    def vm(self, name: str) -> Vm:
        return _known(self.world.vms, name, "VM", name)

    def scope(self, key: str) -> Scope:
        noun, _, name = key.partition(":")
        return _known(self.world.scopes, key, noun, name)

    def operation(self, operation_id: str) -> Operation:
        return _known(self.world.operations, operation_id, "operation", operation_id)

    def event(self, event_id: str) -> Event:
        return _known(self.world.events, event_id.upper(), "event", event_id)

    def rollout(self, rollout_id: str) -> Rollout:
        return _known(self.world.rollouts, rollout_id, "rollout", rollout_id)

    def size_of(self, scope: str) -> int:
        """How many VMs it has."""
        return self.world.sizes.get(scope, len(self._vms_in.get(scope, ())))

    def allowed_down(self, scope: str) -> float:
        """How many VMs of a scope planned maintenance may have down at once; infinite without a budget."""
        allowed = self.scope(scope).policy.allowed_down(self.size_of(scope))
        return math.inf if allowed is None else allowed

    def require_budget(self, scope: str, *, vms: int, host: str) -> None:
        """Refuse what could never start: the VMs of one host go down together."""
        members, allowed = self.size_of(scope), self.allowed_down(scope)
        if vms > allowed:
            budget, name, several = self.scope(scope).policy.budget(members), self.scope(scope).name, vms > 1
            why = (
                f"the budget of group {name} can never be met: {vms} of its {members} VMs {'are' if several else 'is'} "
                f"on host {host}{' and go together' if several else ''}, but {budget} allows {allowed} down at once: "
                f"change it{', or spread the group' if several else ''}"
            )
            raise errors.ConflictError(why, group=name, host=host, vms=vms, members=members, allowed=allowed)

    def vms_on(self, host: str) -> list[Vm]:
        return [self.world.vms[name] for name in self._vms_on.get(host, ())]

    def vms_in(self, scope: str) -> list[Vm]:
        return [self.world.vms[name] for name in self._vms_in.get(scope, ())]

    def live_operations_on(self, host: str) -> list[Operation]:
        return [self.world.operations[key] for key in self._operations_on.get(host, ())]

    def events_of(self, operation_id: str) -> list[Event]:
        return [self.world.events[key] for key in self._events_of.get(operation_id, ())]

    def live_events_of(self, operation_id: str) -> list[Event]:
        return [event for event in self.events_of(operation_id) if event.status in LIVE]

    def live_events_in(self, scope: str) -> list[Event]:
        return [self.world.events[key] for key in self._events_in.get(scope, ())]

    def started_events_in(self, scope: str) -> list[Event]:
        return [self.world.events[key] for key in self._started_in.get(scope, ())]

    def awaited_deletions_in(self, scope: str) -> list[Event]:
        """Those that are not approved yet."""
        return [self.world.events[key] for key in self._awaited_deletions_in.get(scope, ())]

    def live_operations_naming(self, vm: str) -> list[Operation]:
        return [self.world.operations[key] for key in self._naming.get(vm, ())]

    def users_operations_in(self, scope: str) -> Collection[str]:
        """Ids of the live operations that users requested, of all VMs of the scope, announced or not."""
        return self._asked_in.get(scope, {})

    @property
    def noted(self) -> int:
        """Entries for the journal so far."""
        return len(self._changes.entries)

    @property
    def targets(self) -> Targets:
        if self._targets is None:
            self._targets = Targets(self.world)
        return self._targets

    # What is decided

    def put_host(self, host: Host) -> None:
        self.world.hosts[host.name] = self._changes.hosts[host.name] = host
        if self._targets is not None:
            self._targets.forget()

    def remove_host(self, name: str) -> None:
        del self.world.hosts[name]
        self._changes.hosts[name] = None

    def put_vm(self, vm: Vm) -> None:
        before = self.world.vms.get(vm.name)
        if before is not None:
            self._unindex_vm(before)
        if before is None or replace(before, host=vm.host) != vm:
            self._changes.members[vm.scope] = None
        if before is not None and before.scope != vm.scope:
            self._changes.members[before.scope] = None
        self.world.vms[vm.name] = self._changes.vms[vm.name] = vm
        self._index_vm(vm)
        self._resize(vm.scope, 1)
        if self._targets is not None:
            self._targets.move(before, vm)

    def remove_vm(self, name: str) -> None:
        vm = self.world.vms.pop(name)
        self._unindex_vm(vm)
        if self._targets is not None:
            self._targets.move(vm, None)
        self._changes.vms[name] = None
        self._changes.members[vm.scope] = None
        for identity in vm.known_by:
            self.world.addresses.pop(identity, None)

    def put_scope(self, scope: Scope) -> None:
        self.world.scopes[scope.key] = self._changes.scopes[scope.key] = scope
        self._changes.members[scope.key] = None

    def remove_scope(self, key: str) -> None:
        self.world.scopes.pop(key, None)
        self._changes.scopes[key] = None
        self._changes.members[key] = None

    def put_operation(self, operation: Operation) -> None:
        before = self.world.operations.get(operation.id)
        if before is not None and (before.host, before.vms) != (operation.host, operation.vms):
            self._index_operation(before, is_live=False)
        self.world.operations[operation.id] = self._changes.operations[operation.id] = operation
        self._index_operation(operation, is_live=operation.status in LIVE)
        if operation.kind.traits.source is Source.USER:
            was_live = before is not None and before.status in LIVE
            self.world.asked_by[operation.by] += (operation.status in LIVE) - was_live
        if self._targets is not None:
            self._targets.head(before, operation)

    def put_event(self, event: Event) -> None:
        """Keep an event; when guests can see the difference, its scope gets a new document."""
        before = self.world.events.get(event.id)
        self.world.events[event.id] = self._changes.events[event.id] = event
        self._index_event(event)
        if before is None or documents.looks_different(before, event):
            self._visible[event.scope] = None

    def put_rollout(self, rollout: Rollout) -> None:
        self.world.rollouts[rollout.id] = self._changes.rollouts[rollout.id] = rollout

    def put_rollout_host(self, rollout_host: RolloutHost) -> None:
        self._changes.rollout_hosts[rollout_host.rollout, rollout_host.host] = rollout_host

    def put_drift(self, drift: Drift) -> None:
        self.world.drift[drift.host, drift.name] = self._changes.drift[drift.host, drift.name] = drift

    def remove_drift(self, host: str, name: str) -> None:
        del self.world.drift[host, name]
        self._changes.drift[host, name] = None

    def wake(self, scope: str) -> None:
        self._changes.woken[scope] = None

    def replan(self, scope: str) -> None:
        self._changes.replanned[scope] = None

    def make_room(self) -> None:
        self._changes.room_made = True

    def note(self, action: str, about: Subject | None = None, /, **data: object) -> None:
        """Journal an action: with the columns that its subject has and those that are given, the rest as data."""
        columns: dict[str, Any] = {column: getattr(about, name) for column, name in COLUMNS[type(about)].items()}
        columns |= {column: data.pop(column) for column in NOUNS if column in data}
        entry = Entry(
            at=self.now, action=action, by=self.by, origin=self.origin, reason=self.reason, data=data, **columns
        )
        self._changes.entries.append(entry)

    def changes(self, *, shown: bool = True) -> Changes:
        """Everything decided since the last time. What is not `shown` now raises no incarnation until it is."""
        if shown:
            for key in self._visible:
                if scope := self.world.scopes.get(key):
                    raised = replace(scope, incarnation=scope.incarnation + 1)
                    self.world.scopes[key] = self._changes.scopes[key] = raised
                    self._changes.documents.append(documents.document(raised, self.live_events_in(key)))
            self._visible.clear()
        decided, self._changes = self._changes, Changes()
        return decided

    def _index_vm(self, vm: Vm) -> None:
        self._vms_on[vm.host][vm.name] = None
        self._vms_in[vm.scope][vm.name] = None

    def _unindex_vm(self, vm: Vm) -> None:
        del self._vms_on[vm.host][vm.name]
        del self._vms_in[vm.scope][vm.name]
        self._resize(vm.scope, -1)

    def _resize(self, scope: str, by: int) -> None:
        if scope in self.world.sizes:
            self.world.sizes[scope] += by

    def _index_operation(self, operation: Operation, *, is_live: bool) -> None:
        of_user = operation.kind.traits.source is Source.USER
        _keep(self._operations_on, operation.host, operation.id, is_live)
        for name in operation.vms:
            _keep(self._naming, name, operation.id, is_live)
            if of_user and (vm := self.world.vms.get(name)):
                # It stays in this scope while an operation names it.
                _keep(self._asked_in, vm.scope, operation.id, is_live)

    def _index_event(self, event: Event) -> None:
        self._events_of[event.operation][event.id] = None
        is_live = event.status in LIVE
        _keep(self._events_in, event.scope, event.id, is_live)
        _keep(self._started_in, event.scope, event.id, event.status is Status.STARTED)
        awaited = is_live and not event.approved and event.type is EventType.TERMINATE
        _keep(self._awaited_deletions_in, event.scope, event.id, awaited)


def _known(things: Mapping[str, Thing], key: str, noun: str, name: str) -> Thing:
    try:
        return things[key]
    except KeyError:
        raise errors.NotFoundError(f"there is no {noun} {name!r}", **{noun.lower(): name}) from None


def _keep(index: dict[str, dict[str, None]], key: str, thing: str, wanted: bool) -> None:
    if wanted:
        index[key][thing] = None
    elif key in index:
        index[key].pop(thing, None)
