"""From the fleet as it is to the fleet as somebody describes it, in one step."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from forenotice.core import errors, fleet, membership, placement
from forenotice.core.draft import Draft
from forenotice.core.fleet import DEFAULT_POLICY, Host, Policy, ScopeKind
from forenotice.core.membership import VmSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    cordoned: bool | None = None
    """None: as it is, which of a new host is not cordoned."""


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
    """`add`, `change` or `remove`."""
    noun: str
    name: str
    fields: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    """Of a change: what each field was and becomes."""


def reconcile(draft: Draft, spec: FleetSpec, *, prune: bool) -> list[Difference]:
    """Add and change what is described; with `prune`, remove what is not. Rules hold for the result, not on the way."""
    differences = [
        *_hosts(draft, spec),
        *_groups(draft, spec),
        *(_removed_vms(draft, spec) if prune else ()),
        *_vms(draft, spec),
        *_policies(draft, spec),
        *(_removed_groups_and_hosts(draft, spec) if prune else ()),
    ]
    touched = [draft.vm(each.name) for each in differences if each.noun == "vm" and each.name in draft.world.vms]
    membership.claim_identities(draft, touched)
    for scope in dict.fromkeys(vm.scope for vm in touched):
        placement.require_sound(draft, scope)
    return differences


def _hosts(draft: Draft, spec: FleetSpec) -> Iterable[Difference]:
    for name, host in spec.hosts.items():
        known = draft.world.hosts.get(name)
        if known is None:
            with _naming("hosts", name):
                membership.add_host(draft, Host(name=name, cordoned=bool(host.cordoned)))
            yield Difference(action="add", noun="host", name=name)
        elif host.cordoned is not None and host.cordoned != known.cordoned:
            membership.set_host(draft, name, cordoned=host.cordoned)
            yield Difference(
                action="change", noun="host", name=name, fields={"cordoned": (known.cordoned, host.cordoned)}
            )


def _groups(draft: Draft, spec: FleetSpec) -> Iterable[Difference]:
    for name, group in spec.groups.items():
        known = draft.world.scopes.get(fleet.group_key(name))
        with _naming("groups", name):
            if known is None:
                membership.add_group(draft, name, group.kind, group.policy)
                yield Difference(action="add", noun="group", name=name)
            elif known.kind is group.kind:
                yield from _policy(draft, known.key, "group", name, group.policy)
            else:
                raise errors.ConflictError(
                    f"group {name} is of kind {known.kind} and cannot become {group.kind}: remove it and add it anew",
                    group=name,
                    kind=known.kind,
                )


def _policies(draft: Draft, spec: FleetSpec) -> Iterable[Difference]:
    for name, vm in spec.vms.items():
        if vm.group is None:
            policy = spec.policies.get(name, DEFAULT_POLICY)
            with _naming("vms", name):
                yield from _policy(draft, fleet.standalone_key(name), "policy of vm", name, policy)


def _policy(draft: Draft, key: str, noun: str, name: str, policy: Policy) -> Iterable[Difference]:
    known = membership.policy_facts(draft.scope(key).policy)
    membership.set_policy(draft, key, policy)
    wanted = membership.policy_facts(policy)
    if known != wanted:
        yield Difference(action="change", noun=noun, name=name, fields=_changed(known, wanted))


def _vms(draft: Draft, spec: FleetSpec) -> Iterable[Difference]:
    for name, wanted in spec.vms.items():
        known = draft.world.vms.get(name)
        with _naming("vms", name):
            if known is None:
                membership.put_new_vm(draft, wanted)
                yield Difference(action="add", noun="vm", name=name)
                continue
            before = _fields(membership.spec_of(known))
            membership.change_vm(draft, name, _fields(wanted))
        changed = _changed(before, _fields(membership.spec_of(draft.vm(name))))
        if changed:
            yield Difference(action="change", noun="vm", name=name, fields=changed)


def _removed_vms(draft: Draft, spec: FleetSpec) -> Iterable[Difference]:
    for name in [name for name in draft.world.vms if name not in spec.vms]:
        membership.remove_vm(draft, name)
        yield Difference(action="remove", noun="vm", name=name)


def _removed_groups_and_hosts(draft: Draft, spec: FleetSpec) -> Iterable[Difference]:
    groups = [scope.name for scope in draft.world.scopes.values() if scope.kind is not ScopeKind.STANDALONE]
    for name in groups:
        if name not in spec.groups:
            membership.remove_group(draft, name)
            yield Difference(action="remove", noun="group", name=name)
    for name in [name for name in draft.world.hosts if name not in spec.hosts]:
        membership.remove_host(draft, name)
        yield Difference(action="remove", noun="host", name=name)


def _fields(spec: VmSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in membership.SETTABLE}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[object, object]]:
    return {name: (before[name], after[name]) for name in sorted(before) if before[name] != after[name]}


@contextmanager
def _naming(table: str, name: str) -> Iterator[None]:
    """Say of which part of a whole fleet a refusal speaks."""
    try:
        yield
    except errors.ForenoticeError as error:
        raise type(error)(f"{table}.{name}: {error.message}", **error.facts) from None
