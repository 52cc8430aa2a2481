"""Operators' commands about hosts, groups and VMs, and the fleet as a file: TOML or JSON, tables keyed by name."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from forenotice import toml, validation
from forenotice.core import errors, fleet, membership, reconciliation
from forenotice.core.draft import Draft
from forenotice.core.fleet import Facts, Host, Policy
from forenotice.core.membership import SETTABLE, VmSpec
from forenotice.core.reconciliation import Difference, FleetSpec, GroupSpec, HostSpec
from forenotice.service import views
from forenotice.service.calls import Call, command
from forenotice.service.service import Service, UnitOfWork
from forenotice.views import fleet as shown
from forenotice.views.base import Removed, Request

T = TypeVar("T")


def add_host(service: Service, call: Call, asked: shown.NewHost) -> shown.Host:
    def work(unit: UnitOfWork) -> shown.Host:
        draft = unit.load(call, hosts=[asked.name])
        host = membership.add_host(draft, Host(**asked.given()))
        unit.keep(draft)
        return views.host(host, 0, 0)

    return command(service, call, shown.Host, work)


def set_host(service: Service, call: Call, name: str, asked: shown.HostChange) -> shown.Host:
    """Labels that are not given stay; one that is None is removed."""
    changes = asked.given()

    def work(unit: UnitOfWork) -> shown.Host:
        draft = _with_host(unit, call, name)
        before = draft.host(name)
        labels = {**before.labels, **changes.get("labels", {})}
        known = {key: value for key, value in labels.items() if value is not None}
        membership.set_host(draft, replace(before, **{**changes, "labels": known}))
        unit.keep(draft)
        drift = unit.transaction.drift.counts([name])
        # Nobody has asked it at another address yet.
        silent = service.silent.get(name) if draft.host(name).address == before.address else None
        return views.loaded_host(draft, name, drift.get(name, 0), silent)

    return command(service, call, shown.Host, work, asked="host.change", host=name)


def remove_host(service: Service, call: Call, name: str) -> Removed:
    def work(unit: UnitOfWork) -> Removed:
        draft = _with_host(unit, call, name)
        membership.remove_host(draft, name)
        unit.keep(draft)
        return Removed(removed=name)

    return command(service, call, Removed, work)


def forget_edge(service: Service, call: Call, host: str) -> Removed:
    """One that still runs is known again with its next beat."""

    def work(unit: UnitOfWork) -> Removed:
        if not unit.transaction.edges.of([host]):
            raise errors.NotFoundError(f"host {host!r} has no edge", edge=host)
        unit.transaction.edges.forget(host)
        draft = unit.load(call)
        draft.note("edge.forgotten", host=host)
        # What was held for its sake, or because nobody could move to its host, may start.
        draft.make_room()
        unit.keep(draft)
        return Removed(removed=host)

    return command(service, call, Removed, work)


def _with_host(unit: UnitOfWork, call: Call, name: str) -> Draft:
    return unit.load(call, hosts=[name], operations=unit.transaction.operations.moving_to(name))


def add_group(service: Service, call: Call, asked: shown.NewGroup) -> shown.AddedGroup:
    def work(unit: UnitOfWork) -> shown.AddedGroup:
        draft = unit.load(call, scopes=[fleet.group_key(asked.name)])
        scope = membership.add_group(draft, asked.name, asked.kind, asked.policy.of(Policy()))
        unit.keep(draft)
        group = views.group(scope, 0, unit.now, service.timing)
        return shown.AddedGroup(**msgspec.structs.asdict(group), warnings=_warnings(unit, [scope.key]))

    return command(service, call, shown.AddedGroup, work)


def remove_group(service: Service, call: Call, name: str) -> Removed:
    def work(unit: UnitOfWork) -> Removed:
        draft = unit.load(call, scopes=[fleet.group_key(name)], members=True)
        membership.remove_group(draft, name)
        unit.keep(draft)
        return Removed(removed=name)

    return command(service, call, Removed, work)


def set_group(service: Service, call: Call, name: str, policy: shown.PolicyChange) -> shown.Group:
    key = fleet.group_key(name)

    def work(unit: UnitOfWork) -> shown.Group:
        draft = unit.load(call, scopes=[key], members=True)
        scope = membership.set_policy(draft, key, policy.of(draft.scope(key).policy))
        unit.keep(draft)
        return views.group(scope, len(draft.vms_in(key)), unit.now, service.timing)

    return command(service, call, shown.Group, work, asked="group.change", scope=key)


def set_policy(service: Service, call: Call, key: str, policy: shown.PolicyChange) -> shown.Policy:
    """Of a group (`group:web`) or a standalone VM (`vm:db`)."""
    noun, _, name = key.partition(":")
    standalone = noun == "vm"

    def work(unit: UnitOfWork) -> shown.Policy:
        draft = unit.load(call, vms=[name] if standalone else [], scopes=[key])
        if standalone and (group := draft.vm(name).group):
            raise errors.ConflictError(
                f"VM {name} goes by the policy of its group: change that of group {group}", vm=name, group=group
            )
        scope = membership.set_policy(draft, key, policy.of(draft.scope(key).policy))
        unit.keep(draft)
        return shown.Policy.of(scope.policy)

    about = {"vm": name} if standalone else {"scope": key}
    return command(service, call, shown.Policy, work, asked="policy.change", about=about)


def add_vm(service: Service, call: Call, spec: VmSpec) -> shown.AddedVm:
    def work(unit: UnitOfWork) -> shown.AddedVm:
        draft = _with_vm(unit, call, spec.name, {field: getattr(spec, field) for field in SETTABLE})
        vm = membership.add_vm(draft, spec)
        unit.keep(draft)
        view = views.vm(vm, draft.scope(vm.scope), unit.now, service.timing)
        return shown.AddedVm(**msgspec.structs.asdict(view), warnings=_warnings(unit, [] if vm.group else [vm.scope]))

    return command(service, call, shown.AddedVm, work)


def set_vm(service: Service, call: Call, name: str, asked: shown.VmChange) -> shown.Vm:
    changes = asked.given()
    if "addresses" in changes:
        changes["addresses"] = tuple(changes["addresses"])

    def work(unit: UnitOfWork) -> shown.Vm:
        draft = _with_vm(unit, call, name, changes)
        facts = {"facts": replace(draft.vm(name).facts, **asked.facts.given())} if asked.facts is not UNSET else {}
        vm = membership.set_vm(draft, name, {**changes, **facts})
        unit.keep(draft)
        drift = unit.transaction.drift.of_vms([name])
        return views.vm(vm, draft.scope(vm.scope), unit.now, service.timing, drift.get(name, ()))

    return command(service, call, shown.Vm, work, asked="vm.change", vm=name)


def _with_vm(unit: UnitOfWork, call: Call, name: str, changes: Mapping[str, Any]) -> Draft:
    """A VM with where it goes, and whoever has its identities."""
    host, group, vm_id = (changes.get(field) for field in ("host", "group", "vm_id"))
    # Only looked up: whether a VM may have them is core's to say.
    addresses = [fleet.require_syntax(address) for address in changes.get("addresses", ())]
    return unit.load(
        call,
        vms=[name],
        hosts=[host] if host else [],
        operations=unit.transaction.operations.moving_to(host) if host else [],
        scopes=[fleet.standalone_key(name), *([fleet.group_key(group)] if group else [])],
        addresses=[*addresses, *([vm_id.lower()] if vm_id else [])],
        members=True,
    )


def remove_vm(service: Service, call: Call, name: str) -> Removed:
    def work(unit: UnitOfWork) -> Removed:
        draft = unit.load(call, vms=[name])
        membership.remove_vm(draft, name)
        unit.keep(draft)
        return Removed(removed=name)

    return command(service, call, Removed, work)


def apply(
    service: Service, call: Call, document: shown.Fleet, *, prune: bool, dry_run: bool, move: bool = False
) -> shown.Applied:
    return apply_spec(service, call, _spec(document), prune=prune, move=move, dry_run=dry_run)


def apply_spec(
    service: Service, call: Call, spec: FleetSpec, *, prune: bool, move: bool = False, dry_run: bool = False
) -> shown.Applied:
    def work(unit: UnitOfWork) -> shown.Applied:
        draft = unit.draft(unit.transaction.worlds.fleet(), call)
        differences = reconciliation.reconcile(draft, spec, prune=prune, move=move)
        if not dry_run:
            unit.keep(draft)
        added = [each for each in differences if each.action == "add"]
        groups = [fleet.group_key(each.name) for each in added if each.noun == "group"]
        standalone = [vm.scope for each in added if each.noun == "vm" and not (vm := draft.vm(each.name)).group]
        return shown.Applied(
            changes=[_difference(each) for each in differences if each.action != "keep"],
            kept=[_difference(each) for each in differences if each.action == "keep"],
            applied=not dry_run,
            warnings=_warnings(unit, [*groups, *standalone]),
        )

    return command(service, call, shown.Applied, work, asked="fleet.apply", only_looks=dry_run)


def diff(service: Service, document: shown.Fleet) -> shown.Compared:
    """What applying a file would change with `prune` and `move`, if nothing stood in the way."""
    with service.store.read() as reader:
        world = reader.worlds.fleet()
    return shown.Compared(differences=[_difference(each) for each in reconciliation.compare(world, _spec(document))])


def _difference(each: Difference) -> shown.Difference:
    fields = {name: shown.Values(now=_plain(before), to=_plain(after)) for name, (before, after) in each.fields.items()}
    return shown.Difference(action=each.action, noun=each.noun, name=each.name, fields=fields)  # type: ignore[arg-type]


def _plain(value: object) -> object:
    return msgspec.to_builtins(shown.Facts.of(value)) if isinstance(value, Facts) else views.plain(value)


def _warnings(unit: UnitOfWork, added: Collection[str]) -> list[str]:
    """For each added scope whose name was used before: it inherits nothing."""
    return [
        f"{key} was used before, until {former.ended_at:%Y-%m-%d %H:%M:%S} UTC: the old history is shown only to those "
        f"who see all scopes, and older tokens that name {key} do not match the new one"
        for key, former in sorted(unit.transaction.scopes.former(added).items())
    ]


class _Tables(Request):
    """A file before its tables are read, each under its own name."""

    hosts: dict[str, Any] = msgspec.field(default_factory=dict)
    groups: dict[str, Any] = msgspec.field(default_factory=dict)
    vms: dict[str, Any] = msgspec.field(default_factory=dict)


def parse(data: bytes, file_format: str) -> shown.Fleet:
    if file_format == "toml":
        content: object = toml.decode(data, "the fleet file").parse()
    else:
        try:
            content = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.RefusedError(f"the fleet file is not JSON: {error}") from None
    tables = _fitting("the file", content, _Tables)
    return shown.Fleet(
        hosts={name: _fitting(f"hosts.{name}", table, shown.HostTable) for name, table in tables.hosts.items()},
        groups={name: _fitting(f"groups.{name}", table, shown.GroupTable) for name, table in tables.groups.items()},
        vms={name: _fitting(f"vms.{name}", table, shown.VmTable) for name, table in tables.vms.items()},
    )


def _fitting(where: str, table: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise errors.RefusedError(f"the fleet file does not fit: {validation.sentence(error, kind, where)}") from None


def _spec(document: shown.Fleet) -> FleetSpec:
    """As core takes it."""
    policies = {name: vm.policy.policy() for name, vm in document.vms.items() if isinstance(vm.policy, shown.Policy)}
    for name, vm in document.vms.items():
        if name in policies and vm.group is not None:
            raise errors.RefusedError(f"vms.{name}: a VM of a group has no policy of its own: give it to the group")
        if isinstance(vm.size, str):
            raise errors.RefusedError(
                f"vms.{name}: size is how much of its host's capacity the VM takes, a number such as 4; what guests "
                "see as vmSize is facts.size"
            )
    return FleetSpec(
        hosts={name: HostSpec(**host.given()) for name, host in document.hosts.items()},
        groups={name: GroupSpec(kind=each.kind, policy=each.policy.policy()) for name, each in document.groups.items()},
        vms={
            name: VmSpec(
                **{field: getattr(vm, field) for field in SETTABLE - {"addresses", "facts"}},
                name=name,
                addresses=tuple(vm.addresses),
                facts=vm.facts.facts(),
            )
            for name, vm in document.vms.items()
        },
        policies=policies,
    )


def export(service: Service) -> shown.Fleet:
    """The whole fleet in the form that `apply` takes."""
    with service.store.read() as reader:
        world = reader.worlds.fleet()
    return shown.Fleet.of(world.hosts, world.scopes, world.vms)
