"""What a decision needs, complete as `World` promises, in a fixed number of statements."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from sqlalchemy import exists, select

from forenotice.core import budgets, documents
from forenotice.core.draft import World
from forenotice.core.fleet import GROUP_PREFIX, Scope, ScopeKind, Vm
from forenotice.core.operations import Event
from forenotice.store import events as event_rows
from forenotice.store import fleet, rollouts, rows, schema
from forenotice.store import operations as operation_rows
from forenotice.store.queries import Among, Executor, Query, Repository, chunks
from forenotice.store.rows import Row

T = TypeVar("T")

_PAGE = 2_000
"""Scopes that `views` holds at once."""

_O = schema.operations.c
_other = schema.events.alias("other")
TOLD_OF = Query(
    select(
        schema.operations,
        exists(
            select(_other.c.id)
            .where(_other.c.operation == _O.id, _other.c.ended_at.is_(None), _other.c.approved_at.is_(None))
            .where(~Among(_other.c.scope, "scopes"))
            .correlate(schema.operations)
        ),
    ).where(Among(_O.id, "names"))
)
"""Operations, each with whether an event of another scope is still to be approved."""


class Worlds(Repository):
    """Unknown names are absent; ids of events may be in any case."""

    def load(
        self,
        *,
        hosts: Collection[str] = (),
        vms: Collection[str] = (),
        scopes: Collection[str] = (),
        operations: Collection[str] = (),
        events: Collection[str] = (),
        addresses: Collection[str] = (),
        rollouts: Collection[str] = (),
        targets: bool = False,
        members: bool = False,
        to_explain: bool = False,
    ) -> World:
        """What a decision about the named things needs.

        A named VM brings its host and scope, a named event its operation, a named operation its host and its targets.
        Each such host comes with all its VMs and live operations; each scope named, of those VMs, or of an event of
        those operations, with its live events; each event with its operation, each operation with all its events.
        `members` adds all VMs of the groups among those scopes; `targets` does too, adds every host that is neither
        cordoned nor to be updated or rebooted with its occupancy and what is used of its capacity, and tells which
        others await maintenance, and who is on the way to a host with a capacity.
        `addresses` tells which VM is known by each, and brings that VM alone. Operations come with their rollout, and
        scopes with a budget with their size.

        `to_explain`, not to decide: operations on other hosts come with their events in those scopes only.
        """
        loader = _Loader(self._executor)
        world = loader.world
        loader.find_addresses(addresses)
        named = loader.add_vms(fleet.VMS_NAMED, vms)
        loader.add_events(event_rows.NAMED, [event.upper() for event in events])
        loader.add_operations(operation_rows.NAMED, {*operations, *loader.missing_operations()})

        houses = {*hosts, *(vm.host for vm in named), *(each.host for each in world.operations.values())}
        houses.update(target for each in world.operations.values() for target in each.targets.values())
        loader.add_hosts(houses)
        housed = loader.add_vms(fleet.VMS_ON, houses)
        loader.add_operations(operation_rows.LIVE_ON, houses)
        loader.add_events(event_rows.OF, world.operations)

        keys = {*scopes, *(vm.scope for vm in named), *(vm.scope for vm in housed)}
        keys.update(event.scope for event in world.events.values())
        loader.add_scopes(keys)
        loader.add_events(event_rows.LIVE_IN, keys)
        elsewhere = loader.missing_operations()
        loader.add_operations(operation_rows.NAMED, elsewhere)
        if not to_explain:
            loader.add_events(event_rows.OF, elsewhere)

        loader.add_rollouts(rollouts)
        loader.add_sizes()
        loader.add_former()
        if members or targets:
            loader.add_vms(fleet.VMS_IN, loader.groups())
        if targets:
            loader.add_targets()
        return world

    def to_schedule(self, vms: Collection[str], *, targets: bool = False, asked_by: bool = False) -> World:
        """What a decision about these VMs alone needs, however many others share their hosts.

        Each comes with its host, its scope with all live events, and the live operations that name it; a scope that
        limits its users' operations with all its VMs. `targets` adds every host that could take one, and where the
        groups have which domains; `asked_by` how many users' operations are live in the fleet, by who asked for them.
        """
        loader = _Loader(self._executor)
        world = loader.world
        named = loader.add_vms(fleet.VMS_NAMED, vms)
        scopes = {vm.scope for vm in named}
        loader.add_scopes(scopes)
        limited = [key for key, scope in world.scopes.items() if scope.policy.max_user_operations is not None]
        members = loader.add_vms(fleet.VMS_IN, limited)
        loader.add_hosts({vm.host for vm in named})
        loader.add_operations_naming_loaded({vm.host for vm in (*named, *members)})
        loader.add_events(event_rows.LIVE_IN, scopes)
        loader.add_operations(operation_rows.NAMED, loader.missing_operations())
        loader.add_events(event_rows.OF, world.operations)
        loader.add_rollouts(())
        if targets:
            loader.add_domains(loader.groups())
            loader.add_targets()
        if asked_by:
            world.asked_by.update(dict(self._executor.rows(operation_rows.ASKED_BY)))
        return world

    def to_explain(self, *, operations: Collection[str] = (), events: Collection[str] = ()) -> World:
        """What tells why these operations, or those of these events, wait; not enough to decide anything.

        Each comes with its VMs, their scopes, and all its events, in the order of their scopes. Of others, only what
        may be in the way: what has started on those VMs' hosts, and in those scopes what has started or is a deletion.
        """
        loader = _Loader(self._executor)
        world = loader.world
        told_of = loader.operations_of([event.upper() for event in events])
        loader.add_operations(operation_rows.NAMED, {*operations, *told_of})
        loader.add_events(event_rows.OF_IN_ORDER, world.operations)
        vms = loader.add_vms(fleet.VMS_NAMED, {name for each in world.operations.values() for name in each.vms})
        loader.add_operations(operation_rows.STARTED_ON, {vm.host for vm in vms})
        scopes = {vm.scope for vm in vms} | {event.scope for event in world.events.values()}
        loader.add_scopes(scopes)
        loader.add_events(event_rows.IN_THE_WAY_IN, scopes)
        loader.add_operations(operation_rows.NAMED, loader.missing_operations())
        loader.add_rollouts(())
        loader.add_sizes()
        loader.add_former()
        return world

    def hosts(self, names: Collection[str], vms: Collection[str] = ()) -> World:
        """These hosts with their VMs, and these VMs: nothing else."""
        loader = _Loader(self._executor)
        loader.add_hosts(names)
        loader.add_vms(fleet.VMS_ON, names)
        loader.add_vms(fleet.VMS_NAMED, vms)
        loader.add_incoming()
        return loader.world

    def targets(self, scopes: Collection[str]) -> World:
        """Where VMs of these scopes could go: what `targets` adds above, and nothing else."""
        loader = _Loader(self._executor)
        loader.add_vms(fleet.VMS_IN, [key for key in scopes if key.startswith(GROUP_PREFIX)])
        loader.add_targets()
        return loader.world

    def to_approve(self, scopes: Collection[str], vms: Collection[str], ended_since: datetime | None = None) -> World:
        """These VMs alone; the live events of these scopes, and those that ended since, with their operations.

        Of other scopes' events it only says which operations wait for their approval.
        """
        loader = _Loader(self._executor)
        loader.add_vms(fleet.VMS_NAMED, vms)
        loader.add_events(event_rows.LIVE_IN, scopes)
        if ended_since is not None:
            loader.add_events(event_rows.ENDED_IN, scopes, since=rows.number(ended_since))
        loader.add_told_of(scopes)
        return loader.world

    def fleet(self) -> World:
        """All hosts, VMs, scopes and addresses, all live operations with all their events."""
        world, executor = World(), self._executor
        world.hosts.update((row[0], fleet.host(row)) for row in executor.rows(fleet.HOSTS))
        world.scopes.update((row[0], fleet.scope(row)) for row in executor.rows(fleet.SCOPES))
        world.vms.update((row[0], fleet.vm(row)) for row in executor.rows(fleet.VMS))
        world.operations.update((row[0], operation_rows.read(row)) for row in executor.rows(operation_rows.LIVE))
        world.events.update((row[0], event_rows.read(row)) for row in executor.rows(event_rows.OF_LIVE_OPERATIONS))
        world.addresses.update(executor.rows(fleet.ADDRESSES))
        world.rollouts.update(rollouts.Rollouts(executor).live())
        return world

    def scopes(self, keys: Sequence[str] | None = None) -> Iterator[tuple[Scope, tuple[Vm, ...], tuple[Event, ...]]]:
        """Each scope that is a group or has VMs, by key, with its VMs by name and live events by age; None: all.

        Streamed: it never holds more than a few thousand scopes, and ends with the `with` of the reader.
        """
        for page in self._scope_pages(keys):
            vms: dict[str, list[Vm]] = {key: [] for key in page}
            for row in self._executor.rows(fleet.VMS_IN, names=list(page)):
                vm = fleet.vm(row)
                vms[vm.scope].append(vm)
            live: dict[str, list[Event]] = {}
            for row in self._executor.rows(event_rows.LIVE_IN, names=list(page)):
                event = event_rows.read(row)
                live.setdefault(event.scope, []).append(event)
            for key, scope in page.items():
                if vms[key] or _is_group(scope):
                    yield scope, tuple(vms[key]), tuple(documents.in_order(live.get(key, ())))

    def _scope_pages(self, keys: Sequence[str] | None) -> Iterator[dict[str, Scope]]:
        if keys is not None:
            for some in chunks(sorted(set(keys)), _PAGE):
                yield fleet.Scopes(self._executor).named(some)
            return
        after = ""
        while page := [fleet.scope(row) for row in self._executor.rows(fleet.SCOPES_AFTER, after=after, limit=_PAGE)]:
            yield {scope.key: scope for scope in page}
            after = page[-1].key


def _is_group(scope: Scope) -> bool:
    return scope.kind is not ScopeKind.STANDALONE


class _Loader:
    """Builds one world. A step without names runs no statement."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.world = World()

    def find_addresses(self, addresses: Collection[str]) -> None:
        self.world.addresses.update(self._rows(fleet.ADDRESSES_NAMED, addresses))
        self.add_vms(fleet.VMS_NAMED, set(self.world.addresses.values()))

    def _add(
        self, known: dict[str, T], read: Callable[[Row], T], query: Query, names: Collection[str], **more: object
    ) -> list[T]:
        """What is known already is not read again."""
        found = []
        for row in self._rows(query, names, **more):
            thing = known.get(row[0])
            if thing is None:
                thing = known[row[0]] = read(row)
            found.append(thing)
        return found

    def add_hosts(self, names: Collection[str]) -> None:
        self._add(self.world.hosts, fleet.host, fleet.HOSTS_NAMED, names)

    def add_scopes(self, keys: Collection[str]) -> None:
        self._add(self.world.scopes, fleet.scope, fleet.SCOPES_NAMED, keys)

    def add_vms(self, query: Query, names: Collection[str]) -> list[Vm]:
        return self._add(self.world.vms, fleet.vm, query, names)

    def add_operations(self, query: Query, names: Collection[str]) -> None:
        self._add(self.world.operations, operation_rows.read, query, names)

    def add_events(self, query: Query, names: Collection[str], **more: object) -> None:
        self._add(self.world.events, event_rows.read, query, names, **more)

    def groups(self) -> list[str]:
        return [key for key, scope in self.world.scopes.items() if _is_group(scope)]

    def add_rollouts(self, named: Collection[str]) -> None:
        parts_of = {each.rollout for each in self.world.operations.values() if each.rollout is not None}
        self.world.rollouts.update(rollouts.Rollouts(self._executor).named({*named, *parts_of}))

    def add_sizes(self) -> None:
        budgeted = [key for key, scope in self.world.scopes.items() if budgets.has_budget(scope.policy)]
        self.world.sizes.update(dict.fromkeys(budgeted, 0))
        self.world.sizes.update(self._rows(fleet.SIZES, budgeted))

    def add_operations_naming_loaded(self, hosts: Collection[str]) -> None:
        """Of the live ones on these hosts, those that name a loaded VM."""
        for row in self._rows(operation_rows.LIVE_ON, hosts):
            operation = operation_rows.read(row)
            if any(name in self.world.vms for name in operation.vms):
                self.world.operations[operation.id] = operation

    def add_domains(self, groups: Collection[str]) -> None:
        for scope, host, update_domain, fault_domain, count in self._rows(fleet.DOMAINS_IN, groups):
            self.world.domains.setdefault((scope, host), {})[update_domain, fault_domain] = count
        # VMs that are moving count at their target.
        moved = {name for each in self.world.operations.values() for name in each.targets} - self.world.vms.keys()
        self.add_vms(fleet.VMS_NAMED, moved)

    def add_former(self) -> None:
        # Live events never belong to an earlier scope.
        ended = {event.scope for event in self.world.events.values() if not event.status.live}
        self.world.former.update(fleet.Scopes(self._executor).former(ended))

    def add_targets(self) -> None:
        world = self.world
        world.occupancy.update(self._executor.rows(fleet.TARGETS))
        world.awaiting.update(row[0] for row in self._executor.rows(rollouts.AWAITING))
        self.add_hosts(world.occupancy.keys() - world.hosts.keys())
        limited = [name for name in world.occupancy if world.hosts[name].capacity is not None]
        world.used.update(dict.fromkeys(limited, 0))
        world.used.update((host, rows.amount(used) or 0) for host, used in self._rows(fleet.USED_ON, limited))
        self.add_incoming()

    def add_incoming(self) -> None:
        """To the loaded hosts that have a capacity."""
        limited = {name for name, host in self.world.hosts.items() if host.capacity is not None}
        if not limited:
            return
        coming = {name: host for name, host in fleet.moving(self._executor).items() if host in limited}
        for name, size in self._rows(fleet.VM_SIZES, coming):
            self.world.incoming[name] = (coming[name], rows.amount(size))

    def operations_of(self, told: Collection[str]) -> set[str]:
        return {row[0] for row in self._rows(event_rows.OPERATIONS, told)}

    def add_told_of(self, scopes: Collection[str]) -> None:
        """The operations of the events so far, which are those of the scopes."""
        world = self.world
        for row in self._rows(TOLD_OF, self.missing_operations(), scopes=list(scopes)):
            world.operations[row[0]] = operation_rows.read(row)
            if row[-1]:
                world.awaited_elsewhere.add(row[0])

    def missing_operations(self) -> set[str]:
        """Operations of loaded events that are not loaded themselves."""
        return {event.operation for event in self.world.events.values()} - self.world.operations.keys()

    def _rows(self, query: Query, names: Collection[str], **parameters: object) -> Iterable[Row]:
        return self._executor.rows(query, names=list(names), **parameters) if names else ()
