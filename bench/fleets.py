"""Fleets to measure on, made by the service itself in data directories of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forenotice.core.fleet import Listening, Policy, ScopeKind
from forenotice.core.membership import VmSpec
from forenotice.core.reconciliation import FleetSpec, GroupSpec, HostSpec
from forenotice.core.timing import Timing
from forenotice.publication import NullPublisher
from forenotice.runtime import Runtime
from forenotice.service import fleet
from forenotice.service.calls import SYSTEM
from forenotice.service.service import Service
from forenotice.store.opener import open_store

ASKING = Policy(listening=Listening.ALWAYS)
"""Every scope is asked for its approval."""

PER_HOST = 50
PER_SCOPE = 5


def database(data: Path) -> Path:
    return data / "forenotice.db"


@contextmanager
def service(data: Path, url: str | None = None) -> Iterator[Service]:
    """The service on a data directory, or on a database, that nobody serves."""
    data.mkdir(exist_ok=True)
    store = open_store(url or f"sqlite:///{database(data)}", migrate=True)
    try:
        yield Service(store=store, runtime=Runtime(), timing=Timing(), publisher=NullPublisher(), allows_loopback=True)
    finally:
        store.close()


def make(data: Path, spec: FleetSpec) -> None:
    with service(data) as made:
        fleet.apply_spec(made, SYSTEM, spec, prune=False)


def address(number: int) -> str:
    """Of the VM with that number, in 127.16.0.0/12."""
    return f"127.{16 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def small() -> FleetSpec:
    """One scope of five VMs on five hosts; the first is whoever calls from 127.0.0.1."""
    spec = groups(PER_SCOPE)
    vms = dict(spec.vms)
    vms["vm-0"] = VmSpec(name="vm-0", host="host-0", group="group-0", addresses=("127.0.0.1",))
    return FleetSpec(hosts=spec.hosts, groups=spec.groups, vms=vms)


def groups(vms: int, policy: Policy = ASKING) -> FleetSpec:
    """Availability sets of five VMs, each on a host and in an update domain of its own; up to fifty VMs on a host."""
    blocks = -(-vms // (PER_HOST * PER_SCOPE))
    places = []
    for number in range(vms):
        group, domain = divmod(number, PER_SCOPE)
        places.append((number, group, domain, (group % blocks) * PER_SCOPE + domain))
    return FleetSpec(
        hosts={f"host-{host}": HostSpec() for *_, host in places},
        groups={f"group-{group}": GroupSpec(kind=ScopeKind.AVAILABILITY_SET, policy=policy) for _, group, *_ in places},
        vms={
            f"vm-{number}": VmSpec(
                name=f"vm-{number}",
                host=f"host-{host}",
                group=f"group-{group}",
                update_domain=domain,
                fault_domain=domain,
                addresses=(address(number),),
            )
            for number, group, domain, host in places
        },
    )


def one_group(vms: int) -> FleetSpec:
    """All VMs in one scope and one update domain."""
    return FleetSpec(
        hosts={f"host-{host}": HostSpec() for host in range(-(-vms // PER_HOST))},
        groups={"group": GroupSpec(kind=ScopeKind.PLACEMENT_GROUP, policy=ASKING)},
        vms={
            f"vm-{number}": VmSpec(
                name=f"vm-{number}", host=f"host-{number // PER_HOST}", group="group", addresses=(address(number),)
            )
            for number in range(vms)
        },
    )


def wide_group(names: int) -> FleetSpec:
    """One scope with five VMs for each name on two hosts for each, in five update domains."""
    hosts = names * 2
    return FleetSpec(
        hosts={f"host-{host}": HostSpec() for host in range(hosts)},
        groups={"group": GroupSpec(kind=ScopeKind.PLACEMENT_GROUP, policy=ASKING)},
        vms={
            f"vm-{number}": VmSpec(
                name=f"vm-{number}",
                host=f"host-{number % hosts}",
                group="group",
                update_domain=number % hosts % PER_SCOPE,
                fault_domain=number % hosts % PER_SCOPE,
                addresses=(address(number),),
            )
            for number in range(names * PER_SCOPE)
        },
    )


def standalone(vms: int, per_host: int) -> FleetSpec:
    """Each VM is a scope of its own."""
    return FleetSpec(
        hosts={f"host-{host}": HostSpec() for host in range(-(-vms // per_host))},
        vms={
            f"vm-{number}": VmSpec(name=f"vm-{number}", host=f"host-{number // per_host}", addresses=(address(number),))
            for number in range(vms)
        },
        policies={f"vm-{number}": ASKING for number in range(vms)},
    )
