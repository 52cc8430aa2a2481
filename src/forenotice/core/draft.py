"""What is known for a decision, and the changes decided so far."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from forenotice.core import documents, errors
from forenotice.core.fleet import Host, Scope, Vm
from forenotice.core.journal import Entry
from forenotice.core.operations import LIVE, NO_LIMITS, Event, EventType, Operation, Source, Status, UserLimits
from forenotice.core.placement import Targets
from forenotice.core.roles import Former
from forenotice.core.rollouts import Rollout, Stop
from forenotice.core.timing import Timing


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
    """VMs on each host that could take more: neither cordoned nor to be updated or rebooted; loaded only for moves."""
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
    """Operations that somebody must still approve whose event was not loaded; loaded only for approvals by guests."""
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    """Those that loaded operations are a part of, and those that a command names."""
    sizes: dict[str, int] = field(default_factory=dict)
    """How many VMs each scope with a budget has, where not all of them were loaded."""
    domains: dict[tuple[str, str], dict[tuple[int, int], int]] = field(default_factory=dict)
    """How many VMs a group has on a host, by update and fault domain: loaded for moves where the VMs were not."""
    asked_by: Counter[str] = field(default_factory=Counter)
    """How many live users' operations of the whole fleet each person asked for; loaded where they are limited."""
    former: dict[str, Former] = field(default_factory=dict)
    """Of the scopes of events that have ended, those whose key was removed at least once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What to write, in one transaction. None stands for removal."""

    hosts: dict[str, Host | None]
    vms: dict[str, Vm | None]
    scopes: dict[str, Scope | None]
    operations: dict[str, Operation]
    events: dict[str, Event]
    rollouts: dict[str, Rollout]
    stops: dict[tuple[str, str], Stop]
    entries: tuple[Entry, ...]
    documents: tuple[documents.Document, ...]
    """The documents that differ from before, ready for publication."""
    members: tuple[str, ...]
    """Keys of the scopes whose VMs or policy differ from before."""
    woken: tuple[str, ...]
    """Keys of the scopes in which something ended: what was held because of it may start."""
    replanned: tuple[str, ...]
    """Keys of the scopes whose policy changed: Planned operations on the hosts of their VMs are checked again."""
    room_made: bool
    """A host may take VMs that it could not before: what was held for want of a target may start."""


