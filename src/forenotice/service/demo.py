"""The small fleet of `serve --demo`."""

from datetime import timedelta

from forenotice.core.fleet import Listening, Policy, ScopeKind
from forenotice.core.membership import VmSpec
from forenotice.core.reconciliation import FleetSpec, GroupSpec, HostSpec
from forenotice.service import fleet
from forenotice.service.calls import SYSTEM
from forenotice.service.context import Service

HEARD = Policy(listening=Listening.ALWAYS)

PLACES = (
    # name, host, group, domain, last number of its address
    ("web-0", "host-a", "web", 0, 10),
    ("web-1", "host-b", "web", 1, 11),
    ("web-2", "host-c", "web", 2, 12),
    ("pool_0", "host-a", "pool", 0, 20),
    ("pool_1", "host-a", "pool", 0, 21),
    ("pool_2", "host-b", "pool", 1, 22),
    ("pool_3", "host-b", "pool", 1, 23),
    ("pool_4", "host-c", "pool", 2, 24),
    ("db", "host-b", None, 0, 30),
    ("batch", "host-c", None, 0, 40),
)

FLEET = FleetSpec(
    hosts={name: HostSpec() for name in ("host-a", "host-b", "host-c", "host-d")},
    groups={
        "web": GroupSpec(kind=ScopeKind.AVAILABILITY_SET, policy=HEARD),
        "pool": GroupSpec(
            kind=ScopeKind.PLACEMENT_GROUP,
            policy=Policy(listening=Listening.ALWAYS, terminate_notice=timedelta(minutes=5)),
        ),
    },
    vms={
        name: VmSpec(
            name=name,
            host=host,
            group=group,
            update_domain=domain,
            fault_domain=domain,
            spot=name == "batch",
            addresses=(f"127.1.0.{number}",),
        )
        for name, host, group, domain, number in PLACES
    },
    policies={"db": HEARD, "batch": HEARD},
)


def settle(service: Service) -> None:
    """Make the fleet on the first start; later it is what its owner made of it."""
    with service.store.read() as reader:
        if reader.list_hosts(None, 1):
            return
    fleet.apply_spec(service, SYSTEM, FLEET, prune=False)
