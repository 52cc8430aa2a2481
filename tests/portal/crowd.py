"""A fleet of many groups, for pages with much on them."""

from forenotice.core.fleet import Listening, Policy, ScopeKind
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.core.reconciliation import FleetSpec, GroupSpec, HostSpec
from forenotice.service import calls, fleet, maintenance
from forenotice.service.service import Service

HEARD = Policy(listening=Listening.ALWAYS, max_user_operations=100)
HOSTS = 10
KINDS = (Kind.RESTART, Kind.RESTART, Kind.REDEPLOY)


def settle(service: Service, groups: int, size: int = 1) -> list[str]:
    """Groups g-00, g-01 and so on, of VMs that are named after them; gives these."""
    vms = [f"g-{group:02}-{place}" for group in range(groups) for place in range(size)]
    spec = FleetSpec(
        hosts={f"host-{number}": HostSpec() for number in range(HOSTS)},
        groups={f"g-{group:02}": GroupSpec(kind=ScopeKind.AVAILABILITY_SET, policy=HEARD) for group in range(groups)},
        vms={
            name: VmSpec(
                name=name,
                host=f"host-{number % HOSTS}",
                group=name.rpartition("-")[0],
                addresses=(f"127.2.{number // 200}.{number % 200 + 1}",),
            )
            for number, name in enumerate(vms)
        },
    )
    fleet.apply_spec(service, calls.SYSTEM, spec, prune=False)
    return vms


def announce(service: Service, vms: list[str]) -> list[str]:
    """One event of each, of different kinds; gives their ids."""
    made = []
    for place, kind in enumerate(KINDS):
        operations = maintenance.schedule(service, calls.SYSTEM, kind=kind, names=vms[place :: len(KINDS)])
        made += [event.id for operation in operations.operations for event in operation.events]
    assert len(made) == len(vms)
    return made
