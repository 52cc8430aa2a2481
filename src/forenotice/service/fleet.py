"""Operators' commands about hosts, groups and VMs."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import msgspec

from forenotice.core import errors, fleet, membership, reconciliation
from forenotice.core.draft import Draft
from forenotice.core.fleet import Facts, Host, Policy, Scope
from forenotice.core.membership import VmSpec
from forenotice.core.reconciliation import Difference, FleetSpec
from forenotice.service import fleetfile, views
from forenotice.service.calls import Call, command
from forenotice.service.service import Service, UnitOfWork
from forenotice.views import fleet as shown
from forenotice.views.base import Removed


def add_host(service: Service, call: Call, asked: shown.NewHost) -> shown.Host:
    def work(unit: UnitOfWork) -> shown.Host:
        draft = unit.draft(unit.transaction.worlds.load(hosts=[asked.name]), call)
        host = membership.add_host(draft, Host(**asked.given()))
        unit.keep(draft)
        return views.host(host, 0, 0)

    return command(service, call, shown.Host, work)


def set_host(service: Service, call: Call, name: str, asked: shown.HostChange) -> shown.Host:
    """Labels that are not given stay; one that is None is removed."""
    changes = asked.given()

    def work(unit: UnitOfWork) -> shown.Host:
        moving_in = unit.transaction.operations.moving_to(name)
        draft = unit.draft(unit.transaction.worlds.load(hosts=[name], operations=moving_in), call)
        labels = {**draft.host(name).labels, **changes.get("labels", {})}
        known = {key: value for key, value in labels.items() if value is not None}
        membership.set_host(draft, replace(draft.host(name), **{**changes, "labels": known}))
        unit.keep(draft)
        return views.loaded_host(draft, name)

    return command(service, call, shown.Host, work, asked="host.change", host=name)


def remove_host(service: Service, call: Call, name: str) -> Removed:
    def work(unit: UnitOfWork) -> Removed:
        moving_in = unit.transaction.operations.moving_to(name)
        draft = unit.draft(unit.transaction.worlds.load(hosts=[name], operations=moving_in), call)
        membership.remove_host(draft, name)
        unit.keep(draft)
        return Removed(removed=name)

    return command(service, call, Removed, work)


def add_group(service: Service, call: Call, asked: shown.NewGroup) -> shown.AddedGroup:
    def work(unit: UnitOfWork) -> shown.AddedGroup:
        draft = unit.draft(unit.transaction.worlds.load(scopes=[fleet.group_key(asked.name)]), call)
        scope = membership.add_group(draft, asked.name, asked.kind, asked.policy.of(Policy()))
        unit.keep(draft)
        group = views.group(scope, 0, unit.now, service.timing)
        return shown.AddedGroup(**msgspec.structs.asdict(group), warnings=_warnings(unit, [scope.key]))

    return command(service, call, shown.AddedGroup, work)


def remove_group(service: Service, call: Call, name: str) -> Removed:
    def work(unit: UnitOfWork) -> Removed:
        world = unit.transaction.worlds.load(scopes=[fleet.group_key(name)], members=True)
        draft = unit.draft(world, call)
        membership.remove_group(draft, name)
        unit.keep(draft)
        return Removed(removed=name)

    return command(service, call, Removed, work)


def set_group(service: Service, call: Call, name: str, policy: shown.PolicyChange) -> shown.Group:
    def work(unit: UnitOfWork) -> shown.Group:
        draft = unit.draft(unit.transaction.worlds.load(scopes=[fleet.group_key(name)], members=True), call)
        scope = _set_policy(unit, draft, fleet.group_key(name), policy)
        return views.group(scope, len(draft.vms_in(scope.key)), unit.now, service.timing)

    return command(service, call, shown.Group, work, asked="group.change", scope=fleet.group_key(name))


def set_policy(service: Service, call: Call, key: str, policy: shown.PolicyChange) -> shown.Policy:
    def work(unit: UnitOfWork) -> shown.Policy:
        draft = unit.draft(unit.transaction.worlds.load(scopes=[key]), call)
        return shown.Policy.of(_set_policy(unit, draft, key, policy).policy)

    return command(service, call, shown.Policy, work, asked="policy.change", scope=key)


def set_vm_policy(service: Service, call: Call, name: str, policy: shown.PolicyChange) -> shown.Policy:
    def work(unit: UnitOfWork) -> shown.Policy:
        draft = unit.draft(unit.transaction.worlds.load(vms=[name]), call)
        vm = draft.vm(name)
        if vm.group is not None:
            raise errors.ConflictError(
                f"VM {name} goes by the policy of its group: change that of group {vm.group}", vm=name, group=vm.group
            )
        return shown.Policy.of(_set_policy(unit, draft, vm.scope, policy).policy)

    return command(service, call, shown.Policy, work, asked="policy.change", vm=name)


def _set_policy(unit: UnitOfWork, draft: Draft, key: str, changes: shown.PolicyChange) -> Scope:
    scope = membership.set_policy(draft, key, changes.of(draft.scope(key).policy))
    unit.keep(draft)
    return scope


def add_vm(service: Service, call: Call, spec: VmSpec) -> shown.AddedVm:
    def work(unit: UnitOfWork) -> shown.AddedVm:
        world = unit.transaction.worlds.load(
            vms=[spec.name],
            hosts=[spec.host],
            operations=unit.transaction.operations.moving_to(spec.host),
            scopes=_scopes(spec.name, spec.group),
            addresses=_identities(spec.addresses, spec.vm_id),
            members=True,
        )
        draft = unit.draft(world, call)
        vm = membership.add_vm(draft, spec)
        unit.keep(draft)
        made = _warnings(unit, [] if vm.group else [vm.scope])
        view = views.vm(vm, draft.scope(vm.scope), unit.now, service.timing)
        return shown.AddedVm(**msgspec.structs.asdict(view), warnings=made)

    return command(service, call, shown.AddedVm, work)


def set_vm(service: Service, call: Call, name: str, asked: shown.VmChange) -> shown.Vm:
    changes = asked.given()

    def work(unit: UnitOfWork) -> shown.Vm:
        world = unit.transaction.worlds.load(
            vms=[name],
            hosts=[changes["host"]] if "host" in changes else [],
            operations=unit.transaction.operations.moving_to(changes["host"]) if "host" in changes else [],
            scopes=_scopes(name, changes.get("group")),
            addresses=_identities(changes.get("addresses", ()), changes.get("vm_id")),
            members=True,
        )
        draft = unit.draft(world, call)
        wanted = dict(changes)
        if "facts" in wanted:
            wanted["facts"] = replace(draft.vm(name).facts, **wanted["facts"].given())
        if "addresses" in wanted:
            wanted["addresses"] = tuple(wanted["addresses"])
        vm = membership.set_vm(draft, name, wanted)
        unit.keep(draft)
        return views.vm(vm, draft.scope(vm.scope), unit.now, service.timing)

    return command(service, call, shown.Vm, work, asked="vm.change", vm=name)


def remove_vm(service: Service, call: Call, name: str) -> Removed:
    def work(unit: UnitOfWork) -> Removed:
        draft = unit.draft(unit.transaction.worlds.load(vms=[name]), call)
        membership.remove_vm(draft, name)
        unit.keep(draft)
        return Removed(removed=name)

    return command(service, call, Removed, work)


def apply(
    service: Service, call: Call, document: shown.Fleet, *, prune: bool, dry_run: bool, move: bool = False
) -> shown.Applied:
    return apply_spec(service, call, fleetfile.spec(document), prune=prune, move=move, dry_run=dry_run)


def apply_spec(
    service: Service, call: Call, spec: FleetSpec, *, prune: bool, move: bool = False, dry_run: bool = False
) -> shown.Applied:
    def work(unit: UnitOfWork) -> shown.Applied:
        draft = unit.draft(unit.transaction.worlds.fleet(), call)
        differences = reconciliation.reconcile(draft, spec, prune=prune, move=move)
        if not dry_run:
            unit.keep(draft)
        return shown.Applied(
            changes=[_difference(each) for each in differences if each.action != "keep"],
            kept=[_difference(each) for each in differences if each.action == "keep"],
            applied=not dry_run,
            warnings=_warnings(unit, _added(draft, differences)),
        )

    return command(service, call, shown.Applied, work, asked="fleet.apply", only_looks=dry_run)


def diff(service: Service, document: shown.Fleet) -> shown.Compared:
    """What applying a file would change with `prune` and `move`, if nothing stood in the way."""
    with service.store.read() as reader:
        world = reader.worlds.fleet()
    return shown.Compared(
        differences=[_difference(each) for each in reconciliation.compare(world, fleetfile.spec(document))]
    )


def _difference(each: Difference) -> shown.Difference:
    fields = {name: shown.Values(now=_plain(before), to=_plain(after)) for name, (before, after) in each.fields.items()}
    return shown.Difference(action=each.action, noun=each.noun, name=each.name, fields=fields)  # type: ignore[arg-type]


def _added(draft: Draft, differences: Iterable[Difference]) -> list[str]:
    """Keys of the scopes that are new."""
    added = [each for each in differences if each.action == "add"]
    groups = [fleet.group_key(each.name) for each in added if each.noun == "group"]
    return [
        *groups,
        *(draft.vm(each.name).scope for each in added if each.noun == "vm" and not draft.vm(each.name).group),
    ]


def _warnings(unit: UnitOfWork, added: Collection[str]) -> list[str]:
    """For each added scope whose name was used before: it inherits nothing."""
    return [
        f"{key} was used before, until {former.ended_at:%Y-%m-%d %H:%M:%S} UTC: the old history is shown only to those "
        f"who see all scopes, and older tokens that name {key} do not match the new one"
        for key, former in sorted(unit.transaction.scopes.former(added).items())
    ]


def _identities(addresses: Iterable[str], vm_id: str | None) -> list[str]:
    # Only looked up: whether a VM may have them is core's to say.
    known = [fleet.require_syntax(address) for address in addresses]
    return [*known, *([vm_id.lower()] if vm_id else [])]


def _scopes(name: str, group: str | None) -> list[str]:
    return [fleet.standalone_key(name), *([fleet.group_key(group)] if group else [])]


def _plain(value: object) -> object:
    return msgspec.to_builtins(shown.Facts.of(value)) if isinstance(value, Facts) else views.plain(value)
