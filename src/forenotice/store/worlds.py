"""Loads what a decision needs, complete as `World` promises, in a fixed number of statements."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import exists, select

from forenotice.core import budgets, documents
from forenotice.core.draft import World
from forenotice.core.fleet import GROUP_PREFIX, Scope, ScopeKind, Vm, amount, taken_by
from forenotice.core.operations import Event
from forenotice.store import events, fleet, former, moments, operations, rollouts, schema
from forenotice.store.queries import Among, Executor, Query, Row, chunks
from forenotice.store.rollouts import Rollouts

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a command names."""

    hosts: Collection[str] = ()
    vms: Collection[str] = ()
    scopes: Collection[str] = ()
    operations: Collection[str] = ()
    events: Collection[str] = ()
    addresses: Collection[str] = ()
    rollouts: Collection[str] = ()
    targets: bool = False
    members: bool = False
    to_explain: bool = False


def load(executor: Executor, wanted: Wanted) -> World:
    loading = _Loading(executor)
    world = loading.world
    loading.find_addresses(wanted.addresses)
    named = loading.add_vms(fleet.VMS_NAMED, wanted.vms)
    loading.add_events(events.NAMED, [event.upper() for event in wanted.events])
    loading.add_operations(operations.NAMED, {*wanted.operations, *loading.missing_operations()})

    hosts = {*wanted.hosts, *(vm.host for vm in named), *(each.host for each in world.operations.values())}
    hosts.update(target for each in world.operations.values() for target in each.targets.values())
    loading.add_hosts(hosts)
    housed = loading.add_vms(fleet.VMS_ON, hosts)
    loading.add_operations(operations.LIVE_ON, hosts)
    loading.add_events(events.OF, world.operations)

    scopes = {*wanted.scopes, *(vm.scope for vm in named), *(vm.scope for vm in housed)}
    scopes.update(event.scope for event in world.events.values())
    loading.add_scopes(scopes)
    loading.add_events(events.LIVE_IN, scopes)
    elsewhere = loading.missing_operations()
    loading.add_operations(operations.NAMED, elsewhere)
    if not wanted.to_explain:
        loading.add_events(events.OF, elsewhere)

    loading.add_rollouts(wanted.rollouts)
    loading.add_sizes()
    loading.add_former()
    if wanted.members or wanted.targets:
        loading.add_vms(fleet.VMS_IN, [key for key, scope in world.scopes.items() if _is_group(scope)])
    if wanted.targets:
        loading.add_targets()
    return world


def load_to_schedule(executor: Executor, names: Collection[str], targets: bool, asked_by: bool) -> World:
    loading = _Loading(executor)
    world = loading.world
    named = loading.add_vms(fleet.VMS_NAMED, names)
    scopes = {vm.scope for vm in named}
    loading.add_scopes(scopes)
    limited = [key for key, scope in world.scopes.items() if scope.policy.max_user_operations is not None]
    members = loading.add_vms(fleet.VMS_IN, limited)
    loading.add_hosts({vm.host for vm in named})
    loading.add_operations_naming_loaded({vm.host for vm in (*named, *members)})
    loading.add_events(events.LIVE_IN, scopes)
    loading.add_operations(operations.NAMED, loading.missing_operations())
    loading.add_events(events.OF, world.operations)
    loading.add_rollouts(())
    if targets:
        loading.add_domains([key for key, scope in world.scopes.items() if _is_group(scope)])
        loading.add_targets()
    if asked_by:
        world.asked_by.update(dict(executor.rows(operations.ASKED_BY)))
    return world


def load_to_explain(executor: Executor, named: Collection[str], told: Collection[str]) -> World:
    loading = _Loading(executor)
    world = loading.world
    told_of = loading.operations_of([event.upper() for event in told])
    loading.add_operations(operations.NAMED, {*named, *told_of})
    loading.add_events(events.OF_IN_ORDER, world.operations)
    vms = loading.add_vms(fleet.VMS_NAMED, {name for each in world.operations.values() for name in each.vms})
    loading.add_operations(operations.STARTED_ON, {vm.host for vm in vms})
    scopes = {vm.scope for vm in vms} | {event.scope for event in world.events.values()}
    loading.add_scopes(scopes)
    loading.add_events(events.IN_THE_WAY_IN, scopes)
    loading.add_operations(operations.NAMED, loading.missing_operations())
    loading.add_rollouts(())
    loading.add_sizes()
    loading.add_former()
    return world


