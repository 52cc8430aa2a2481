"""What a decision needs, complete as `World` promises, in a fixed number of statements."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from forenotice.core import documents
from forenotice.core.draft import World
from forenotice.core.fleet import GROUP_PREFIX, Scope, ScopeKind, Vm
from forenotice.core.operations import Event, Operation, Source
from forenotice.store import events as event_rows
from forenotice.store import fleet, rollouts, rows
from forenotice.store import operations as operation_rows
from forenotice.store.queries import Executor, Repository, chunks, kinds
from forenotice.store.rows import Row

T = TypeVar("T")

_PAGE = 2_000
"""Scopes that `scopes` holds at once."""
_NAMED = "id IN :names"
_LIVE_ON = "host IN :names AND ended_at IS NULL"
_OF = "operation IN :names"
_LIVE_IN = "scope IN :names AND ended_at IS NULL"
_ENDED_IN = f"scope IN :names AND ended_at >= :since AND {event_rows.OF_LATEST}"
_IN_THE_WAY_IN = f"{_LIVE_IN} AND (status = 'Started' OR type = 'Terminate') ORDER BY created_at, id"
"""Only events that have started can block others, and deletions can block later events."""


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
        `members` adds all VMs of the groups among those scopes; `targets` does too, adds every host that could take
        VMs (`World.occupancy`) with what is used of its capacity, and tells which others await maintenance, whose edge
        is lost, and who is on the way to a host with a capacity.
        `addresses` tells which VM is known by each, and brings that VM alone. Operations come with their rollout, and
        scopes with a budget with their size.

        `to_explain`, not to decide: operations on other hosts come with their events in those scopes only.
        """
        loader = _Loader(self._db)
        world = loader.world
        world.addresses.update(
            loader.rows("SELECT vm_addresses.* FROM vm_addresses WHERE address IN :names", addresses)
        )
        loader.add_vms("name", set(world.addresses.values()))
        named = loader.add_vms("name", vms)
        loader.add_events(_NAMED, [event.upper() for event in events])
        loader.add_operations(_NAMED, {*operations, *loader.missing_operations()})

        houses = {*hosts, *(vm.host for vm in named), *(each.host for each in world.operations.values())}
        houses.update(target for each in world.operations.values() for target in each.targets.values())
        loader.add_hosts(houses)
        housed = loader.add_vms("host", houses)
        loader.add_operations(_LIVE_ON, houses)
        loader.add_events(_OF, world.operations)

        keys = {*scopes, *(vm.scope for vm in named), *(vm.scope for vm in housed)}
        keys.update(event.scope for event in world.events.values())
        loader.add_scopes(keys)
        loader.add_events(_LIVE_IN, keys)
        elsewhere = loader.missing_operations()
        loader.add_operations(_NAMED, elsewhere)
        if not to_explain:
            loader.add_events(_OF, elsewhere)

        loader.add_rollouts(rollouts)
        loader.add_sizes()
        loader.add_former()
        if members or targets:
            loader.add_vms("scope", loader.groups())
        if targets:
            loader.add_targets()
        return world

    def to_schedule(self, vms: Collection[str], *, targets: bool = False, asked_by: bool = False) -> World:
        """What a decision about these VMs alone needs, however many others share their hosts.

        Each comes with its host, its scope with all live events, and the live operations that name it; a scope that
        limits its users' operations with all its VMs. `targets` adds every host that could take one, and where the
        groups have which domains; `asked_by` how many users' operations are live in the fleet, by who asked for them.
        """
        loader = _Loader(self._db)
        world = loader.world
        named = loader.add_vms("name", vms)
        scopes = {vm.scope for vm in named}
        loader.add_scopes(scopes)
        limited = [key for key, scope in world.scopes.items() if scope.policy.max_user_operations is not None]
        members = loader.add_vms("scope", limited)
        loader.add_hosts({vm.host for vm in named})
        for row in loader.rows(operation_rows.SELECT + _LIVE_ON, {vm.host for vm in (*named, *members)}):
            operation = operation_rows.read(row)
            if any(name in world.vms for name in operation.vms):
                world.operations[operation.id] = operation
        loader.add_events(_LIVE_IN, scopes)
        loader.add_operations(_NAMED, loader.missing_operations())
        loader.add_events(_OF, world.operations)
        loader.add_rollouts(())
        if targets:
            loader.add_domains(loader.groups())
            loader.add_targets()
        if asked_by:
            by_users = kinds(lambda traits: traits.source is Source.USER)
            query = "SELECT author, count(*) FROM operations WHERE ended_at IS NULL"
            world.asked_by.update(dict(self._db.rows(f"{query} AND kind IN {by_users} GROUP BY author")))
        return world

    def to_explain(self, *, operations: Collection[str] = (), events: Collection[str] = ()) -> World:
        """What tells why these operations, or those of these events, wait; not enough to decide anything.

        Each comes with its VMs, their scopes, and all its events, in the order of their scopes. Of others, only what
        may be in the way: what has started on those VMs' hosts, and in those scopes what has started or is a deletion.
        """
        loader = _Loader(self._db)
        world = loader.world
        told_of = loader.rows("SELECT operation FROM events WHERE id IN :names", [event.upper() for event in events])
        loader.add_operations(_NAMED, {*operations, *(row[0] for row in told_of)})
        # In a fixed order, so that an explanation does not change from one request to the next.
        loader.add_events(f"{_OF} ORDER BY scope, id", world.operations)
        vms = loader.add_vms("name", {name for each in world.operations.values() for name in each.vms})
        loader.add_operations(f"{_LIVE_ON} AND status = 'Started'", {vm.host for vm in vms})
        scopes = {vm.scope for vm in vms} | {event.scope for event in world.events.values()}
        loader.add_scopes(scopes)
        loader.add_events(_IN_THE_WAY_IN, scopes)
        loader.add_operations(_NAMED, loader.missing_operations())
        loader.add_rollouts(())
        loader.add_sizes()
        loader.add_former()
        return world

    def hosts(self, names: Collection[str], vms: Collection[str] = ()) -> World:
        """These hosts with their VMs, and these VMs: nothing else."""
        loader = _Loader(self._db)
        loader.add_hosts(names)
        loader.add_vms("host", names)
        loader.add_vms("name", vms)
        loader.add_incoming()
        return loader.world

    def targets(self, scopes: Collection[str]) -> World:
        """Where VMs of these scopes could go: what `targets` adds above, and nothing else."""
        loader = _Loader(self._db)
        loader.add_vms("scope", [key for key in scopes if key.startswith(GROUP_PREFIX)])
        loader.add_targets()
        return loader.world

    def to_approve(self, scopes: Collection[str], vms: Collection[str], ended_since: datetime | None = None) -> World:
        """These VMs alone; the live events of these scopes, and those that ended since, with their operations.

        Of other scopes' events it only says which operations wait for their approval.
        """
        loader = _Loader(self._db)
        world = loader.world
        loader.add_vms("name", vms)
        loader.add_events(_LIVE_IN, scopes)
        if ended_since is not None:
            loader.add_events(_ENDED_IN, scopes, since=ended_since)
        awaited_elsewhere = """EXISTS (SELECT 1 FROM events WHERE events.operation = operations.id
            AND events.ended_at IS NULL AND approved_at IS NULL AND NOT (scope IN :scopes))"""
        query = f"SELECT operations.*, {awaited_elsewhere} FROM operations WHERE operations.id IN :names"
        for row in loader.rows(query, loader.missing_operations(), scopes=scopes):
            world.operations[row[0]] = operation_rows.read(row)
            if row[-1]:
                world.awaited_elsewhere.add(row[0])
        return world

    def fleet(self) -> World:
        """All hosts, VMs, scopes and addresses, all live operations with all their events."""
        world, db = World(), self._db
        world.hosts.update((row[0], fleet.host(row)) for row in db.rows("SELECT hosts.* FROM hosts"))
        world.scopes.update((row[0], fleet.scope(row)) for row in db.rows(fleet.SCOPES))
        world.vms.update((row[0], fleet.vm(row)) for row in db.rows("SELECT vms.* FROM vms"))
        live = db.rows(operation_rows.SELECT + "ended_at IS NULL")
        world.operations.update((row[0], operation_rows.read(row)) for row in live)
        told = db.rows(
            "SELECT events.* FROM events WHERE operation IN (SELECT id FROM operations WHERE ended_at IS NULL)"
        )
        world.events.update((row[0], event_rows.read(row)) for row in told)
        world.addresses.update(db.rows("SELECT vm_addresses.* FROM vm_addresses"))
        world.rollouts.update(rollouts.Rollouts(db).live())
        return world

    def of_hosts(self, hosts: Collection[str], ended_since: datetime) -> World:
        """The VMs of these hosts or on their way there, and their scopes with their events: live, or ended since.

        The operations are those that move VMs, wherever to.
        """
        loader = _Loader(self._db)
        moving = loader.add_moving_operations()
        arriving = {vm for operation in moving for vm, target in operation.targets.items() if target in hosts}
        vms = [*loader.add_vms("host", hosts), *loader.add_vms("name", arriving)]
        keys = {vm.scope for vm in vms}
        loader.add_scopes(keys)
        loader.add_events(_LIVE_IN, keys)
        loader.add_events(_ENDED_IN, keys, since=ended_since)
        return loader.world

    def places(self, scopes: Collection[str]) -> set[tuple[str, str]]:
        """Each of these scopes with each host that has VMs of it."""
        query = "SELECT DISTINCT scope, host FROM vms WHERE scope IN :names"
        return {(row[0], row[1]) for row in _Loader(self._db).rows(query, scopes)}

    def scopes(self, keys: Sequence[str] | None = None) -> Iterator[tuple[Scope, tuple[Vm, ...], tuple[Event, ...]]]:
        """Each scope that is a group or has VMs, by key, with its VMs by name and live events by age; None: all.

        Streamed: it never holds more than a few thousand scopes, and ends with the `with` of the reader.
        """
        for page in self._scope_pages(keys):
            loader = _Loader(self._db)
            vms: dict[str, list[Vm]] = {key: [] for key in page}
            for vm in loader.add_vms("scope", page):
                vms[vm.scope].append(vm)
            live: dict[str, list[Event]] = {}
            for event in loader.add_events(_LIVE_IN, page):
                live.setdefault(event.scope, []).append(event)
            for key, scope in page.items():
                if vms[key] or _is_group(scope):
                    yield scope, tuple(vms[key]), tuple(documents.in_order(live.get(key, ())))

    def _scope_pages(self, keys: Sequence[str] | None) -> Iterator[dict[str, Scope]]:
        if keys is not None:
            for some in chunks(sorted(set(keys)), _PAGE):
                yield fleet.Scopes(self._db).named(some)
            return
        after, query = "", f"{fleet.SCOPES} WHERE key > :after ORDER BY key LIMIT :limit"
        while page := [fleet.scope(row) for row in self._db.rows(query, after=after, limit=_PAGE)]:
            yield {scope.key: scope for scope in page}
            after = page[-1].key


