"""Where VMs may be: domains of a group never share a host, and no VM is moved to a host without room for it."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from forenotice.core import errors
from forenotice.core.fleet import GROUP_PREFIX, Vm, amount, names, taken_by
from forenotice.core.operations import Operation, Status

if TYPE_CHECKING:
    from forenotice.core.draft import Draft, World


MORE_ROUNDS = 3
"""How often VMs that found no host choose again, before the others."""


def require_sound(draft: "Draft", scope: str, changed: Vm | None = None) -> None:
    """Refuse a placement in which domains of one group share a host, or will when those under way arrive.

    `changed` is a VM of the scope as it is to be.
    """
    seen: dict[str, Vm] = {}
    moves = (_headed(draft.operation(event.operation)) for event in draft.started_events_in(scope))
    under_way = {name: host for each in moves for name, host in each.items()}
    # By name, so that a refusal says the same whatever was loaded first.
    ordered = sorted(draft.vms_in(scope), key=lambda vm: vm.name)
    if changed is not None:
        ordered = [*(vm for vm in ordered if vm.name != changed.name), changed]
    places = [(vm, host) for vm in ordered for host in (vm.host, under_way.get(vm.name, vm.host))]
    for vm, host in places:
        other = seen.setdefault(host, vm)
        for noun, mine, theirs in zip(("update", "fault"), vm.domains, other.domains, strict=True):
            if mine != theirs:
                why = (
                    f"{vm.name} ({noun} domain {mine}) and {other.name} ({noun} domain {theirs}) of group {vm.group} "
                    f"cannot share host {host}: put each {noun} domain on hosts of its own"
                )
                raise errors.ConflictError(why, vm=vm.name, other=other.name, host=host)


def taken(draft: "Draft", host: str) -> int:
    """Of a host's capacity, in thousandths, by its VMs and those on their way to it; all of them are loaded."""
    coming = [name for _, vms in arriving_at(draft, host) for name in vms]
    return sum(vm.takes for vm in (*draft.vms_on(host), *map(draft.vm, coming)))


def require_room(draft: "Draft", newcomers: Iterable[Vm]) -> None:
    """Refuse to place VMs where they do not fit. A host that is too full already takes no more, and nothing else.

    They are there already, or it is one that is to come or to grow.
    """
    for vm in {vm.host: vm for vm in newcomers}.values():
        host = draft.host(vm.host)
        known = draft.world.vms.get(vm.name)
        more = vm.takes - (known.takes if known and known.host == vm.host else 0)
        if host.holds is not None and (used := taken(draft, vm.host) + more) > host.holds:
            facts = {"capacity": host.capacity, "used": amount(used)}
            why = (
                f"host {host.name} has not enough room for {vm.name}: it has a capacity of {host.capacity}, of which "
                f"{amount(used)} would be used; choose another host, or raise its capacity"
            )
            raise errors.ConflictError(why, host=host.name, vm=vm.name, **facts)


def size_in_the_way(draft: "Draft", name: str) -> float | None:
    """Of a VM that no host can take: its size, if a host could that has not enough room; else None."""
    vm = draft.vm(name)
    lacks_room = any(
        host != vm.host and draft.targets.fits(vm, host) and not maintenance_of(draft, host)
        for *_, host in draft.targets.fitting(vm)
    )
    return amount(vm.takes) if lacks_room else None


def without_target(draft: "Draft", vms: Mapping[str, float | None]) -> str:
    """Which VMs no host can take, each with the size that is in the way, and what would help."""
    others = [name for name, size in vms.items() if size is None]
    large = [f"{name} (size {size})" for name, size in vms.items() if size is not None]
    sentences = []
    if others:
        whose = "its group's" if len(others) == 1 else "their groups'"
        sentences.append(f"no host can take {names(others)}: add or uncordon one that keeps {whose} domains apart")
    if large:
        help_ = "make room, raise a capacity, or add or uncordon a host"
        sentences.append(f"no host has enough capacity left for {names(large)}: {help_}")
    if lost := len(draft.world.lost_edges):
        sentences.append(f"no VM moves to the {'host' if lost == 1 else f'{lost} hosts'} whose edge is lost")
    return "; ".join(sentences)