def load_hosts(executor: Executor, names: Collection[str], vms: Collection[str]) -> World:
    loading = _Loading(executor)
    loading.add_hosts(names)
    loading.add_vms(fleet.VMS_ON, names)
    loading.add_vms(fleet.VMS_NAMED, vms)
    loading.add_incoming()
    return loading.world


def load_targets(executor: Executor, scopes: Collection[str]) -> World:
    loading = _Loading(executor)
    loading.add_vms(fleet.VMS_IN, [key for key in scopes if key.startswith(GROUP_PREFIX)])
    loading.add_targets()
    return loading.world


def used(executor: Executor, hosts: Collection[str]) -> dict[str, float]:
    taken = Counter(dict.fromkeys(hosts, 0))
    coming = {name: host for name, host in operations.moves(executor).items() if host in taken}
    for host, size in executor.rows(fleet.USED_ON, names=list(hosts)) if hosts else ():
        taken[host] += taken_by(size)
    for name, size in executor.rows(fleet.VM_SIZES, names=list(coming)) if coming else ():
        taken[coming[name]] += taken_by(size)
    return {host: amount(thousandths) for host, thousandths in taken.items()}


def load_to_approve(
    executor: Executor, scopes: Collection[str], vms: Collection[str], ended_since: datetime | None
) -> World:
    loading = _Loading(executor)
    loading.add_vms(fleet.VMS_NAMED, vms)
    loading.add_events(events.LIVE_IN, scopes)
    if ended_since is not None:
        loading.add_events(events.ENDED_IN, scopes, since=moments.to_number(ended_since))
    loading.add_told_of(scopes)
    return loading.world


def load_fleet(executor: Executor) -> World:
    world = World()
    world.hosts.update((row[0], fleet.host(row)) for row in executor.rows(fleet.HOSTS))
    world.scopes.update((row[0], fleet.scope(row)) for row in executor.rows(fleet.SCOPES))
    world.vms.update((row[0], fleet.vm(row)) for row in executor.rows(fleet.VMS))
    world.operations.update((row[0], operations.operation(row)) for row in executor.rows(operations.LIVE))
    world.events.update((row[0], events.event(row)) for row in executor.rows(events.OF_LIVE_OPERATIONS))
    world.addresses.update(executor.rows(fleet.ADDRESSES))
    world.rollouts.update(Rollouts(executor).live())
    return world


def views(executor: Executor, keys: Sequence[str] | None) -> Iterator[tuple[Scope, tuple[Vm, ...], tuple[Event, ...]]]:
    for scopes in _scope_pages(executor, keys):
        page = [scope.key for scope in scopes]
        vms: dict[str, list[Vm]] = {key: [] for key in page}
        for row in executor.rows(fleet.VMS_IN, names=page):
            vm = fleet.vm(row)
            vms[vm.scope].append(vm)
        live: dict[str, list[Event]] = {}
        for row in executor.rows(events.LIVE_IN, names=page):
            event = events.event(row)
            live.setdefault(event.scope, []).append(event)
        for scope in scopes:
            members = vms[scope.key]
            if members or _is_group(scope):
                yield scope, tuple(members), tuple(documents.in_order(live.get(scope.key, ())))


def _scope_pages(executor: Executor, keys: Sequence[str] | None) -> Iterator[list[Scope]]:
    if keys is not None:
        for some in chunks(sorted(set(keys)), _PAGE):
            yield [fleet.scope(row) for row in executor.rows(fleet.SCOPES_NAMED, names=some)]
        return
    after = ""
    while scopes := [fleet.scope(row) for row in executor.rows(fleet.SCOPES_AFTER, after=after, limit=_PAGE)]:
        yield scopes
        after = scopes[-1].key


def _is_group(scope: Scope) -> bool:
    return scope.kind is not ScopeKind.STANDALONE


