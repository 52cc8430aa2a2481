"""Whether some host can take the VMs of operations that are to move them: mostly, a look at a few hosts is enough."""

from collections.abc import Collection

from forenotice.core import driver_calls, placement
from forenotice.core.draft import Draft, World
from forenotice.core.operations import Operation, Status
from forenotice.service.context import Service, new_id
from forenotice.store.transaction import Reader

FEW = 10


def with_targets(service: Service, reader: Reader, operations: Collection[str], world: World) -> Draft:
    """What explains operations: `world`, which was loaded for them, and where they can go."""

    def draft() -> Draft:
        return Draft(world, now=service.clock.now(), timing=service.timing, new_id=new_id)

    moving = [each for key in operations if (each := world.operations[key]).kind.traits.moves and _wants_a_host(each)]
    if moving:
        _add_a_few(reader, world)
    found = draft()
    for operation in moving:
        if not placement.choose(found, operation, operation.vms).keys() >= set(operation.vms):
            _add(world, reader.load_targets({world.vms[name].scope for each in moving for name in each.vms}))
            return draft()
    return found


def _wants_a_host(operation: Operation) -> bool:
    return operation.status is Status.SCHEDULED or driver_calls.waits_for_a_host(operation)


def _add_a_few(reader: Reader, world: World) -> None:
    """Hosts, each with its VMs, and whoever is on the way to any."""
    few = reader.emptier_hosts(FEW)
    arriving = {name for operation in world.operations.values() for name in operation.targets}
    found = reader.load_hosts(few, arriving)
    found.occupancy.update(dict.fromkeys(few, 0))
    for vm in found.vms.values():
        if vm.host in found.occupancy:
            found.occupancy[vm.host] += 1
    _add(world, found)


def _add(world: World, more: World) -> None:
    for kind in ("hosts", "vms", "occupancy", "awaiting", "used", "incoming"):
        getattr(world, kind).update(getattr(more, kind))
