"""Where VMs may be: two update domains of a group never share a host, nor do two fault domains."""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping

from forenotice.core import errors
from forenotice.core.draft import Draft
from forenotice.core.fleet import Vm
from forenotice.core.operations import Operation, Status


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
    """A target for each VM that has one: the emptiest host that may take it and keeps the domains apart.

    One that is being emptied, or waits for its turn in a rollout, comes last: who goes there is disturbed twice.
    """
    candidates = sorted(
        (host in draft.world.awaiting, count, host)
        for host, count in draft.world.occupancy.items()
        if host != operation.host and not draft.host(host).cordoned
    )
    chosen: dict[str, str] = {}
    for name in vms:
        vm = draft.vm(name)
        arriving = _arriving(draft, vm.scope) if vm.group else []
        for place, (awaiting, count, host) in enumerate(candidates):
            if vm.group is None or _fits(draft, vm, host, arriving):
                chosen[name] = host
                del candidates[place]
                insort(candidates, (awaiting, count + 1, host))
                break
    return {**operation.targets, **chosen}


def maintenance_of(draft: Draft, host: str) -> Operation | None:
    """Maintenance of the host itself, announced or under way: who came there now would be hit and was not told."""
    return next((each for each in draft.live_operations_on(host) if each.kind.traits.keeps_others_away), None)


def arriving_at(draft: Draft, host: str) -> list[tuple[Operation, list[str]]]:
    """What is moving VMs to a host, and which."""
    found = []
    for operation in draft.world.operations.values():
        names = [name for name, to in operation.targets.items() if to == host and name not in operation.done]
        if names and operation.status is Status.STARTED:
            found.append((operation, names))
    return found


def _domains(vm: Vm) -> tuple[int, int]:
    return vm.update_domain, vm.fault_domain


def _fits(draft: Draft, vm: Vm, host: str, arriving: list[tuple[Vm, str]]) -> bool:
    """Whether whoever of the VM's group is on a host, or on the way there, is of the same domains."""
    there = draft.vms_on(host) + [arriving_vm for arriving_vm, to in arriving if to == host]
    mine = _domains(vm)
    return all(_domains(other) == mine for other in there if other.scope == vm.scope and other.name != vm.name)


def _arriving(draft: Draft, scope: str) -> list[tuple[Vm, str]]:
    known = draft.world.vms
    return [(known[name], host) for name, host in _under_way(draft, scope).items() if name in known]


def _under_way(draft: Draft, scope: str) -> dict[str, str]:
    """Where VMs that the scope was told of are being moved."""
    operations = [draft.operation(event.operation) for event in draft.started_events_in(scope)]
    return {name: host for each in operations for name, host in each.targets.items() if name not in each.done}


def _places(vms: Iterable[Vm], under_way: Mapping[str, str]) -> Iterator[tuple[Vm, str]]:
    """Each VM with the host it is on, and with the one it is on its way to."""
    for vm in vms:
        yield vm, vm.host
        if vm.name in under_way:
            yield vm, under_way[vm.name]
