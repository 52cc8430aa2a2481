"""A fleet as a file: TOML or JSON, tables keyed by name."""

from datetime import timedelta
from typing import Annotated, Any, TypeVar

import msgspec

from forenotice import toml
from forenotice.core import errors, membership, windows
from forenotice.core.fleet import (
    MAX_ADDRESSES,
    MAX_BUDGET,
    MAX_LABELS,
    MAX_TAGS,
    MAX_USER_OPERATIONS,
    RENAMED_POLICIES,
    Facts,
    Listening,
    Policy,
    ScopeKind,
)
from forenotice.core.membership import VmSpec
from forenotice.core.reconciliation import FleetSpec, GroupSpec, HostSpec
from forenotice.service import views
from forenotice.service.context import Service

T = TypeVar("T")

Text = Annotated[str, msgspec.Meta(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]
Windows = Annotated[list[Text], msgspec.Meta(max_length=windows.MOST)]


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is misspelt is refused rather than passed over."""


class PolicyTable(Strict):
    listening: Listening = Listening.AUTO
    auto_approve_restart: bool = False
    auto_approve_redeploy: bool = False
    terminate_notice_minutes: Annotated[float, msgspec.Meta(ge=0, le=24 * 60)] | None = None
    max_user_operations: Annotated[int, msgspec.Meta(ge=1, le=MAX_USER_OPERATIONS)] | None = None
    max_unavailable: Annotated[int, msgspec.Meta(ge=1, le=MAX_BUDGET)] | Text | None = None
    min_available: Annotated[int, msgspec.Meta(ge=0, le=MAX_BUDGET)] | None = None
    windows: Windows = []

    def policy(self) -> Policy:
        minutes, most = self.terminate_notice_minutes, self.max_unavailable
        return Policy(
            listening=self.listening,
            auto_approve_restart=self.auto_approve_restart,
            auto_approve_redeploy=self.auto_approve_redeploy,
            terminate_notice=None if minutes is None else timedelta(minutes=minutes),
            max_user_operations=self.max_user_operations,
            max_unavailable=None if most is None else str(most),
            min_available=self.min_available,
            windows=windows.parse_all(self.windows),
        )


class HostTable(Strict):
    cordoned: bool | None = None
    labels: Annotated[dict[Text, Text], msgspec.Meta(max_length=MAX_LABELS)] = {}
    capacity: float | None = None
    address: Text | None = None


class GroupTable(Strict):
    kind: ScopeKind
    policy: PolicyTable = msgspec.field(default_factory=PolicyTable)


class FactsTable(Strict):
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
    tags: Annotated[dict[Text, Text], msgspec.Meta(max_length=MAX_TAGS)] = {}

    def facts(self) -> Facts:
        return Facts(**{name: getattr(self, name) for name in self.__struct_fields__})


class VmTable(Strict):
    host: str
    group: str | None = None
    update_domain: int = 0
    fault_domain: int = 0
    spot: bool = False
    addresses: Annotated[list[Text], msgspec.Meta(max_length=MAX_ADDRESSES)] = []
    vm_id: Text | None = None
    facts: FactsTable = msgspec.field(default_factory=FactsTable)
    policy: PolicyTable | None = None
    """Of a standalone VM."""
    size: float | str | None = None

    def spec(self, name: str) -> VmSpec:
        if isinstance(self.size, str):
            raise errors.RefusedError(
                f"vms.{name}: size is how much of its host's capacity the VM takes, a number such as 4; what guests "
                "see as vmSize is facts.size"
            )
        return VmSpec(
            name=name,
            host=self.host,
            group=self.group,
            update_domain=self.update_domain,
            fault_domain=self.fault_domain,
            spot=self.spot,
            addresses=tuple(self.addresses),
            vm_id=self.vm_id,
            facts=self.facts.facts(),
            size=self.size,
        )


class FleetFile(Strict):
    hosts: dict[str, HostTable] = {}
    groups: dict[str, GroupTable] = {}
    vms: dict[str, VmTable] = {}

    def spec(self) -> FleetSpec:
        for name, vm in self.vms.items():
            if vm.policy is not None and vm.group is not None:
                raise errors.RefusedError(f"vms.{name}: a VM of a group has no policy of its own: give it to the group")
        return FleetSpec(
            hosts={
                name: HostSpec(cordoned=host.cordoned, labels=host.labels, capacity=host.capacity, address=host.address)
                for name, host in self.hosts.items()
            },
            groups={
                name: GroupSpec(kind=group.kind, policy=group.policy.policy()) for name, group in self.groups.items()
            },
            vms={name: vm.spec(name) for name, vm in self.vms.items()},
            policies={name: vm.policy.policy() for name, vm in self.vms.items() if vm.policy is not None},
        )


class Tables(Strict):
    """A file before its tables are read, each under its own name."""

    hosts: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    vms: dict[str, Any] = {}


def parse(data: bytes, file_format: str) -> FleetFile:
    tables = _fitting("", _toml(data) if file_format == "toml" else _json(data), Tables)
    return FleetFile(
        hosts={name: _fitting(f"hosts.{name}", table, HostTable) for name, table in tables.hosts.items()},
        groups={name: _fitting(f"groups.{name}", table, GroupTable) for name, table in tables.groups.items()},
        vms={name: _fitting(f"vms.{name}", table, VmTable) for name, table in tables.vms.items()},
    )


def _toml(data: bytes) -> object:
    return toml.decode(data, "the fleet file").parse()


def _json(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.RefusedError(f"the fleet file is not JSON: {error}") from None


def _fitting(where: str, table: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$")
        place = (where + path.rstrip("`")).lstrip(".")
        if "matching regex" in said:
            said = "holds control characters: leave them out"
        for key, others in RENAMED_POLICIES.items():
            if said == f"Object contains unknown field `{key}`":
                said = f"{key} is not known any more: give {others}"
        named = f"{place}: " if place else ""
        raise errors.RefusedError(f"the fleet file does not fit: {named}{said[:1].lower()}{said[1:]}") from None


def export(service: Service) -> dict[str, Any]:
    """The whole fleet in the form that `apply` takes."""
    with service.store.read() as reader:
        world = reader.worlds.fleet()
    vms = {}
    for name in sorted(world.vms):
        vm = world.vms[name]
        described = views.vm_spec(vm)
        del described["name"]
        if vm.group is None:
            described["policy"] = membership.policy_facts(world.scopes[vm.scope].policy)
        vms[name] = described
    groups = {
        scope.name: {"kind": scope.kind.value, "policy": membership.policy_facts(scope.policy)}
        for _, scope in sorted(world.scopes.items())
        if scope.kind is not ScopeKind.STANDALONE
    }
    hosts = {
        # One that the service cordons later, because it failed, stays so: an open host is not described as such.
        name: {
            field: value
            for field, value in views.host_spec(host).items()
            if value is not None and value is not False and value != {}
        }
        for name, host in sorted(world.hosts.items())
    }
    return {"hosts": hosts, "groups": groups, "vms": vms}
