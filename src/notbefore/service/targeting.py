"""Whether some host can take the VMs of operations that are to move them: mostly, a look at a few hosts is enough."""

from collections.abc import Collection
from typing import Any

from notbefore.core import placement
from notbefore.core.draft import Draft, World
from notbefore.core.operations import Status
from notbefore.service.context import Service, new_id
from notbefore.store.contract import Reader

FEW = 10


def with_targets(service: Service, reader: Reader, operations: Collection[str], world: World, **named: Any) -> Draft:
    """What explains operations: `world`, which was loaded for them and what else is `named`, and where they can go."""

    def draft(world: World) -> Draft:
        return Draft(world, now=service.clock.now(), timing=service.timing, new_id=new_id)

    waiting = [each for key in operations if (each := world.operations[key]).status is Status.SCHEDULED]
    moving = [operation for operation in waiting if operation.kind.traits.moves]
    if moving:
        _add_a_few(reader, world)
    found = draft(world)
    for operation in moving:
        if not placement.choose(found, operation, operation.vms).keys() >= set(operation.vms):
            return draft(reader.load(operations=operations, targets=True, to_explain=True, **named))
    return found


def _add_a_few(reader: Reader, world: World) -> None:
    """Hosts to which nobody is on the way, each with its VMs and what concerns them."""
    expected = {host for operation in world.operations.values() for host in operation.targets.values()}
    few = [host for host in reader.emptier_hosts(FEW) if host not in expected]
    found = reader.load(hosts=few, to_explain=True)
    for kind in ("hosts", "vms", "scopes", "operations", "events", "rollouts", "sizes"):
        getattr(world, kind).update(getattr(found, kind))
    world.occupancy.update(dict.fromkeys(few, 0))
    for vm in found.vms.values():
        if vm.host in world.occupancy:
            world.occupancy[vm.host] += 1
