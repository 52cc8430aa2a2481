"""Hosts that can take a VM, emptiest first: sorted once, so that choosing for many VMs takes linear time."""

from bisect import bisect_left, insort
from collections import Counter
from typing import TYPE_CHECKING

from forenotice.core.fleet import GROUP_PREFIX, Vm, taken_by
from forenotice.core.operations import Operation, Status

if TYPE_CHECKING:
    from forenotice.core.draft import World

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
                self._place(vm, 1)
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
        key = (vm.scope, _domains(vm))
        if key not in self._fitting:
            scope, domains = key
            there = [(self._domains.get((scope, target[2])), target) for target in everything]
            self._fitting[key] = [target for found, target in there if not found or found.keys() == {domains}]
        return self._fitting[key]

    def has_room(self, vm: Vm, host: str, besides: int = 0) -> bool:
        """Whether its capacity allows for one more, and for what else is about to come."""
        holds = self._world.hosts[host].holds
        return holds is None or self._used[host] + besides + vm.takes <= holds

    def fits(self, vm: Vm, host: str) -> bool:
        """Whether all VMs of its group that are on the host, or moving there, have the same domains."""
        there = self._domains.get((vm.scope, host))
        return not there or there.keys() == {_domains(vm)}

    def move(self, before: Vm | None, after: Vm | None) -> None:
        """A VM is now as it is `after`."""
        for vm, by in ((before, -1), (after, 1)):
            if vm is not None:
                self._place(vm, by)
                self._fill(vm.host, by)
                self._used[vm.host] += by * vm.takes
                for host in self._headed.get(vm.name, ()):
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

    def _place(self, vm: Vm, by: int) -> None:
        for host in (vm.host, *self._headed.get(vm.name, ())):
            self._count(vm, host, by)

    def _count(self, vm: Vm | None, host: str, by: int) -> None:
        if vm is None or not vm.scope.startswith(GROUP_PREFIX):
            return
        there, domains = self._domains.setdefault((vm.scope, host), {}), _domains(vm)
        there[domains] = there.get(domains, 0) + by
        if not there[domains]:
            del there[domains]
            self._fitting.clear()


def _domains(vm: Vm) -> Domains:
    return vm.update_domain, vm.fault_domain


def _headed(operation: Operation) -> dict[str, str]:
    """Where VMs are on their way to."""
    if operation.status is not Status.STARTED or not operation.targets:
        return {}
    return {name: host for name, host in operation.targets.items() if name not in operation.done}