class _Loading:
    """A world in the making. A step that nothing is named for asks nothing."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.world = World()

    def find_addresses(self, addresses: Collection[str]) -> None:
        self.world.addresses.update(self._rows(fleet.ADDRESSES_NAMED, addresses))
        self.add_vms(fleet.VMS_NAMED, set(self.world.addresses.values()))

    def add_hosts(self, names: Collection[str]) -> None:
        self.world.hosts.update((row[0], fleet.host(row)) for row in self._rows(fleet.HOSTS_NAMED, names))

    def add_scopes(self, keys: Collection[str]) -> None:
        self.world.scopes.update((row[0], fleet.scope(row)) for row in self._rows(fleet.SCOPES_NAMED, keys))

    def add_vms(self, query: Query, names: Collection[str]) -> list[Vm]:
        known, found = self.world.vms, []
        for row in self._rows(query, names):
            vm = known.get(row[0])
            if vm is None:
                vm = known[row[0]] = fleet.vm(row)
            found.append(vm)
        return found

    def add_operations(self, query: Query, names: Collection[str]) -> None:
        known = self.world.operations
        for row in self._rows(query, names):
            if row[0] not in known:
                known[row[0]] = operations.operation(row)

    def add_events(self, query: Query, names: Collection[str], **parameters: object) -> None:
        known = self.world.events
        for row in self._rows(query, names, **parameters):
            if row[0] not in known:
                known[row[0]] = events.event(row)

    def add_rollouts(self, named: Collection[str]) -> None:
        parts_of = {each.rollout for each in self.world.operations.values() if each.rollout is not None}
        self.world.rollouts.update(Rollouts(self._executor).named({*named, *parts_of}))

    def add_sizes(self) -> None:
        budgeted = [key for key, scope in self.world.scopes.items() if budgets.has_budget(scope.policy)]
        self.world.sizes.update(dict.fromkeys(budgeted, 0))
        self.world.sizes.update(self._rows(fleet.SIZES, budgeted))

    def add_operations_naming_loaded(self, hosts: Collection[str]) -> None:
        """Of the live ones on these hosts, those that concern a VM that is loaded."""
        for row in self._rows(operations.LIVE_ON, hosts):
            operation = operations.operation(row)
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
        self.world.former.update(former.named(self._executor, ended))

    def add_targets(self) -> None:
        world = self.world
        world.occupancy.update(self._executor.rows(fleet.TARGETS))
        world.awaiting.update(row[0] for row in self._executor.rows(rollouts.AWAITING))
        self.add_hosts(world.occupancy.keys() - world.hosts.keys())
        limited = [name for name in world.occupancy if world.hosts[name].capacity is not None]
        world.used.update(dict.fromkeys(limited, 0))
        world.used.update((host, fleet.amount(used) or 0) for host, used in self._rows(fleet.USED_ON, limited))
        self.add_incoming()

    def add_incoming(self) -> None:
        """To the loaded hosts that have a capacity."""
        limited = {name for name, host in self.world.hosts.items() if host.capacity is not None}
        if not limited:
            return
        coming = {name: host for name, host in operations.moves(self._executor).items() if host in limited}
        for name, size in self._rows(fleet.VM_SIZES, coming):
            self.world.incoming[name] = (coming[name], fleet.amount(size))

    def operations_of(self, told: Collection[str]) -> set[str]:
        return {row[0] for row in self._rows(events.OPERATIONS, told)}

    def add_told_of(self, scopes: Collection[str]) -> None:
        """The operations of the events so far, which are those of the scopes."""
        world = self.world
        for row in self._rows(TOLD_OF, self.missing_operations(), scopes=list(scopes)):
            world.operations[row[0]] = operations.operation(row)
            if row[-1]:
                world.awaited_elsewhere.add(row[0])

    def missing_operations(self) -> set[str]:
        """Operations of loaded events that are not loaded themselves."""
        return {event.operation for event in self.world.events.values()} - self.world.operations.keys()

    def _rows(self, query: Query, names: Collection[str], **parameters: object) -> Iterable[Row]:
        return self._executor.rows(query, names=list(names), **parameters) if names else ()