class Draft:
    """A world under change: reads see what was put, and `changes` tells the difference."""

    def __init__(
        self,
        world: World,
        *,
        now: datetime,
        timing: Timing,
        new_id: Callable[[], str],
        by: str = "",
        origin: str = "",
        reason: str = "",
        allowance: timedelta = timedelta(0),
        allows_loopback: bool = False,
        limits: UserLimits = NO_LIMITS,
    ) -> None:
        self.world = world
        self.now = now
        self.timing = timing
        self.new_id = new_id
        self.by = by
        self.origin = origin
        self.reason = reason
        self.allowance = allowance
        """How long after `now` the commit may come: notice counts from the commit."""
        self.allows_loopback = allows_loopback
        """Whether VMs may have loopback addresses."""
        self.limits = limits
        self._visible: dict[str, None] = {}
        self._decide_afresh()
        self._vms_on: dict[str, dict[str, None]] = {}
        self._vms_in: dict[str, dict[str, None]] = {}
        self._operations_on: dict[str, dict[str, None]] = {}
        self._events_of: dict[str, dict[str, None]] = {}
        self._events_in: dict[str, dict[str, None]] = {}
        self._started_in: dict[str, dict[str, None]] = {}
        self._awaited_deletions_in: dict[str, dict[str, None]] = {}
        self._naming: dict[str, dict[str, None]] | None = None
        self._asked_in: dict[str, dict[str, None]] = {}
        self._targets = Targets(world) if world.occupancy else None
        for vm in world.vms.values():
            self._index_vm(vm)
        for operation in world.operations.values():
            self._index_operation(operation)
        for event in world.events.values():
            self._index_event(event)

    # What is known

    def host(self, name: str) -> Host:
        try:
            return self.world.hosts[name]
        except KeyError:
            raise errors.NotFoundError(f"there is no host {name!r}", host=name) from None

    def vm(self, name: str) -> Vm:
        try:
            return self.world.vms[name]
        except KeyError:
            raise errors.NotFoundError(f"there is no VM {name!r}", vm=name) from None

    def scope(self, key: str) -> Scope:
        try:
            return self.world.scopes[key]
        except KeyError:
            noun, _, name = key.partition(":")
            raise errors.NotFoundError(f"there is no {noun} {name!r}", **{noun: name}) from None

    def operation(self, operation_id: str) -> Operation:
        try:
            return self.world.operations[operation_id]
        except KeyError:
            raise errors.NotFoundError(f"there is no operation {operation_id!r}", operation=operation_id) from None

    def event(self, event_id: str) -> Event:
        try:
            return self.world.events[event_id.upper()]
        except KeyError:
            raise errors.NotFoundError(f"there is no event {event_id!r}", event=event_id) from None

    def rollout(self, rollout_id: str) -> Rollout:
        try:
            return self.world.rollouts[rollout_id]
        except KeyError:
            raise errors.NotFoundError(f"there is no rollout {rollout_id!r}", rollout=rollout_id) from None

    def size_of(self, scope: str) -> int:
        """How many VMs it has."""
        return self.world.sizes.get(scope, len(self._vms_in.get(scope, ())))

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
        """Those that somebody must still approve."""
        return [self.world.events[key] for key in self._awaited_deletions_in.get(scope, ())]

    def live_operations_naming(self, vm: str) -> list[Operation]:
        if self._naming is None:
            self._naming = {}
            for operation in self.world.operations.values():
                self._index_names(operation, operation)
        return [self.world.operations[key] for key in self._naming.get(vm, ())]

    def users_operations_in(self, scope: str) -> Collection[str]:
        """Ids of the live operations that users asked for, of all VMs of the scope, announced or not."""
        if scope not in self._asked_in:
            live = [each for vm in self.vms_in(scope) for each in self.live_operations_naming(vm.name)]
            self._asked_in[scope] = {each.id: None for each in live if each.kind.traits.source is Source.USER}
        return self._asked_in[scope]

    @property
    def targets(self) -> Targets:
        if self._targets is None:
            self._targets = Targets(self.world)
        return self._targets

    # What is decided

    def put_host(self, host: Host) -> None:
        self.world.hosts[host.name] = self._hosts[host.name] = host
        if self._targets is not None:
            self._targets.forget()

    def remove_host(self, name: str) -> None:
        del self.world.hosts[name]
        self._hosts[name] = None

    def put_vm(self, vm: Vm) -> None:
        before = self.world.vms.get(vm.name)
        if before is not None:
            self._unindex_vm(before)
            self._resize(before.scope, -1)
        self._resize(vm.scope, 1)
        if before is None or replace(before, host=vm.host) != vm:
            self._members[vm.scope] = None
        if before is not None and before.scope != vm.scope:
            self._members[before.scope] = None
        self.world.vms[vm.name] = self._vms[vm.name] = vm
        self._index_vm(vm)
        self._moved(before, vm)

    def remove_vm(self, name: str) -> None:
        vm = self.world.vms.pop(name)
        self._unindex_vm(vm)
        self._moved(vm, None)
        self._resize(vm.scope, -1)
        self._vms[name] = None
        self._members[vm.scope] = None
        for identity in vm.known_by:
            self.world.addresses.pop(identity, None)

    def put_scope(self, scope: Scope) -> None:
        self.world.scopes[scope.key] = self._scopes[scope.key] = scope
        self._members[scope.key] = None

    def remove_scope(self, key: str) -> None:
        self.world.scopes.pop(key, None)
        self._scopes[key] = None
        self._members[key] = None

    def put_operation(self, operation: Operation) -> None:
        before = self.world.operations.get(operation.id)
        if before is not None and before.host != operation.host:
            del self._operations_on[before.host][operation.id]
        self.world.operations[operation.id] = self._operations[operation.id] = operation
        self._index_operation(operation)
        self._index_names(before, operation)
        if operation.kind.traits.source is Source.USER:
            was_live = before is not None and before.status in LIVE
            self.world.asked_by[operation.by] += (operation.status in LIVE) - was_live
        if self._targets is not None:
            self._targets.head(before, operation)

    def put_event(self, event: Event) -> None:
        """Keep an event; when guests can see the difference, its scope gets a new document."""
        before = self.world.events.get(event.id)
        self.world.events[event.id] = self._events[event.id] = event
        self._index_event(event)
        if before is None or documents.looks_different(before, event):
            self._visible[event.scope] = None

    def put_rollout(self, rollout: Rollout) -> None:
        self.world.rollouts[rollout.id] = self._rollouts[rollout.id] = rollout

    def put_stop(self, stop: Stop) -> None:
        self._stops[stop.rollout, stop.host] = stop

    def wake(self, scope: str) -> None:
        self._woken[scope] = None

    def replan(self, scope: str) -> None:
        self._replanned[scope] = None

    def make_room(self) -> None:
        self._room_made = True

    def note(
        self,
        action: str,
        *,
        scope: str | None = None,
        event: str | None = None,
        operation: str | None = None,
        host: str | None = None,
        vm: str | None = None,
        rollout: str | None = None,
        **data: object,
    ) -> None:
        self._entries.append(
            Entry(
                at=self.now,
                action=action,
                by=self.by,
                origin=self.origin,
                reason=self.reason,
                scope=scope,
                event=event,
                operation=operation,
                host=host,
                vm=vm,
                rollout=rollout,
                data=data,
            )
        )

    def changes(self, *, shown: bool = True) -> Changes:
        """Everything decided since the last time. What is not `shown` now raises no incarnation until it is."""
        changed = self._show() if shown else []
        decided = Changes(
            hosts=self._hosts,
            vms=self._vms,
            scopes=self._scopes,
            operations=self._operations,
            events=self._events,
            rollouts=self._rollouts,
            stops=self._stops,
            entries=tuple(self._entries),
            documents=tuple(changed),
            members=tuple(self._members),
            woken=tuple(self._woken),
            replanned=tuple(self._replanned),
            room_made=self._room_made,
        )
        self._decide_afresh()
        return decided

    def _show(self) -> list[documents.Document]:
        """The documents that look different, each with an incarnation that has grown by one."""
        changed = []
        for key in self._visible:
            if scope := self.world.scopes.get(key):
                raised = replace(scope, incarnation=scope.incarnation + 1)
                self.world.scopes[key] = self._scopes[key] = raised
                changed.append(documents.document(raised, self.live_events_in(key)))
        self._visible.clear()
        return changed

    def _decide_afresh(self) -> None:
        self._entries: list[Entry] = []
        self._hosts: dict[str, Host | None] = {}
        self._vms: dict[str, Vm | None] = {}
        self._scopes: dict[str, Scope | None] = {}
        self._operations: dict[str, Operation] = {}
        self._events: dict[str, Event] = {}
        self._rollouts: dict[str, Rollout] = {}
        self._stops: dict[tuple[str, str], Stop] = {}
        self._members: dict[str, None] = {}
        self._woken: dict[str, None] = {}
        self._replanned: dict[str, None] = {}
        self._room_made = False

    def _index_vm(self, vm: Vm) -> None:
        self._vms_on.setdefault(vm.host, {})[vm.name] = None
        self._vms_in.setdefault(vm.scope, {})[vm.name] = None

    def _resize(self, scope: str, by: int) -> None:
        if scope in self.world.sizes:
            self.world.sizes[scope] += by

    def _unindex_vm(self, vm: Vm) -> None:
        del self._vms_on[vm.host][vm.name]
        del self._vms_in[vm.scope][vm.name]

    def _index_operation(self, operation: Operation) -> None:
        _keep(self._operations_on, operation.host, operation.id, operation.status in LIVE)

    def _index_names(self, before: Operation | None, operation: Operation) -> None:
        if self._naming is None:
            return
        for name in before.vms if before else ():
            self._naming.get(name, {}).pop(operation.id, None)
        for name in operation.vms if operation.status in LIVE else ():
            self._naming.setdefault(name, {})[operation.id] = None
        if operation.kind.traits.source is Source.USER:
            self._index_asked(operation)

    def _index_asked(self, operation: Operation) -> None:
        for name in operation.vms:
            vm = self.world.vms.get(name)
            if vm is not None and vm.scope in self._asked_in:
                _keep(self._asked_in, vm.scope, operation.id, operation.status in LIVE)

    def _moved(self, before: Vm | None, after: Vm | None) -> None:
        self._asked_in.clear()
        if self._targets is not None:
            self._targets.move(before, after)

    def _index_event(self, event: Event) -> None:
        self._events_of.setdefault(event.operation, {})[event.id] = None
        is_live = event.status in LIVE
        _keep(self._events_in, event.scope, event.id, is_live)
        _keep(self._started_in, event.scope, event.id, event.status is Status.STARTED)
        awaited = is_live and not event.approved and event.type is EventType.TERMINATE
        _keep(self._awaited_deletions_in, event.scope, event.id, awaited)


def _keep(index: dict[str, dict[str, None]], key: str, thing: str, wanted: bool) -> None:
    if wanted:
        index.setdefault(key, {})[thing] = None
    elif key in index:
        index[key].pop(thing, None)
