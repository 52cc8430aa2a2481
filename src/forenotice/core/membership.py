"""Changes of the fleet: hosts, groups and VMs. What a live event relies on cannot change."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from forenotice.core import errors, fleet, lifecycle, placement
from forenotice.core.draft import Draft
from forenotice.core.fleet import NO_FACTS, Facts, Host, Policy, Scope, ScopeKind, Vm
from forenotice.core.lifecycle import is_listening, withdraw_silence
from forenotice.core.operations import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSpec:
    """A VM as an operator describes it."""

    name: str
    host: str
    group: str | None = None
    update_domain: int = 0
    fault_domain: int = 0
    spot: bool = False
    addresses: tuple[str, ...] = ()
    vm_id: str | None = None
    facts: Facts = NO_FACTS
    size: float | None = None


SETTABLE = frozenset(field.name for field in fields(VmSpec)) - {"name"}
ROOTED = {
    "host": "moved",
    "group": "regrouped",
    "update_domain": "given another update domain",
    "spot": "made spot or regular",
}
"""What a live event relies on, and what it is to change it."""


def add_host(draft: Draft, host: Host) -> Host:
    fleet.require_name("host", host.name)
    host = described(host)
    if host.name in draft.world.hosts:
        known = draft.host(host.name)
        raise errors.ConflictError(f"host {host.name} exists already", host=host.name, cordoned=known.cordoned)
    draft.put_host(host)
    draft.note("host.added", host, cordoned=host.cordoned, **host_facts(host))
    draft.make_room()
    return host


def set_host(draft: Draft, host: Host) -> Host:
    """As it is to be."""
    before = draft.host(host.name)
    host = described(host)
    if host == before:
        return before
    draft.put_host(host)
    if host.cordoned != before.cordoned:
        draft.note("host.cordoned" if host.cordoned else "host.uncordoned", host)
    differing = [field for field in host_facts(host) if getattr(host, field) != getattr(before, field)]
    if differing:
        draft.note("host.changed", host, fields=differing, **host_facts(host))
    if not host.cordoned and (before.cordoned or host.capacity != before.capacity):
        draft.make_room()
    return host


def host_facts(host: Host) -> dict[str, Any]:
    return {
        "labels": dict(host.labels),
        "capacity": host.capacity,
        "address": host.address,
        "inventory": host.inventory,
    }


def described(host: Host) -> Host:
    """As it is kept, if a host can be so."""
    fleet.require_labels(host.labels)
    fleet.require_host_address(host.address)
    fleet.require_inventory(host.inventory, host.address)
    return replace(host, capacity=fleet.require_amount("capacity", host.capacity))


def remove_host(draft: Draft, name: str) -> None:
    draft.host(name)
    vms = draft.vms_on(name)
    if vms:
        why = f"host {name} still has {len(vms)} VMs, such as {vms[0].name}: move or remove them first"
        raise errors.ConflictError(why, host=name, vms=len(vms), such_as=[vm.name for vm in vms[:5]])
    for operation in draft.world.operations.values():
        if operation.status.live and name in operation.targets.values():
            why = f"operation {operation.id} is moving VMs to host {name}: let it end first"
            raise errors.ConflictError(why, host=name, operation=operation.id, status=operation.status)
    draft.remove_host(name)
    draft.note("host.removed", host=name)


def add_group(draft: Draft, name: str, kind: ScopeKind, policy: Policy) -> Scope:
    fleet.require_name("group", name)
    key = fleet.group_key(name)
    if key in draft.world.scopes:
        raise errors.ConflictError(f"group {name} exists already", group=name, kind=draft.scope(key).kind)
    if kind is ScopeKind.STANDALONE:
        raise errors.RefusedError("a group is an availability-set, a placement-group or a cloud-service")
    fleet.require_policy(kind, policy)
    scope = Scope(key=key, kind=kind, tag=draft.new_id()[:8], policy=policy)
    draft.put_scope(scope)
    draft.note("group.added", scope, kind=kind)
    return scope


def remove_group(draft: Draft, name: str) -> None:
    key = fleet.group_key(name)
    draft.scope(key)
    vms = draft.vms_in(key)
    if vms:
        why = f"group {name} still has {len(vms)} VMs, such as {vms[0].name}: regroup or remove them first"
        raise errors.ConflictError(why, group=name, vms=len(vms), such_as=[vm.name for vm in vms[:5]])
    draft.remove_scope(key)
    draft.note("group.removed", scope=key)


def set_policy(draft: Draft, key: str, policy: Policy) -> Scope:
    scope = draft.scope(key)
    fleet.require_policy(scope.kind, policy)
    if scope.policy == policy:
        return scope
    before, was_listening = scope.policy, is_listening(scope, draft.now, draft.timing)
    scope = replace(scope, policy=policy)
    draft.put_scope(scope)
    draft.note("scope.policy_changed", scope, policy=policy_facts(policy))
    # What a budget or a window holds back may be free to go.
    draft.wake(key)
    draft.replan(key)
    if not was_listening and is_listening(scope, draft.now, draft.timing):
        withdraw_silence(draft, key)
    if before.windows != policy.windows:
        for event in [event for event in draft.live_events_in(key) if event.status is Status.SCHEDULED]:
            draft.put_operation(replace(draft.operation(event.operation), due_at=draft.now))
    return scope


def policy_facts(policy: Policy) -> dict[str, Any]:
    """A policy as operators write it."""
    notice, most = policy.terminate_notice, policy.max_unavailable
    return {
        "listening": policy.listening.value,
        "auto_approve_restart": policy.auto_approve_restart,
        "auto_approve_redeploy": policy.auto_approve_redeploy,
        "terminate_notice_minutes": None if notice is None else notice.total_seconds() / 60,
        "max_user_operations": policy.max_user_operations,
        "max_unavailable": int(most) if most and most.isdigit() else most,
        "min_available": policy.min_available,
        "windows": [str(window) for window in policy.windows],
        "shutdown_timeout_seconds": int(policy.shutdown_timeout.total_seconds()),
    }


def add_vm(draft: Draft, spec: VmSpec) -> Vm:
    """Nothing has changed if it is refused."""
    vm = _new(draft, spec)
    require_fitting(draft, vm)
    _put_new(draft, vm)
    claim_identities(draft, [vm])
    return vm


def put_new_vm(draft: Draft, spec: VmSpec) -> Vm:
    """Without the checks that concern several VMs at once; whoever calls this does them in the end."""
    vm = _new(draft, spec)
    _put_new(draft, vm)
    return vm


def require_addable(draft: Draft, spec: VmSpec) -> None:
    require_fitting(draft, _new(draft, spec))


def require_fitting(draft: Draft, vm: Vm) -> None:
    """Refuse a VM, as it is to be, that does not go together with the others."""
    require_free(draft, vm)
    placement.require_sound(draft, vm.scope, vm)
    placement.require_room(draft, [vm])


def _new(draft: Draft, spec: VmSpec) -> Vm:
    fleet.require_name("VM", spec.name)
    if spec.name in draft.world.vms:
        known = draft.vm(spec.name)
        raise errors.ConflictError(f"VM {spec.name} exists already", vm=spec.name, host=known.host, group=known.group)
    vm = _checked(draft, spec, vm_id=draft.new_id() if spec.vm_id is None else spec.vm_id)
    require_quiet(draft, vm)
    return vm


def _put_new(draft: Draft, vm: Vm) -> None:
    _enter_scope(draft, vm)
    draft.put_vm(vm)
    lifecycle.recheck_planned(draft, vm.host)
    draft.note("vm.added", vm)


def set_vm(draft: Draft, name: str, changes: Mapping[str, Any]) -> Vm:
    """Nothing has changed if it is refused."""
    before = draft.vm(name)
    vm = changed(draft, name, changes)
    require_free(draft, vm)
    placement.require_sound(draft, vm.scope, vm)
    if vm.host != before.host:
        placement.require_room(draft, [vm])
    _put_changed(draft, before, vm)
    claim_identities(draft, [vm])
    return vm


def change_vm(draft: Draft, name: str, changes: Mapping[str, Any]) -> Vm:
    """Without the checks that concern several VMs at once; whoever calls this does them in the end."""
    before, vm = draft.vm(name), changed(draft, name, changes)
    _put_changed(draft, before, vm)
    return vm


def changed(draft: Draft, name: str, changes: Mapping[str, Any]) -> Vm:
    """As a VM would be."""
    before = draft.vm(name)
    unknown = sorted(set(changes) - SETTABLE)
    if unknown:
        raise errors.RefusedError(f"a VM has no {unknown[0]!r}: it has {', '.join(sorted(SETTABLE))}")
    spec = replace(spec_of(before), **changes)
    vm = _checked(draft, spec, before.vm_id if spec.vm_id is None else spec.vm_id, known=before.addresses)
    for field, what in ROOTED.items():
        if getattr(vm, field) != getattr(before, field):
            require_unnamed(draft, before, what)
    if vm.host != before.host:
        require_quiet(draft, vm)
    return vm


def _put_changed(draft: Draft, before: Vm, vm: Vm) -> None:
    if vm == before:
        return
    for identity in before.known_by:
        draft.world.addresses.pop(identity, None)
    _enter_scope(draft, vm)
    draft.put_vm(vm)
    if (before.host, before.scope) != (vm.host, vm.scope):
        lifecycle.recheck_planned(draft, before.host)
        lifecycle.recheck_planned(draft, vm.host)
    differing = sorted(field for field in SETTABLE if getattr(vm, field) != getattr(before, field))
    left = {"source": before.host} if vm.host != before.host else {}
    draft.note("vm.changed", vm, fields=differing, **left)
    if before.scope != vm.scope:
        draft.note("vm.left", scope=before.scope, vm=vm.name)
    if before.host != vm.host or vm.takes < before.takes:
        draft.make_room()


def require_quiet(draft: Draft, vm: Vm) -> None:
    """No VM is placed on a host whose update or reboot has been announced: its guest would not be told."""
    for operation in placement.maintenance_of(draft, vm.host):
        why = (
            f"host {vm.host} has a {operation.kind} that is {operation.status}, of which {vm.name} would not be told: "
            f"choose another host, wait for its end, or cancel operation {operation.id}"
        )
        raise errors.ConflictError(why, host=vm.host, operation=operation.id, status=operation.status)


def remove_vm(draft: Draft, name: str) -> None:
    """Forget a VM, which is not to delete it."""
    vm = draft.vm(name)
    require_unnamed(draft, vm, "forgotten")
    lifecycle.remove_vm(draft, name)


def spec_of(vm: Vm) -> VmSpec:
    return VmSpec(**{each.name: getattr(vm, each.name) for each in fields(VmSpec)})


def claim_identities(draft: Draft, vms: Iterable[Vm]) -> None:
    for vm in vms:
        require_free(draft, vm)
        draft.world.addresses |= dict.fromkeys(vm.known_by, vm.name)


def require_free(draft: Draft, vm: Vm) -> None:
    """Refuse a VM with the address or the vmId of another."""
    for identity in vm.known_by:
        owner = draft.world.addresses.get(identity, vm.name)
        if owner != vm.name:
            why = f"{identity} of {vm.name} belongs to {owner}: addresses and vmIds are unique in the fleet"
            raise errors.ConflictError(why, vm=vm.name, other=owner, identity=identity)


def _checked(draft: Draft, spec: VmSpec, vm_id: str, known: Sequence[str] = ()) -> Vm:
    """Addresses that the VM already has (`known`) stay, even if they would be refused today."""
    draft.host(spec.host)
    allow = draft.allows_loopback
    addresses = [each if each in known else fleet.require_address(each, loopback=allow) for each in spec.addresses]
    key = fleet.standalone_key(spec.name) if spec.group is None else draft.scope(fleet.group_key(spec.group)).key
    return Vm(
        name=spec.name,
        vm_id=fleet.require_vm_id(vm_id),
        host=spec.host,
        scope=key,
        update_domain=fleet.require_domain("update domain", spec.update_domain),
        fault_domain=fleet.require_domain("fault domain", spec.fault_domain),
        spot=spec.spot,
        addresses=tuple(dict.fromkeys(addresses)),
        facts=spec.facts,
        size=fleet.require_amount("size", spec.size),
    )


def _enter_scope(draft: Draft, vm: Vm) -> None:
    if vm.group is None and vm.scope not in draft.world.scopes:
        draft.put_scope(Scope(key=vm.scope, kind=ScopeKind.STANDALONE, tag=draft.new_id()[:8]))


def require_unnamed(draft: Draft, vm: Vm, what: str) -> None:
    for operation in draft.live_operations_naming(vm.name):
        if operation.status is not Status.PLANNED:
            facts = {"operation": operation.id, "kind": operation.kind, "status": operation.status}
            why = f"{vm.name} cannot be {what} while operation {operation.id} ({operation.kind}, {operation.status})"
            raise errors.ConflictError(f"{why} names it: cancel that or let it end", vm=vm.name, **facts)
