"""From the fleet as it is to the fleet as a file describes it, in one step."""

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from forenotice.core import errors, fleet, membership, placement
from forenotice.core.draft import Draft, World
from forenotice.core.fleet import DEFAULT_POLICY, Host, Policy, Scope, ScopeKind, Vm
from forenotice.core.membership import VmSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    cordoned: bool | None = None
    """None: as it is, which of a new host is not cordoned."""
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: float | None = None
    address: str | None = None

    def host(self, known: Host) -> Host:
        """As one that is known becomes."""
        cordoned = known.cordoned if self.cordoned is None else self.cordoned
        return membership.described(
            replace(known, cordoned=cordoned, labels=self.labels, capacity=self.capacity, address=self.address)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    kind: ScopeKind
    policy: Policy = DEFAULT_POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """A whole fleet. Policies are of standalone VMs, by name."""

    hosts: Mapping[str, HostSpec] = field(default_factory=dict)
    groups: Mapping[str, GroupSpec] = field(default_factory=dict)
    vms: Mapping[str, VmSpec] = field(default_factory=dict)
    policies: Mapping[str, Policy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    action: str
    """What makes the fleet as described: `add`, `change` or `remove`. `keep`: it stays as it is all the same."""
    noun: str
    name: str
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Of `change` and `keep`: what each field is, and what it is described as."""


def compare(world: World, spec: FleetSpec) -> list[Difference]:
    """How a fleet differs from its description, whether or not the rules would let that change."""
    groups = {scope.name: scope for scope in world.scopes.values() if scope.kind is not ScopeKind.STANDALONE}
    alone = [name for name, vm in spec.vms.items() if vm.group is None]
    found = [
        *(_host(name, world.hosts.get(name), host) for name, host in spec.hosts.items()),
        *(_group(name, groups.get(name), group) for name, group in spec.groups.items()),
        *_removed("vm", world.vms, spec.vms),
        *(_vm(name, world.vms.get(name), vm) for name, vm in spec.vms.items()),
        *(_policy(name, world, spec) for name in alone),
        *_removed("group", groups, spec.groups),
        *_removed("host", world.hosts, spec.hosts),
    ]
    return [each for each in found if each is not None]


def reconcile(draft: Draft, spec: FleetSpec, *, prune: bool, move: bool) -> list[Difference]:
    """Add and change what is described. Rules hold for the result, not on the way.

    Where a VM runs is the service's to decide: with `move` only, one that exists is put down as running where it is
    described. With `prune`, what is not described is removed.
    """
    differences = list(_heeded(compare(draft.world, spec), prune=prune, move=move))
    for each in differences:
        _make_so(draft, spec, each)
    changed = [each.name for each in differences if each.noun == "vm" and each.action in ("add", "change")]
    touched = [draft.vm(name) for name in changed]
    membership.claim_identities(draft, touched)
    for scope in dict.fromkeys(vm.scope for vm in touched):
        placement.require_sound(draft, scope)
    placed = [each.name for each in differences if each.noun == "vm" and _is_placed(each)]
    placement.require_room(draft, map(draft.vm, placed))
    return differences


def _is_placed(each: Difference) -> bool:
    return each.action == "add" or (each.action == "change" and "host" in each.fields)


def _heeded(differences: Iterable[Difference], *, prune: bool, move: bool) -> Iterable[Difference]:
    for each in differences:
        if each.noun == "vm" and "host" in each.fields and not move:
            others = {name: values for name, values in each.fields.items() if name != "host"}
            if others:
                yield replace(each, fields=others)
            yield replace(each, action="keep", fields={"host": each.fields["host"]})
        elif prune or each.action != "remove":
            yield each


def _make_so(draft: Draft, spec: FleetSpec, each: Difference) -> None:
    name, wanted = each.name, {field: described for field, (_, described) in each.fields.items()}
    match each.action, each.noun:
        case "remove", "host":
            _remove_host(draft, name)
        case "remove", "group":
            membership.remove_group(draft, name)
        case "remove", "vm":
            membership.remove_vm(draft, name)
        case (("add" | "change"), noun):
            with _naming(noun.removeprefix("policy of ") + "s", name):
                _add_or_change(draft, spec, each, wanted)


def _add_or_change(draft: Draft, spec: FleetSpec, each: Difference, wanted: dict[str, Any]) -> None:
    name = each.name
    match each.action, each.noun:
        case "add", "host":
            membership.add_host(draft, spec.hosts[name].host(Host(name=name)))
        case "change", "host":
            membership.set_host(draft, replace(draft.host(name), **wanted))
        case "add", "group":
            membership.add_group(draft, name, spec.groups[name].kind, spec.groups[name].policy)
        case "change", "group":
            _change_group(draft, name, spec.groups[name])
        case "add", "vm":
            membership.put_new_vm(draft, spec.vms[name])
        case "change", "vm":
            membership.change_vm(draft, name, wanted)
        case _:
            membership.set_policy(draft, fleet.standalone_key(name), spec.policies.get(name, DEFAULT_POLICY))


def _remove_host(draft: Draft, name: str) -> None:
    vms = draft.vms_on(name)
    if vms:
        raise errors.ConflictError(
            f"the fleet file does not name host {name}, where {vms[0].name} runs: name the host there, or move its VMs "
            f"({len(vms)}) first",
            host=name,
            vms=len(vms),
        )
    membership.remove_host(draft, name)


def _change_group(draft: Draft, name: str, group: GroupSpec) -> None:
    known = draft.scope(fleet.group_key(name))
    if known.kind is not group.kind:
        raise errors.ConflictError(
            f"group {name} is of kind {known.kind} and cannot become {group.kind}: remove it and add it anew",
            group=name,
            kind=known.kind,
        )
    membership.set_policy(draft, known.key, group.policy)


def _host(name: str, known: Host | None, spec: HostSpec) -> Difference | None:
    with _naming("hosts", name):
        wanted = spec.host(known or Host(name=name))
    return _difference("host", name, None if known is None else _host_fields(known), _host_fields(wanted))


def _group(name: str, known: Scope | None, spec: GroupSpec) -> Difference | None:
    with _naming("groups", name):
        fleet.require_policy(spec.kind, spec.policy)
    return _difference("group", name, None if known is None else _group_fields(known), _group_fields(spec))


def _vm(name: str, known: Vm | None, spec: VmSpec) -> Difference | None:
    with _naming("vms", name):
        wanted = _canonical(spec, known)
    before = None if known is None else _vm_fields(membership.spec_of(known))
    return _difference("vm", name, before, _vm_fields(wanted))


def _policy(name: str, world: World, spec: FleetSpec) -> Difference | None:
    known = world.scopes.get(fleet.standalone_key(name))
    with _naming("vms", name):
        wanted = fleet.require_policy(ScopeKind.STANDALONE, spec.policies.get(name, DEFAULT_POLICY))
    before = known.policy if known else DEFAULT_POLICY
    return _difference("policy of vm", name, membership.policy_facts(before), membership.policy_facts(wanted))


def _difference(noun: str, name: str, known: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> Difference | None:
    if known is None:
        with _naming(f"{noun}s", name):
            fleet.require_name("VM" if noun == "vm" else noun, name)
        return Difference(action="add", noun=noun, name=name)
    fields = {field: (known[field], wanted[field]) for field in sorted(known) if known[field] != wanted[field]}
    return Difference(action="change", noun=noun, name=name, fields=fields) if fields else None


def _removed(noun: str, known: Iterable[str], described: Container[str]) -> Iterable[Difference]:
    return (Difference(action="remove", noun=noun, name=name) for name in known if name not in described)


def _host_fields(host: Host) -> dict[str, Any]:
    return {"cordoned": host.cordoned, "labels": dict(host.labels), "capacity": host.capacity}


def _group_fields(group: Scope | GroupSpec) -> dict[str, Any]:
    return {"kind": group.kind, **membership.policy_facts(group.policy)}


def _vm_fields(spec: VmSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in membership.SETTABLE}


def _canonical(spec: VmSpec, known: Vm | None) -> VmSpec:
    """As the VM would be if it were described so: it keeps its vmId where none is given."""
    fleet.require_name("host", spec.host)
    mine, vm_id = (known.addresses, known.vm_id) if known else ((), None)
    addresses = (address if address in mine else fleet.require_syntax(address) for address in spec.addresses)
    return replace(
        spec,
        vm_id=vm_id if spec.vm_id is None else fleet.require_vm_id(spec.vm_id),
        update_domain=fleet.require_domain("update domain", spec.update_domain),
        fault_domain=fleet.require_domain("fault domain", spec.fault_domain),
        addresses=tuple(dict.fromkeys(addresses)),
        size=fleet.require_amount("size", spec.size),
    )


@contextmanager
def _naming(table: str, name: str) -> Iterator[None]:
    """Say of which part of a whole fleet a refusal speaks."""
    try:
        yield
    except errors.ForenoticeError as error:
        raise type(error)(f"{table}.{name}: {error.message}", **error.facts) from None
