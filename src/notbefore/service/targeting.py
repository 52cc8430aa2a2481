"""Whether some host can take the VMs of operations that are to move them: mostly, a look at a few hosts is enough."""

from collections.abc import Collection
from typing import Any

from notbefore.core import placement
from notbefore.core.draft import Draft, World
from notbefore.core.operations import Status
from notbefore.service.context import Service, new_id
from notbefore.store.contract import Reader

FEW = 10


def with_targets(service: Service, reader: Reader, operations: Collection[str], world: World, **named: Any) -> World:
    """What an explanation of operations needs besides `world`, which was loaded for them and what else is `named`."""
    waiting = [each for key in operations if (each := world.operations[key]).status is Status.SCHEDULED]
    if not any(operation.kind.traits.moves for operation in waiting):
        return world
    _add_a_few(reader, world)
    draft = Draft(world, now=service.clock.now(), timing=service.timing, new_id=new_id)
    for operation in waiting:
        if not placement.choose(draft, operation, operation.vms).keys() >= set(operation.vms):
            return reader.load(operations=operations, targets=True, **named)
    return world


def _add_a_few(reader: Reader, world: World) -> None:
    """Hosts to which nobody is on the way, each with its VMs and what concerns them."""
    expected = {host for operation in world.operations.values() for host in operation.targets.values()}
    few = [host for host in reader.emptier_hosts(FEW) if host not in expected]
    found = reader.load(hosts=few)
    for kind in ("hosts", "vms", "scopes", "operations", "events", "rollouts", "sizes"):
        getattr(world, kind).update(getattr(found, kind))
    world.occupancy.update(dict.fromkeys(few, 0))
    for vm in found.vms.values():
        if vm.host in world.occupancy:
            world.occupancy[vm.host] += 1
