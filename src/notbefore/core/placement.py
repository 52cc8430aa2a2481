"""Where VMs may be: two update domains of a group never share a host, nor do two fault domains."""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping

from notbefore.core import errors
from notbefore.core.draft import Draft
from notbefore.core.fleet import Vm
from notbefore.core.operations import Operation


def require_sound(draft: Draft, scope: str) -> None:
    """Refuse a placement in which domains of one group share a host, or will when those under way arrive."""
    seen: dict[str, Vm] = {}
    for vm, host in _places(draft.vms_in(scope), _under_way(draft, scope)):
        other = seen.setdefault(host, vm)
        for noun, mine, theirs in (
            ("update", vm.update_domain, other.update_domain),
            ("fault", vm.fault_domain, other.fault_domain),
        ):
            if mine != theirs:
                raise errors.ConflictError(
                    f"{vm.name} ({noun} domain {mine}) and {other.name} ({noun} domain {theirs}) of group {vm.group} "
                    f"cannot share host {host}: put each {noun} domain on hosts of its own",
                    vm=vm.name,
                    other=other.name,
                    host=host,
                )


def choose(draft: Draft, operation: Operation, vms: Iterable[str]) -> Mapping[str, str]:
    """A target for each VM that has one: the emptiest host that is not cordoned and keeps the domains apart."""
    candidates = sorted(
        (count, host)
        for host, count in draft.world.occupancy.items()
        if host != operation.host and not draft.host(host).cordoned
    )
    chosen: dict[str, str] = {}
    for name in vms:
        vm = draft.vm(name)
        taken = _domains_by_host(draft, vm)
        for place, (count, host) in enumerate(candidates):
            if taken.get(host, _domains(vm)) == _domains(vm):
                chosen[name] = host
                del candidates[place]
                insort(candidates, (count + 1, host))
                break
    return {**operation.targets, **chosen}


def _domains(vm: Vm) -> tuple[int, int]:
    return vm.update_domain, vm.fault_domain


def _domains_by_host(draft: Draft, vm: Vm) -> dict[str, tuple[int, int]]:
    """Which domains of the VM's group are on which hosts, or on their way there."""
    if vm.group is None:
        return {}
    others = [other for other in draft.vms_in(vm.scope) if other.name != vm.name]
    return {host: _domains(other) for other, host in _places(others, _under_way(draft, vm.scope))}


def _under_way(draft: Draft, scope: str) -> dict[str, str]:
    """Where VMs that the scope was told of are being moved."""
    operations = [draft.operation(event.operation) for event in draft.live_events_in(scope)]
    return {name: host for each in operations for name, host in each.targets.items() if name not in each.done}


def _places(vms: Iterable[Vm], under_way: Mapping[str, str]) -> Iterator[tuple[Vm, str]]:
    """Each VM with the host it is on, and with the one it is on its way to."""
    for vm in vms:
        yield vm, vm.host
        if vm.name in under_way:
            yield vm, under_way[vm.name]
