"""Hosts, VMs, groups and their policies; the fleet as one document, and as a map."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from forenotice.core import fleet, windows
from forenotice.core.fleet import (
    MAX_BUDGET,
    MAX_LABELS,
    MAX_TAGS,
    MAX_USER_OPERATIONS,
    DriftKind,
    Listening,
    ScopeKind,
    VmState,
)
from forenotice.core.membership import VmSpec
from forenotice.validation import pattern
from forenotice.views import base
from forenotice.views.base import Request, Response, Text, example

Count = Annotated[int, Meta(ge=1, le=MAX_USER_OPERATIONS)]
AtLeast = Annotated[int, Meta(ge=0, le=MAX_BUDGET)]
PART = pattern("[1-9][0-9]{0,6}%?", "must be a number, or a part such as 25%")
MaxUnavailable = Annotated[Annotated[int, Meta(ge=1, le=MAX_BUDGET)] | Annotated[str, PART], Meta(examples=["25%"])]
SAME_IN_CORE = ("listening", "auto_approve_restart", "auto_approve_redeploy", "max_user_operations", "min_available")
Inventory = Literal["libvirt"]
HostAddress = Annotated[str, Meta(min_length=1, max_length=256)]
Labels = Annotated[dict[base.Label, base.Label], Meta(max_length=MAX_LABELS)]
Tags = Annotated[dict[Text, Text], Meta(max_length=MAX_TAGS)]


class Drift(Response):
    """How a watched host differs from the fleet, in one VM or domain."""

    host: str
    name: str
    """Of the VM, or of the domain where there is none."""
    kind: DriftKind
    reason: str
    since: datetime


class FoundDrift(Response):
    """By host and name: the first, and whether there is more."""

    items: list[Drift]
    more: bool


class Host(Response):
    name: str
    cordoned: bool
    labels: dict[str, str]
    capacity: float | None
    """What fits on it, in the unit of the VMs' `size`; null: any number of VMs."""
    used: float
    """Of the capacity, by its VMs and those on their way to it."""
    vms: int
    address: str | None
    """Where drivers reach it: a name, an address or a URI."""
    inventory: str | None
    """By what the fleet follows its VMs, at its address; null: the fleet does not."""
    silent_since: datetime | None
    """Since when the process that responds has not been able to list its VMs; null: it is, or there is no inventory."""
    silent_because: str | None
    drift: int
    """In how many VMs it differs from the fleet; `/v1/fleet/drift` tells which."""


class NewHost(Request):
    name: base.Name
    cordoned: bool = False
    labels: Labels = {}
    capacity: base.Amount | None = None
    address: HostAddress | None = None
    inventory: Inventory | None = None


class HostChange(Request):
    """What is left out stays."""

    cordoned: bool | UnsetType = UNSET
    labels: Annotated[dict[base.Label, base.Label | None], Meta(max_length=MAX_LABELS)] | UnsetType = UNSET
    """Labels that are not given stay; null removes one."""
    capacity: base.Amount | UnsetType | None = UNSET
    address: HostAddress | UnsetType | None = UNSET
    """Where drivers reach it; null removes it."""
    inventory: Inventory | UnsetType | None = UNSET
    """By what the fleet follows its VMs, at its address; null: no longer."""


class Policy(Response, forbid_unknown_fields=True):
    """Of a group or a standalone VM."""

    listening: Listening = Listening.AUTO
    auto_approve_restart: bool = False
    auto_approve_redeploy: bool = False
    terminate_notice_minutes: base.Minutes | None = None
    max_user_operations: Count | None = None
    max_unavailable: MaxUnavailable | None = None
    """VMs that planned maintenance may have down at once: a number, or a part such as `25%`."""
    min_available: AtLeast | None = None
    windows: base.Windows = []
    """When planned maintenance may start; empty: always."""
    shutdown_timeout_seconds: base.Seconds = 60
    """How long drivers let a VM shut down before they power it off; 0: they power it off at once."""

    @classmethod
    def of(cls, policy: fleet.Policy) -> "Policy":
        notice, most = policy.terminate_notice, policy.max_unavailable
        return cls(
            **{name: getattr(policy, name) for name in SAME_IN_CORE},
            terminate_notice_minutes=None if notice is None else notice.total_seconds() / 60,
            max_unavailable=int(most) if most and most.isdigit() else most,
            windows=[str(window) for window in policy.windows],
            shutdown_timeout_seconds=int(policy.shutdown_timeout.total_seconds()),
        )

    def policy(self) -> fleet.Policy:
        minutes, most = self.terminate_notice_minutes, self.max_unavailable
        return fleet.Policy(
            **{name: getattr(self, name) for name in SAME_IN_CORE},
            terminate_notice=None if minutes is None else timedelta(minutes=minutes),
            max_unavailable=None if most is None else str(most),
            windows=windows.parse_all(self.windows),
            shutdown_timeout=timedelta(seconds=self.shutdown_timeout_seconds),
        )


