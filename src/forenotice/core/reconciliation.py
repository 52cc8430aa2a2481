"""From the fleet as it is to the fleet as a file describes it, in one step."""

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from forenotice.core import errors, fleet, membership, placement
from forenotice.core.draft import Draft, World
from forenotice.core.fleet import DEFAULT_POLICY, Host, Policy, Scope, ScopeKind, Vm
from forenotice.core.membership import VmSpec

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    cordoned: bool | None = None
    """None: as it is, which of a new host is not cordoned."""
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: float | None = None
    address: str | None = None
    inventory: str | None = None

    def host(self, known: Host) -> Host:
        """As one that is known becomes."""
        cordoned = known.cordoned if self.cordoned is None else self.cordoned
        return membership.described(
            replace(
                known,
                cordoned=cordoned,
                labels=self.labels,
                capacity=self.capacity,
                address=self.address,
                inventory=self.inventory,
            )
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
    found: list[Difference] = []
    for name, described in spec.hosts.items():
        with _naming("hosts", name):
            host = world.hosts.get(name)
            wanted = described.host(host or Host(name=name))
            found += _differences("host", name, _host_fields(host) if host else None, _host_fields(wanted))
    for name, group in spec.groups.items():
        with _naming("groups", name):
            fleet.require_policy(group.kind, group.policy)
            scope = groups.get(name)
            found += _differences("group", name, _group_fields(scope) if scope else None, _group_fields(group))
    found += _removed("vm", world.vms, spec.vms)
    for name, vm_spec in spec.vms.items():
        with _naming("vms", name):
            vm = world.vms.get(name)
            known = _vm_fields(membership.spec_of(vm)) if vm else None
            found += _differences("vm", name, known, _vm_fields(_canonical(vm_spec, vm)))
    for name in [name for name, vm_spec in spec.vms.items() if vm_spec.group is None]:
        with _naming("vms", name):
            policy = fleet.require_policy(ScopeKind.STANDALONE, spec.policies.get(name, DEFAULT_POLICY))
            scope = world.scopes.get(fleet.standalone_key(name))
            before = membership.policy_facts(scope.policy if scope else DEFAULT_POLICY)
            found += _differences("policy of vm", name, before, membership.policy_facts(policy))
    return [*found, *_removed("group", groups, spec.groups), *_removed("host", world.hosts, spec.hosts)]


def reconcile(draft: Draft, spec: FleetSpec, *, prune: bool, move: bool) -> list[Difference]:
    """Add and change what is described. Rules hold for the result, not on the way.

    Where a VM runs is the service's to decide: with `move` only, one that exists is put down as running where it is
    described. With `prune`, what is not described is removed.
    """
    differences = list(_heeded(compare(draft.world, spec), prune=prune, move=move))
    touched, placed = [], []
    for each in differences:
        if each.action == "remove":
            _remove(draft, each.noun, each.name)
        elif each.action != "keep":
            with _naming(each.noun.removeprefix("policy of ") + "s", each.name):
                _add_or_change(draft, spec, each)
            touched += [each.name] if each.noun == "vm" else []
            placed += [each.name] if each.noun == "vm" and (each.action == "add" or "host" in each.fields) else []
    vms = [draft.vm(name) for name in touched]
    membership.claim_identities(draft, vms)
    for scope in dict.fromkeys(vm.scope for vm in vms):
        placement.require_sound(draft, scope)
    placement.require_room(draft, map(draft.vm, placed))
    return differences


def _heeded(differences: Iterable[Difference], *, prune: bool, move: bool) -> Iterator[Difference]:
    for each in differences:
        if each.noun == "vm" and "host" in each.fields and not move:
            others = {name: values for name, values in each.fields.items() if name != "host"}
            if others:
                yield replace(each, fields=others)
            yield replace(each, action="keep", fields={"host": each.fields["host"]})
        elif prune or each.action != "remove":
            yield each


def _remove(draft: Draft, noun: str, name: str) -> None:
    if noun == "host" and (vms := draft.vms_on(name)):
        why = (
            f"the fleet file does not name host {name}, where {vms[0].name} runs: name the host there, or move its VMs "
            f"({len(vms)}) first"
        )
        raise errors.ConflictError(why, host=name, vms=len(vms))
    remove = {"host": membership.remove_host, "group": membership.remove_group, "vm": membership.remove_vm}
    remove[noun](draft, name)


def _add_or_change(draft: Draft, spec: FleetSpec, each: Difference) -> None:
    name, wanted = each.name, {field: described for field, (_, described) in each.fields.items()}
    match each.action, each.noun:
        case "add", "host":
            membership.add_host(draft, spec.hosts[name].host(Host(name=name)))
        case "change", "host":
            membership.set_host(draft, replace(draft.host(name), **wanted))
        case "add", "group":
            membership.add_group(draft, name, spec.groups[name].kind, spec.groups[name].policy)
        case "change", "group":
            known = draft.scope(fleet.group_key(name))
            if "kind" in wanted:
                why = f"group {name} is of kind {known.kind} and cannot become {wanted['kind']}"
                raise errors.ConflictError(f"{why}: remove it and add it anew", group=name, kind=known.kind)
            membership.set_policy(draft, known.key, spec.groups[name].policy)
        case "add", "vm":
            membership.put_new_vm(draft, spec.vms[name])
        case "change", "vm":
            membership.change_vm(draft, name, wanted)
        case _:
            membership.set_policy(draft, fleet.standalone_key(name), spec.policies.get(name, DEFAULT_POLICY))


def _differences(noun: str, name: str, known: Fields | None, wanted: Fields) -> list[Difference]:
    if known is None:
        fleet.require_name("VM" if noun == "vm" else noun, name)
        return [Difference(action="add", noun=noun, name=name)]
    fields = {field: (known[field], wanted[field]) for field in sorted(known) if known[field] != wanted[field]}
    return [Difference(action="change", noun=noun, name=name, fields=fields)] if fields else []


def _removed(noun: str, known: Iterable[str], described: Container[str]) -> Iterable[Difference]:
    return (Difference(action="remove", noun=noun, name=name) for name in known if name not in described)


def _host_fields(host: Host) -> Fields:
    return {"cordoned": host.cordoned, **membership.host_facts(host)}


def _group_fields(group: Scope | GroupSpec) -> Fields:
    return {"kind": group.kind, **membership.policy_facts(group.policy)}


def _vm_fields(spec: VmSpec) -> Fields:
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
