"""Where VMs may be: two update domains of a group never share a host, nor do two fault domains."""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from forenotice.core import ending, errors
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

    One that is being emptied, has maintenance planned or waits for its turn in a rollout comes last: who goes there is
    disturbed twice. What has started and finds none takes one whose own maintenance is only announced: see `make_way`.
    """
    wanted = [draft.vm(name) for name in vms]
    # Each choice makes a host fuller for the next VM.
    targets = draft.targets.fitting(wanted[0]) if len(wanted) == 1 else list(draft.targets.all())
    chosen: dict[str, str] = {}
    for vm in wanted:
        for place, (awaiting, count, host) in enumerate(targets):
            if host != operation.host and draft.targets.fits(vm, host) and not maintenance_of(draft, host):
                chosen[vm.name] = host
                if len(wanted) > 1:
                    del targets[place]
                    insort(targets, (awaiting, count + 1, host))
                break
    if operation.status is Status.STARTED and len(chosen) < len(wanted):
        reluctant = _last_resorts(draft)
        for vm in wanted:
            fitting = (host for host in reluctant if host != operation.host and draft.targets.fits(vm, host))
            if vm.name not in chosen and (last_resort := next(fitting, None)):
                chosen[vm.name] = last_resort
    return {**operation.targets, **chosen}


def make_way(draft: Draft, operation: Operation, hosts: Iterable[str]) -> None:
    """Cancel what is announced of hosts that have to take an operation's VMs: it may itself wait for its end."""
    for host in sorted(set(hosts)):
        for other in maintenance_of(draft, host):
            why = f"host {host} has to take VMs of operation {operation.id}, which no other host can"
            ending.end(draft, replace(other, failures=dict.fromkeys(other.vms, why)), Status.CANCELED)


def maintenance_of(draft: Draft, host: str) -> list[Operation]:
    """Maintenance of the host itself, announced or under way: who came there now would be hit and was not told."""
    told = (each for each in draft.live_operations_on(host) if each.status is not Status.PLANNED)
    return [each for each in told if each.kind.traits.keeps_others_away]


def _last_resorts(draft: Draft) -> list[str]:
    """Of the loaded hosts that take nobody, those whose own maintenance is over since or only announced, in turn."""
    found = []
    for host in draft.world.hosts.values():
        statuses = {each.status for each in maintenance_of(draft, host.name)}
        if statuses <= {Status.SCHEDULED} and host.name not in draft.world.occupancy and not host.cordoned:
            # One that has made way for somebody else in this look needs no other to.
            found.append((bool(statuses), len(draft.vms_on(host.name)), host.name))
    return [name for *_, name in sorted(found)]


def arriving_at(draft: Draft, host: str) -> list[tuple[Operation, list[str]]]:
    """What is moving VMs to a host, and which."""
    found = []
    for operation in draft.world.operations.values():
        names = [name for name, to in operation.targets.items() if to == host and name not in operation.done]
        if names and operation.status is Status.STARTED:
            found.append((operation, names))
    return found


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
