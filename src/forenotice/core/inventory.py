"""The fleet follows reality: what hosts say of their domains, and what becomes of the fleet by it.

A domain is what a host calls a VM. What cannot be recorded is drift, with the reason, until reality fits again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from forenotice.core import errors, fleet, lifecycle, membership, placement
from forenotice.core.draft import Draft
from forenotice.core.fleet import DEFAULT_POLICY, Drift, DriftKind, ScopeKind, Vm
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Status

INVENTORY = "inventory"
"""The author of what the service records of hosts by itself."""
LONGEST_NAME = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Of a watched host that does not answer; nothing is recorded of it meanwhile."""

    since: datetime
    why: str


class DomainState(StrEnum):
    RUNNING = "running"
    OFF = "off"
    ARRIVING = "arriving"
    """It begins to run there, or is being migrated: to this host, or, in the last moment, away from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainFacts:
    """What a domain's description, or a rule, says of the VM; None: nothing."""

    group: str | None = None
    kind: ScopeKind | None = None
    """Of the group, if there is none yet."""
    update_domain: int | None = None
    fault_domain: int | None = None
    spot: bool | None = None
    addresses: tuple[str, ...] | None = None
    size: float | None = None

    def over(self, other: "DomainFacts") -> "DomainFacts":
        """These facts, and those of the other where these say nothing."""
        return replace(other, **self._said())

    def of_vm(self) -> dict[str, Any]:
        """What is said of the VM itself."""
        return {name: value for name, value in self._said().items() if name != "kind"}

    def _said(self) -> dict[str, Any]:
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in said.items() if value is not None}


NO_FACTS = DomainFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Of domains whose names fit, what their descriptions do not say."""

    name: str
    """With wildcards, such as `web-*`; so is the host's."""
    host: str = "*"
    ignore: bool = False
    """They are not to be VMs of the fleet."""
    facts: DomainFacts = NO_FACTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    name: str
    uuid: str
    """In lower case."""
    state: DomainState
    facts: DomainFacts = NO_FACTS
    """Of its description."""
    unreadable: str = ""
    """Why its description cannot be understood."""
    operation: str | None = None
    """The operation that a driver has marked it with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What one host has."""

    domains: Sequence[Domain] = ()
    definitions: Mapping[str, str] = field(default_factory=dict)
    """As XML, by uuid."""
    machine: str = ""
    """What it is known by, whatever its address; empty: unknown."""


class Inventory:
    """The domains of every host that answers."""

    def __init__(self, hosts: Mapping[str, Sequence[Domain]], rules: Sequence[Rule] = ()) -> None:
        self.hosts = hosts
        self.rules = rules
        self._by_uuid: dict[str, dict[str, Domain]] = {}
        self._by_name: dict[str, dict[str, Domain]] = {}
        for host, domains in hosts.items():
            for domain in domains:
                self._by_uuid.setdefault(domain.uuid, {})[host] = domain
                self._by_name.setdefault(domain.name, {})[host] = domain

    def with_uuid(self, uuid: str) -> Mapping[str, Domain]:
        return self._by_uuid.get(uuid.lower(), {})

    def with_name(self, name: str) -> Mapping[str, Domain]:
        return self._by_name.get(name, {})

    def hosts_of(self, uuid: str, name: str) -> Iterator[str]:
        """Those that may have the same VM."""
        yield from self.with_uuid(uuid)
        yield from self.with_name(name)

    def near(self, host: str) -> Iterator[Domain]:
        """The domains of a host, and those elsewhere that may be the same VMs."""
        for domain in self.hosts[host]:
            yield domain
            yield from self.with_uuid(domain.uuid).values()
            yield from self.with_name(domain.name).values()

    def facts(self, host: str, domain: Domain) -> DomainFacts | None:
        """All that is said of a new domain; None: it is to be ignored. The first rule that fits is the one."""
        for rule in self.rules:
            if fnmatchcase(domain.name, rule.name) and fnmatchcase(host, rule.host):
                return None if rule.ignore else domain.facts.over(rule.facts)
        return domain.facts


def require_own_machines(machines: Mapping[str, str]) -> None:
    """Each host is another one. ConflictError: nobody knows which address is wrong."""
    by_machine: dict[str, list[str]] = {}
    for name, machine in sorted(machines.items()):
        if machine:
            by_machine.setdefault(machine, []).append(name)
    for same in by_machine.values():
        if len(same) > 1:
            raise errors.ConflictError(
                f"{fleet.names(same)} are the same machine: correct the address of one of them", hosts=same
            )