def _is_group(scope: Scope) -> bool:
    return scope.kind is not ScopeKind.STANDALONE


class _Loader:
    """Builds one world. A step without names runs no statement."""

    def __init__(self, executor: Executor) -> None:
        self._db = executor
        self.world = World()

    def rows(self, query: str, names: Collection[str], **parameters: object) -> Iterable[Row]:
        return self._db.rows(query, names=names, **parameters) if names else ()

    def _add(self, known: dict[str, T], read: Callable[[Row], T], found: Iterable[Row]) -> list[T]:
        """What is known already is not read again."""
        things = []
        for row in found:
            thing = known.get(row[0])
            if thing is None:
                thing = known[row[0]] = read(row)
            things.append(thing)
        return things

    def add_hosts(self, names: Collection[str]) -> None:
        found = self.rows("SELECT hosts.* FROM hosts WHERE name IN :names", names)
        self._add(self.world.hosts, fleet.host, found)

    def add_scopes(self, keys: Collection[str]) -> None:
        found = self.rows(f"{fleet.SCOPES} WHERE key IN :names ORDER BY key", keys)
        self._add(self.world.scopes, fleet.scope, found)

    def add_vms(self, by: str, names: Collection[str]) -> list[Vm]:
        """By `name`, `host` or `scope`."""
        order = " ORDER BY scope, name" if by == "scope" else ""
        found = self.rows(f"SELECT vms.* FROM vms WHERE {by} IN :names{order}", names)
        return self._add(self.world.vms, fleet.vm, found)

    def add_operations(self, where: str, names: Collection[str]) -> None:
        self._add(self.world.operations, operation_rows.read, self.rows(operation_rows.SELECT + where, names))

    def add_moving_operations(self) -> list[Operation]:
        found = self._db.rows(f"{operation_rows.SELECT}ended_at IS NULL AND status = 'Started' AND targets IS NOT NULL")
        return self._add(self.world.operations, operation_rows.read, found)

    def add_events(self, where: str, names: Collection[str], **parameters: object) -> list[Event]:
        found = self.rows(f"SELECT events.* FROM events WHERE {where}", names, **parameters)
        return self._add(self.world.events, event_rows.read, found)

    def groups(self) -> list[str]:
        return [key for key, scope in self.world.scopes.items() if _is_group(scope)]

    def add_rollouts(self, named: Collection[str]) -> None:
        parts_of = {each.rollout for each in self.world.operations.values() if each.rollout is not None}
        self.world.rollouts.update(rollouts.Rollouts(self._db).named({*named, *parts_of}))

    def add_sizes(self) -> None:
        budgeted = [key for key, scope in self.world.scopes.items() if scope.policy.has_budget]
        self.world.sizes.update(dict.fromkeys(budgeted, 0))
        query = "SELECT scope, count(*) FROM vms WHERE scope IN :names GROUP BY scope"
        self.world.sizes.update(self.rows(query, budgeted))

    def add_domains(self, groups: Collection[str]) -> None:
        columns = "scope, host, update_domain, fault_domain"
        query = f"SELECT {columns}, count(*) FROM vms WHERE scope IN :names GROUP BY {columns}"
        for scope, host, update_domain, fault_domain, count in self.rows(query, groups):
            self.world.domains.setdefault((scope, host), {})[update_domain, fault_domain] = count
        # VMs that are moving count at their target.
        moved = {name for each in self.world.operations.values() for name in each.targets} - self.world.vms.keys()
        self.add_vms("name", moved)

    def add_former(self) -> None:
        # Live events never belong to an earlier scope.
        ended = {event.scope for event in self.world.events.values() if not event.status.live}
        self.world.former.update(fleet.Scopes(self._db).former(ended))

    def add_targets(self) -> None:
        world = self.world
        counted = "SELECT hosts.name, count(vms.name) FROM hosts LEFT JOIN vms ON vms.host = hosts.name"
        world.occupancy.update(self._db.rows(f"{counted} WHERE {fleet.TAKES_VMS} GROUP BY hosts.name"))
        world.lost_edges.update(self._db.column("SELECT host FROM edges WHERE lost_since IS NOT NULL"))
        world.awaiting.update(self._db.column(rollouts.AWAITING))
        self.add_hosts(world.occupancy.keys() - world.hosts.keys())
        limited = [name for name in world.occupancy if world.hosts[name].capacity is not None]
        world.used.update(dict.fromkeys(limited, 0))
        world.used.update((host, rows.amount(used) or 0) for host, used in self.rows(fleet.USED_ON, limited))
        self.add_incoming()

    def add_incoming(self) -> None:
        """To the loaded hosts that have a capacity."""
        limited = {name for name, host in self.world.hosts.items() if host.capacity is not None}
        if not limited:
            return
        coming = {name: host for name, host in fleet.moving(self._db).items() if host in limited}
        for name, size in self.rows(fleet.SIZES, coming):
            self.world.incoming[name] = (coming[name], rows.amount(size))

    def missing_operations(self) -> set[str]:
        """Operations of loaded events that are not loaded themselves."""
        return {event.operation for event in self.world.events.values()} - self.world.operations.keys()