class PolicyChange(Request):
    """What is left out stays."""

    listening: Listening | UnsetType = UNSET
    auto_approve_restart: bool | UnsetType = UNSET
    auto_approve_redeploy: bool | UnsetType = UNSET
    terminate_notice_minutes: base.Minutes | UnsetType | None = UNSET
    max_user_operations: Count | UnsetType | None = UNSET
    max_unavailable: MaxUnavailable | UnsetType | None = UNSET
    min_available: AtLeast | UnsetType | None = UNSET
    windows: base.Windows | UnsetType = UNSET
    shutdown_timeout_seconds: base.Seconds | UnsetType = UNSET

    def of(self, policy: fleet.Policy) -> fleet.Policy:
        return msgspec.structs.replace(Policy.of(policy), **self.given()).policy()


class Facts(Response, forbid_unknown_fields=True):
    """What guests see of a VM in `/metadata/instance`."""

    location: Text = ""
    resource_group: Text = ""
    subscription: Text = ""
    size: Text = ""
    os_type: Text = ""
    zone: Text = ""
    eviction_policy: Text = ""
    az_environment: Text = ""
    offer: Text = ""
    sku: Text = ""
    computer_name: Text = ""
    tags: Tags = {}

    @classmethod
    def of(cls, facts: fleet.Facts) -> "Facts":
        return cls(**{name: getattr(facts, name) for name in cls.__struct_fields__})

    def facts(self) -> fleet.Facts:
        return fleet.Facts(**msgspec.structs.asdict(self))


class FactsChange(Request):
    """What is left out stays."""

    location: Text | UnsetType = UNSET
    resource_group: Text | UnsetType = UNSET
    subscription: Text | UnsetType = UNSET
    size: Text | UnsetType = UNSET
    os_type: Text | UnsetType = UNSET
    zone: Text | UnsetType = UNSET
    eviction_policy: Text | UnsetType = UNSET
    az_environment: Text | UnsetType = UNSET
    offer: Text | UnsetType = UNSET
    sku: Text | UnsetType = UNSET
    computer_name: Text | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET


class Vm(Response):
    name: str
    vm_id: str
    host: str
    group: str | None
    scope: str
    update_domain: int
    fault_domain: int
    spot: bool
    addresses: list[str]
    facts: Facts
    size: float | None
    """How much of its host's capacity it takes; null: 1. What guests see as `vmSize` is `facts.size`."""
    policy: Policy | None
    incarnation: int
    listening: bool
    last_heard: datetime | None
    drift: list[Drift]
    """How watched hosts differ from this."""

    @property
    def missing(self) -> bool:
        return any(each.kind is DriftKind.MISSING for each in self.drift)


class AddedVm(Vm):
    warnings: list[str]


class VmWithState(Vm):
    state: VmState


class NewVm(Request):
    name: base.Name
    host: base.Name
    group: base.Name | None = None
    update_domain: base.Domain = 0
    fault_domain: base.Domain = 0
    spot: bool = False
    addresses: base.Addresses = []
    vm_id: Text | None = None
    facts: FactsChange = FactsChange()
    size: base.Amount | None = None

    def spec(self) -> VmSpec:
        facts, addresses = fleet.Facts(**self.facts.given()), tuple(self.addresses)
        return VmSpec(**{**msgspec.structs.asdict(self), "facts": facts, "addresses": addresses})