def choose(draft: "Draft", operation: Operation, vms: Iterable[str]) -> Mapping[str, str]:
    """A target for each VM that has one: the emptiest host that has room for it and keeps the domains apart.

    One that is being emptied, has maintenance planned or waits in a rollout comes last: a VM that
    goes there is disturbed twice. An operation that has started and finds none takes a host whose own maintenance is
    only announced, which is cancelled then (`driver_calls`).
    """
    # The largest first: what is small finds room in many places.
    wanted = sorted(map(draft.vm, vms), key=lambda vm: -vm.takes)
    chosen = found = _spread(draft, operation, wanted)
    for _ in range(MORE_ROUNDS):
        # Then those that found none, as the domains of their groups leave them few.
        order = sorted(wanted, key=lambda vm: vm.name in found)
        if order == wanted:
            break
        wanted, found = order, _spread(draft, operation, order)
        chosen = max(chosen, found, key=len)
    if operation.status is Status.STARTED and len(chosen) < len(wanted):
        taking, reluctant = Counter[str](), _last_resorts(draft)
        for vm in [vm for vm in wanted if vm.name not in chosen]:
            fitting = (host for host in reluctant if _may_take(draft, operation, vm, host, taking[host]))
            if last_resort := next(fitting, None):
                chosen[vm.name] = last_resort
                taking[last_resort] += vm.takes
    return {**operation.targets, **chosen}


def _spread(draft: "Draft", operation: Operation, wanted: Sequence[Vm]) -> dict[str, str]:
    """For one VM after the other the emptiest host: each choice makes a host fuller for the next."""
    taking: Counter[str] = Counter()
    targets = draft.targets.fitting(wanted[0]) if len(wanted) == 1 else list(draft.targets.all())
    chosen: dict[str, str] = {}
    for vm in wanted:
        for place, (awaiting, count, host) in enumerate(targets):
            if _may_take(draft, operation, vm, host, taking[host]) and not maintenance_of(draft, host):
                chosen[vm.name] = host
                taking[host] += vm.takes
                if len(wanted) > 1:
                    del targets[place]
                    insort(targets, (awaiting, count + 1, host))
                break
    return chosen


def _may_take(draft: "Draft", operation: Operation, vm: Vm, host: str, besides: int) -> bool:
    targets = draft.targets
    return host != operation.host and targets.has_room(vm, host, besides) and targets.fits(vm, host)


def maintenance_of(draft: "Draft", host: str) -> list[Operation]:
    """Maintenance of the host itself, announced or under way. No VM is placed there: its guest was not told."""
    told = (each for each in draft.live_operations_on(host) if each.status is not Status.PLANNED)
    return [each for each in told if each.kind.traits.keeps_others_away]


def _last_resorts(draft: "Draft") -> list[str]:
    """Hosts that take no VMs whose own maintenance is over by now or only announced, in order of preference."""
    found = []
    for host in draft.world.hosts.values():
        statuses = {each.status for each in maintenance_of(draft, host.name)}
        is_other = host.name not in draft.world.occupancy and host.name not in draft.world.lost_edges
        if statuses <= {Status.SCHEDULED} and is_other and not host.cordoned:
            # One that has made way for somebody else in this look needs no other to.
            found.append((bool(statuses), len(draft.vms_on(host.name)), host.name))
    return [name for *_, name in sorted(found)]


def arriving_at(draft: "Draft", host: str) -> list[tuple[Operation, list[str]]]:
    """What is moving VMs to a host, and which."""
    found = (
        (each, [name for name, to in _headed(each).items() if to == host]) for each in draft.world.operations.values()
    )
    return [(operation, moving) for operation, moving in found if moving]


Target = tuple[bool, int, str]
"""Whether it awaits maintenance, how many VMs it has, its name: in order of preference."""
Domains = tuple[int, int]