@dataclass(slots=True, kw_only=True)
class Left:
    """What observing a host leaves to be done."""

    busy: bool = False
    """It has VMs of operations that have started, so it is to be observed again when those are over."""
    elsewhere: set[str] = field(default_factory=set)
    """Hosts that have VMs of this one: they are to be observed, too."""


def observe(draft: Draft, host: str, inventory: Inventory) -> Left:
    """Record what a host that answers has; again is the same as once.

    An operation that has started is not disturbed: where its VMs are is the driver's to say.
    """
    noted, found, left = -1, {}, Left()
    # One VM may make way for another, such as by giving up an address. What is recorded once stays, so this ends.
    while draft.noted != noted:
        left = Left()
        noted, found = draft.noted, _round(draft, host, inventory, left)
    _record_drift(draft, host, found)
    return left


def _round(draft: Draft, host: str, inventory: Inventory, left: Left) -> dict[str, tuple[DriftKind, str]]:
    """Gives what cannot be recorded."""
    found: dict[str, tuple[DriftKind, str]] = {}
    strangers = []
    known = {vm.name for vm in draft.vms_on(host)}
    for domain in inventory.hosts[host]:
        if vm := vm_of(draft, inventory, domain):
            known.add(vm.name)
        else:
            strangers.append(domain)
    for name in sorted(known):
        if any(operation.status is Status.STARTED for operation in draft.live_operations_naming(name)):
            left.busy = True
            if before := draft.world.drift.get((host, name)):
                found[name] = before.kind, before.reason
        elif drift := _follow(draft, host, draft.vm(name), inventory, left):
            found[name] = drift
    for domain in strangers:
        if drift := _add(draft, host, domain, inventory):
            found[domain.name[:LONGEST_NAME]] = drift
    return found


def vm_of(draft: Draft, inventory: Inventory, domain: Domain) -> Vm | None:
    """The VM with its uuid; else that with its name, unless another domain is that one, or may be.

    If the VM's host does not answer, nobody knows what it has.
    """
    if owner := draft.world.addresses.get(domain.uuid):
        return draft.world.vms.get(owner)
    vm = draft.world.vms.get(domain.name)
    return None if vm is None or inventory.with_uuid(vm.vm_id) or vm.host not in inventory.hosts else vm


def _domains_of(draft: Draft, inventory: Inventory, vm: Vm) -> dict[str, Domain]:
    """By host. One that arrives at another host, or that a driver has prepared, is not there yet."""
    named = inventory.with_uuid(vm.vm_id) or {
        host: domain
        for host, domain in inventory.with_name(vm.name).items()
        if draft.world.addresses.get(domain.uuid, vm.name) == vm.name
    }
    return {
        host: domain
        for host, domain in named.items()
        if _is_there(draft, domain) or (host == vm.host and domain.state is DomainState.ARRIVING)
    }


def _is_there(draft: Draft, domain: Domain) -> bool:
    operation = draft.world.operations.get(domain.operation or "")
    prepared = domain.state is DomainState.OFF and operation is not None and operation.status.live
    return domain.state is not DomainState.ARRIVING and not prepared


def _follow(draft: Draft, host: str, vm: Vm, inventory: Inventory, left: Left) -> tuple[DriftKind, str] | None:
    """A VM that the fleet has on this host, or that this host has a domain of; gives what cannot be recorded."""
    domains = _domains_of(draft, inventory, vm)
    running = [at for at, domain in domains.items() if domain.state is DomainState.RUNNING]
    if len(running) > 1:
        if host not in running:
            return None
        return _duplicate(vm.name, running)
    at = running[0] if running else _where_off(vm, domains, inventory)
    if vm.host == host and at is None:
        return DriftKind.MISSING, f"host {host} no longer has it, and no other watched host that answers runs it"
    if at != host:
        # That is for the host where it is to tell.
        if vm.host == host and at is not None:
            left.elsewhere.add(at)
        return None
    if vm.host != host:
        # For what it is now, it may be allowed there.
        _follow_facts(draft, vm, domains[host])
        moved = replace(draft.vm(vm.name), host=host)
        try:
            membership.require_quiet(draft, moved)
            membership.require_fitting(draft, moved)
        except errors.ForenoticeError as error:
            return DriftKind.MISPLACED, f"it is on host {host}, but cannot be recorded there: {error.message}"
        lifecycle.move_vm(draft, vm.name, host)
        if (vm.host, vm.name) in draft.world.drift:
            draft.remove_drift(vm.host, vm.name)
    return _follow_facts(draft, draft.vm(vm.name), domains[host])