class VmChange(Request):
    """What is left out stays; of the facts, too."""

    host: base.Name | UnsetType = UNSET
    group: base.Name | UnsetType | None = UNSET
    update_domain: base.Domain | UnsetType = UNSET
    fault_domain: base.Domain | UnsetType = UNSET
    spot: bool | UnsetType = UNSET
    addresses: base.Addresses | UnsetType = UNSET
    vm_id: Text | UnsetType = UNSET
    facts: FactsChange | UnsetType = UNSET
    size: base.Amount | UnsetType | None = UNSET


class Group(Response):
    name: str
    kind: ScopeKind
    policy: Policy
    vms: int
    incarnation: int
    listening: bool
    last_heard: datetime | None


class AddedGroup(Group):
    warnings: list[str]


class NewGroup(Request):
    name: base.Name
    kind: ScopeKind
    policy: PolicyChange = PolicyChange()


class GroupChange(Request):
    policy: PolicyChange


class Values(Response):
    now: Annotated[Any, Meta(description="What the service has.")] = msgspec.field(name="from")
    to: Annotated[Any, Meta(description="What the document says.")]


class Difference(Response):
    action: Literal["add", "change", "remove", "keep"]
    noun: Literal["host", "group", "vm", "policy of vm"]
    name: str
    fields: Annotated[dict[str, Values], Meta(description="Those that differ, of `change` and `keep`.")]


class Applied(Response):
    changes: list[Difference]
    kept: Annotated[
        list[Difference], Meta(description="VMs that run on another host than the document says, and stay there.")
    ]
    applied: bool
    warnings: list[str]


class Compared(Response):
    differences: list[Difference]


class HostTable(Response, forbid_unknown_fields=True):
    """A host in a fleet's document. An exported host leaves out what is not set."""

    cordoned: bool | UnsetType | None = UNSET
    """Without it, a known host stays as it is, and a new one is not cordoned."""
    labels: Annotated[dict[Text, Text], Meta(max_length=MAX_LABELS)] | UnsetType = UNSET
    capacity: float | UnsetType | None = UNSET
    address: Text | UnsetType | None = UNSET
    inventory: Text | UnsetType | None = UNSET

    @classmethod
    def of(cls, host: fleet.Host) -> "HostTable":
        return cls(
            # One that the service cordons later, because it failed, stays so: an open host is not described as such.
            cordoned=host.cordoned or UNSET,
            labels=dict(host.labels) or UNSET,
            capacity=UNSET if host.capacity is None else host.capacity,
            address=host.address or UNSET,
            inventory=host.inventory or UNSET,
        )


class GroupTable(Response, forbid_unknown_fields=True):
    kind: ScopeKind
    policy: Policy = Policy()


class VmTable(Response, forbid_unknown_fields=True):
    vm_id: Text | None = None
    host: str
    group: str | None = None
    update_domain: int = 0
    fault_domain: int = 0
    spot: bool = False
    addresses: base.Addresses = []
    facts: Facts = Facts()
    size: float | str | None = None
    policy: Policy | UnsetType | None = UNSET
    """Of a standalone VM."""

    @classmethod
    def of(cls, vm: fleet.Vm, scope: fleet.Scope) -> "VmTable":
        same = ("vm_id", "host", "group", "update_domain", "fault_domain", "spot", "size")
        return cls(
            **{name: getattr(vm, name) for name in same},
            addresses=list(vm.addresses),
            facts=Facts.of(vm.facts),
            policy=Policy.of(scope.policy) if vm.group is None else UNSET,
        )


class Fleet(Response, forbid_unknown_fields=True):
    """All of the fleet as one document, which `POST /v1/fleet` takes."""

    hosts: dict[str, HostTable] = {}
    groups: dict[str, GroupTable] = {}
    vms: dict[str, VmTable] = {}

    @classmethod
    def of(
        cls, hosts: Mapping[str, fleet.Host], scopes: Mapping[str, fleet.Scope], vms: Mapping[str, fleet.Vm]
    ) -> "Fleet":
        return cls(
            hosts={name: HostTable.of(host) for name, host in sorted(hosts.items())},
            groups={
                scope.name: GroupTable(kind=scope.kind, policy=Policy.of(scope.policy))
                for _, scope in sorted(scopes.items())
                if scope.kind is not ScopeKind.STANDALONE
            },
            vms={name: VmTable.of(vm, scopes[vm.scope]) for name, vm in sorted(vms.items())},
        )


