"""A fleet as a file: TOML or JSON, tables keyed by name."""

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from forenotice import toml, validation
from forenotice.core import errors
from forenotice.core.fleet import ScopeKind
from forenotice.core.membership import SETTABLE, VmSpec
from forenotice.core.reconciliation import FleetSpec, GroupSpec, HostSpec
from forenotice.service import views
from forenotice.service.service import Service
from forenotice.views.base import Request
from forenotice.views.fleet import Facts, Fleet, GroupTable, HostTable, Policy, VmTable

T = TypeVar("T")


class _Tables(Request):
    """A file before its tables are read, each under its own name."""

    hosts: dict[str, Any] = msgspec.field(default_factory=dict)
    groups: dict[str, Any] = msgspec.field(default_factory=dict)
    vms: dict[str, Any] = msgspec.field(default_factory=dict)


def parse(data: bytes, file_format: str) -> Fleet:
    tables = _fitting("", _toml(data) if file_format == "toml" else _json(data), _Tables)
    return Fleet(
        hosts={name: _fitting(f"hosts.{name}", table, HostTable) for name, table in tables.hosts.items()},
        groups={name: _fitting(f"groups.{name}", table, GroupTable) for name, table in tables.groups.items()},
        vms={name: _fitting(f"vms.{name}", table, VmTable) for name, table in tables.vms.items()},
    )


def spec(fleet: Fleet) -> FleetSpec:
    """As core takes it."""
    for name, vm in fleet.vms.items():
        if isinstance(vm.policy, Policy) and vm.group is not None:
            raise errors.RefusedError(f"vms.{name}: a VM of a group has no policy of its own: give it to the group")
    return FleetSpec(
        hosts={
            name: HostSpec(
                cordoned=None if host.cordoned is UNSET else host.cordoned,
                labels={} if host.labels is UNSET else host.labels,
                capacity=None if host.capacity is UNSET else host.capacity,
                address=None if host.address is UNSET else host.address,
            )
            for name, host in fleet.hosts.items()
        },
        groups={name: GroupSpec(kind=group.kind, policy=group.policy.policy()) for name, group in fleet.groups.items()},
        vms={name: _vm(name, vm) for name, vm in fleet.vms.items()},
        policies={name: vm.policy.policy() for name, vm in fleet.vms.items() if isinstance(vm.policy, Policy)},
    )


def _vm(name: str, vm: VmTable) -> VmSpec:
    if isinstance(vm.size, str):
        raise errors.RefusedError(
            f"vms.{name}: size is how much of its host's capacity the VM takes, a number such as 4; what guests "
            "see as vmSize is facts.size"
        )
    given = {field: getattr(vm, field) for field in SETTABLE}
    return VmSpec(**{**given, "name": name, "addresses": tuple(vm.addresses), "facts": vm.facts.facts()})


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
        raise errors.RefusedError(
            f"the fleet file does not fit: {validation.sentence(error, kind, where or 'the file')}"
        ) from None


def export(service: Service) -> Fleet:
    """The whole fleet in the form that `apply` takes."""
    with service.store.read() as reader:
        world = reader.worlds.fleet()
    return Fleet(
        hosts={
            # One that the service cordons later, because it failed, stays so: an open host is not described as such.
            name: HostTable(
                cordoned=host.cordoned or UNSET,
                labels=dict(host.labels) or UNSET,
                capacity=UNSET if host.capacity is None else host.capacity,
                address=host.address or UNSET,
            )
            for name, host in sorted(world.hosts.items())
        },
        groups={
            scope.name: GroupTable(kind=scope.kind, policy=Policy.of(scope.policy))
            for _, scope in sorted(world.scopes.items())
            if scope.kind is not ScopeKind.STANDALONE
        },
        vms={
            name: views.of(
                VmTable,
                vm,
                facts=Facts.of(vm.facts),
                policy=Policy.of(world.scopes[vm.scope].policy) if vm.group is None else UNSET,
            )
            for name, vm in sorted(world.vms.items())
        },
    )