class Targets:
    """An index of one world; the draft reports every change to it."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._headed: dict[str, list[str]] = {}
        self._more: Counter[str] = Counter()
        """VMs that each host has, or has coming, besides those of the world's occupancy."""
        self._used: Counter[str] = Counter({host: taken_by(used) for host, used in world.used.items()})
        """Of each host's capacity, by VMs that it has or has coming, in thousandths."""
        self._coming: dict[tuple[str, str], int] = {}
        """What each VM on its way takes of the host it goes to, as counted there."""
        self._domains: dict[tuple[str, str], dict[Domains, int]] = {key: {**of} for key, of in world.domains.items()}
        self.forget()
        counted = {scope for scope, _ in world.domains}
        for vm in world.vms.values():
            if vm.scope not in counted:
                self._count(vm, vm.host, 1)
            if vm.host not in world.used:
                self._used[vm.host] += vm.takes
        for operation in world.operations.values():
            self.head(None, operation)
        for name, (host, size) in world.incoming.items():
            if name not in self._headed:
                self._used[host] += taken_by(size)

    def forget(self) -> None:
        """Drop the sorted lists, because hosts have changed."""
        self._occupancy = self._world.occupancy
        self._ordered: list[Target] | None = None
        self._fitting: dict[tuple[str, Domains], list[Target]] = {}

    def all(self) -> list[Target]:
        if self._occupancy is not self._world.occupancy:
            self.forget()
        if self._ordered is None:
            self._ordered = sorted(
                (host in self._world.awaiting, count + self._more[host], host)
                for host, count in self._occupancy.items()
                if not self._world.hosts[host].cordoned
            )
        return self._ordered

    def fitting(self, vm: Vm) -> list[Target]:
        """Those that keep the domains of its group apart; the list may be stale, so check each with `fits`."""
        everything = self.all()
        if vm.group is None:
            return everything
        key = (vm.scope, vm.domains)
        if key not in self._fitting:
            self._fitting[key] = [target for target in everything if self.fits(vm, target[2])]
        return self._fitting[key]

    def has_room(self, vm: Vm, host: str, besides: int = 0) -> bool:
        """Whether its capacity allows for one more, and for what else is about to come."""
        holds = self._world.hosts[host].holds
        return holds is None or self._used[host] + besides + vm.takes <= holds

    def fits(self, vm: Vm, host: str) -> bool:
        """Whether all VMs of its group that are on the host, or moving there, have the same domains."""
        there = self._domains.get((vm.scope, host))
        return not there or there.keys() == {vm.domains}

    def move(self, before: Vm | None, after: Vm | None) -> None:
        """A VM is now as it is `after`."""
        for vm, by in ((before, -1), (after, 1)):
            if vm is not None:
                self._count(vm, vm.host, by)
                self._fill(vm.host, by)
                self._used[vm.host] += by * vm.takes
                for host in self._headed.get(vm.name, ()):
                    self._count(vm, host, by)
                    self._come(vm.name, host, vm.takes if by > 0 else 0)

    def head(self, before: Operation | None, after: Operation) -> None:
        """Account for the targets that an operation has chosen or no longer has."""
        was, now = {} if before is None else _headed(before), _headed(after)
        for name, host in was.items() - now.items():
            self._headed[name].remove(host)
            self._fill(host, -1)
            self._count(self._world.vms.get(name), host, -1)
            self._come(name, host, 0)
        for name, host in now.items() - was.items():
            self._headed.setdefault(name, []).append(host)
            self._fill(host, 1)
            vm = self._world.vms.get(name)
            self._count(vm, host, 1)
            self._come(name, host, vm.takes if vm else taken_by(self._world.incoming.get(name, ("", 0))[1]))

    def _come(self, name: str, host: str, takes: int) -> None:
        self._used[host] += takes - self._coming.pop((name, host), 0)
        self._coming[name, host] = takes

    def _fill(self, host: str, by: int) -> None:
        """The next choice sees the host as full as it will be."""
        awaiting, count = host in self._world.awaiting, self._occupancy.get(host, 0) + self._more[host]
        self._more[host] += by
        for order in (self._ordered or [], *self._fitting.values()):
            place = bisect_left(order, (awaiting, count, host))
            if place < len(order) and order[place][2] == host:
                del order[place]
                insort(order, (awaiting, count + by, host))

    def _count(self, vm: Vm | None, host: str, by: int) -> None:
        if vm is None or not vm.scope.startswith(GROUP_PREFIX):
            return
        there, domains = self._domains.setdefault((vm.scope, host), {}), vm.domains
        there[domains] = there.get(domains, 0) + by
        if not there[domains]:
            del there[domains]
            self._fitting.clear()


def _headed(operation: Operation) -> dict[str, str]:
    """Where VMs are on their way to."""
    if operation.status is not Status.STARTED or not operation.targets:
        return {}
    return {name: host for name, host in operation.targets.items() if name not in operation.done}