class MappedVm(Response):
    name: str
    state: VmState


class Cell(Response):
    vms: list[MappedVm]
    more: int
    """VMs of the cell that are not listed."""


class MapRow(Response):
    noun: Literal["host", "group", "standalone"]
    name: str
    cordoned: bool = False
    labels: dict[str, str] = {}
    kind: str = ""
    vms: int
    left_out: int
    """VMs that a page cannot hold."""
    cells: list[Cell]
    """By update domain."""


class FleetMap(Response):
    """Hosts or groups by update domain."""

    domains: list[int]
    folded: bool
    """The last column holds all further update domains."""
    rows: list[MapRow]
    states: dict[VmState, int]
    next: str | None


class Found(Response):
    """By a part of a name, a pattern, or a label of hosts."""

    vms: base.Matches[VmWithState]
    groups: base.Matches[Group]
    hosts: base.Matches[Host] | None
    """null: not for this token."""


POLICY = example(
    Policy, terminate_notice_minutes=5, max_unavailable="25%", windows=["mon-fri 22:00-04:00 Europe/Berlin"]
)
TAGS = {"team": "shop"}
FACTS = example(
    Facts,
    location="west",
    resource_group="shop",
    subscription=base.ID,
    size="large",
    os_type="Linux",
    zone="1",
    offer="debian-12",
    sku="12-gen2",
    tags=TAGS,
)
_LISTENS = {"incarnation": 7, "listening": True, "last_heard": base.NOW}
VM = example(Vm, **_LISTENS, name="web-0", vm_id=base.ID, addresses=["10.0.0.4"], facts=FACTS, size=4)
GROUP = example(Group, **_LISTENS, name="web", kind=ScopeKind.AVAILABILITY_SET, policy=POLICY, vms=8)
MOVED = Difference(action="keep", noun="vm", name="web-0", fields={"host": Values(now="rack2-01", to="rack1-01")})
DRIFT = example(
    Drift,
    host="rack1-01",
    name="web-0",
    kind=DriftKind.MISSING,
    reason="host rack1-01 no longer has it, and no other watched host that answers runs it",
    since=base.NOW,
)
example(FoundDrift, items=[DRIFT], more=False)
FLEET = example(
    Fleet,
    hosts={"rack1-01": HostTable(cordoned=False, labels={"rack": "r1"}, capacity=64)},
    groups={"web": GroupTable(kind=ScopeKind.AVAILABILITY_SET)},
    vms={"web-0": VmTable(host="rack1-01", group="web", size=4)},
)
FLEET_AS_TOML = """\
[hosts.rack1-01]
cordoned = false
labels = { rack = "r1" }
capacity = 64

[groups.web]
kind = "availability-set"

[vms.web-0]
host = "rack1-01"
group = "web"
size = 4
"""
_HOST: dict[str, Any] = {
    "name": "rack1-01",
    "labels": {"rack": "r1"},
    "capacity": 64,
    "address": "qemu+ssh://rack1-01/system",
    "inventory": "libvirt",
}
FACTS_SENT = example(FactsChange, location="west", tags=TAGS)
example(AddedVm, **msgspec.structs.asdict(VM))
example(AddedGroup, **msgspec.structs.asdict(GROUP))
example(Host, **_HOST, used=40, vms=12)
example(NewHost, **_HOST)
example(HostChange, cordoned=True, labels={"rack": "r2", "spare": None}, capacity=96)
example(PolicyChange, terminate_notice_minutes=5, max_unavailable="25%")
example(NewGroup, name="web", kind=ScopeKind.AVAILABILITY_SET, policy=PolicyChange(max_unavailable="25%"))
example(GroupChange, policy=PolicyChange(max_unavailable=2))
example(NewVm, name="web-0", host="rack1-01", group="web", addresses=["10.0.0.4"], facts=FACTS_SENT, size=4)
example(VmChange, host="rack1-02", size=8, facts=FactsChange(tags=TAGS))
_ADDED = Difference(action="add", noun="host", name="rack1-01", fields={})
example(Applied, changes=[_ADDED], kept=[MOVED], applied=True)
example(Compared, differences=[msgspec.structs.replace(MOVED, action="change")])