def _duplicate(name: str, running: Sequence[str]) -> tuple[DriftKind, str]:
    return (
        DriftKind.DUPLICATE,
        f"{name} runs on {fleet.names(sorted(running))} at the same time: end it on all hosts but one",
    )


def _where_off(vm: Vm, domains: Mapping[str, Domain], inventory: Inventory) -> str | None:
    """The host of a VM that runs nowhere: its own, or, if that answers and lacks it, the only other."""
    if vm.host in domains or vm.host not in inventory.hosts:
        return vm.host
    return next(iter(domains)) if len(domains) == 1 else None


def _follow_facts(draft: Draft, vm: Vm, domain: Domain) -> tuple[DriftKind, str] | None:
    """What its description says holds, as soon as no live event relies on something else."""
    if domain.unreadable:
        return DriftKind.UNREADABLE, domain.unreadable
    given = domain.facts.of_vm()
    try:
        if domain.facts.group is not None and fleet.group_key(domain.facts.group) not in draft.world.scopes:
            # Alone first, so that no group is made for a VM that cannot join it.
            membership.require_unnamed(draft, vm, "regrouped")
            membership.require_free(draft, membership.changed(draft, vm.name, {**given, "group": vm.group}))
        _require_group(draft, domain.facts)
        changed = membership.changed(draft, vm.name, given)
        if changed.takes > vm.takes:
            placement.require_room(draft, [changed])
        if changed != vm:
            membership.set_vm(draft, vm.name, given)
    except errors.ForenoticeError as error:
        return DriftKind.DIFFERENT, f"the fleet cannot follow its description: {error.message}"
    return None


def _add(draft: Draft, host: str, domain: Domain, inventory: Inventory) -> tuple[DriftKind, str] | None:
    facts = inventory.facts(host, domain)
    if facts is None or not _is_there(draft, domain):
        return None
    running = [at for at, each in inventory.with_uuid(domain.uuid).items() if each.state is DomainState.RUNNING]
    if domain.state is DomainState.OFF and running:
        return None
    if len(running) > 1:
        return _duplicate(domain.name, running)
    if domain.unreadable:
        return DriftKind.UNREADABLE, domain.unreadable
    if domain.name in draft.world.vms:
        why = f"VM {domain.name} of the fleet has another vmId: rename this domain, or undefine it"
        return DriftKind.REFUSED, why
    spec = VmSpec(name=domain.name, host=host, vm_id=domain.uuid, **facts.of_vm())
    try:
        # Alone first, so that no group is made for a VM that cannot be added.
        membership.require_addable(draft, replace(spec, group=None))
        _require_group(draft, facts)
        membership.add_vm(draft, spec)
    except errors.ForenoticeError as error:
        return DriftKind.REFUSED, f"it cannot be added: {error.message}"
    return None


def _require_group(draft: Draft, facts: DomainFacts) -> None:
    """Make the group if there is none."""
    if facts.group is None:
        return
    scope = draft.world.scopes.get(fleet.group_key(facts.group))
    if scope is None:
        kind = ScopeKind.AVAILABILITY_SET if facts.kind is None else facts.kind
        membership.add_group(draft, facts.group, kind, DEFAULT_POLICY)
    elif facts.kind not in (None, scope.kind):
        raise errors.ConflictError(
            f"group {scope.name} is of kind {scope.kind}, and not {facts.kind}", group=scope.name, kind=scope.kind
        )


def _record_drift(draft: Draft, host: str, found: Mapping[str, tuple[DriftKind, str]]) -> None:
    known = {name: drift for (at, name), drift in draft.world.drift.items() if at == host}
    for name, (kind, reason) in found.items():
        before = known.get(name)
        if before is None or (before.kind, before.reason) != (kind, reason):
            since = before.since if before and before.kind is kind else draft.now
            draft.put_drift(Drift(host=host, name=name, kind=kind, reason=reason, since=since))
            if kind is DriftKind.MISSING:
                draft.note("vm.missing", draft.vm(name))
            else:
                draft.note("drift.noticed", host=host, vm=_vm_named(draft, name), name=name, kind=kind, why=reason)
    for name in sorted(known.keys() - found.keys()):
        draft.remove_drift(host, name)
        vm = draft.world.vms.get(name)
        if known[name].kind is not DriftKind.MISSING:
            draft.note("drift.settled", host=host, vm=_vm_named(draft, name), name=name, kind=known[name].kind)
        elif vm and vm.host == host:
            draft.note("vm.found", vm)


def _vm_named(draft: Draft, name: str) -> str | None:
    return name if name in draft.world.vms else None
