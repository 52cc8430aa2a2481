"""Where VMs may be: domains of a group never share a host, and nobody is sent to a host without room for it."""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from forenotice.core import ending, errors
from forenotice.core.draft import Draft, names
from forenotice.core.fleet import Vm, amount
from forenotice.core.operations import Operation, Status

MORE_ROUNDS = 3
"""How often those that found no host choose anew, before others."""


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


def taken(draft: Draft, host: str) -> int:
    """Of a host's capacity, in thousandths, by its VMs and those on their way to it; all of them are loaded."""
    coming = [name for _, vms in arriving_at(draft, host) for name in vms]
    return sum(vm.takes for vm in (*draft.vms_on(host), *map(draft.vm, coming)))


def require_room(draft: Draft, newcomers: Iterable[Vm]) -> None:
    """Refuse to place VMs where they do not fit. A host that is too full without any takes nobody, and that is all."""
    for vm in {vm.host: vm for vm in newcomers}.values():
        host = draft.host(vm.host)
        if host.holds is not None and (used := taken(draft, vm.host)) > host.holds:
            raise errors.ConflictError(
                f"host {host.name} has not enough room for {vm.name}: it has a capacity of {host.capacity}, of which "
                f"{amount(used)} would be used; choose another host, or raise its capacity",
                host=host.name,
                vm=vm.name,
                capacity=host.capacity,
                used=amount(used),
            )


def size_in_the_way(draft: Draft, name: str) -> float | None:
    """Of a VM that no host can take: its size, if a host could that has not enough room; else None."""
    vm = draft.vm(name)
    lacks_room = any(
        host != vm.host and draft.targets.fits(vm, host) and not maintenance_of(draft, host)
        for *_, host in draft.targets.fitting(vm)
    )
    return amount(vm.takes) if lacks_room else None


def without_target(vms: Mapping[str, float | None]) -> str:
    """Which VMs no host can take, each with the size that is in the way, and what would help."""
    others = [name for name, size in vms.items() if size is None]
    large = [f"{name} (size {size})" for name, size in vms.items() if size is not None]
    said = []
    if others:
        whose = "its group's" if len(others) == 1 else "their groups'"
        said.append(f"no host can take {names(others)}: add or uncordon one that keeps {whose} domains apart")
    if large:
        help_ = "make room, raise a capacity, or add or uncordon a host"
        said.append(f"no host has enough capacity left for {names(large)}: {help_}")
    return "; ".join(said)


def choose(draft: Draft, operation: Operation, vms: Iterable[str]) -> Mapping[str, str]:
    """A target for each VM that has one: the emptiest host that has room for it and keeps the domains apart.

    One that is being emptied, has maintenance planned or waits for its turn in a rollout comes last: who goes there is
    disturbed twice. What has started and finds none takes one whose own maintenance is only announced: see `make_way`.
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
        chosen = _with_last_resorts(draft, operation, wanted, chosen)
    return {**operation.targets, **chosen}


def _spread(draft: Draft, operation: Operation, wanted: Sequence[Vm]) -> dict[str, str]:
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


def _may_take(draft: Draft, operation: Operation, vm: Vm, host: str, besides: int) -> bool:
    targets = draft.targets
    return host != operation.host and targets.has_room(vm, host, besides) and targets.fits(vm, host)


def _with_last_resorts(
    draft: Draft, operation: Operation, wanted: Sequence[Vm], chosen: Mapping[str, str]
) -> dict[str, str]:
    """Nobody has chosen one of these yet: they are not among the targets."""
    found, taking, reluctant = dict(chosen), Counter[str](), _last_resorts(draft)
    for vm in wanted:
        fitting = (host for host in reluctant if _may_take(draft, operation, vm, host, taking[host]))
        if vm.name not in chosen and (last_resort := next(fitting, None)):
            found[vm.name] = last_resort
            taking[last_resort] += vm.takes
    return found


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
