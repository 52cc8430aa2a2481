"""What `fleet discover` finds on hosts: their domains, and the fleet that these would be by the service's own rules."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from forenotice import logs, runtime, views
from forenotice.core import errors, fleet, inventory, membership
from forenotice.core.draft import Draft, World
from forenotice.core.fleet import Host
from forenotice.core.inventory import Domain, DomainState, Inventory
from forenotice.core.timing import Timing
from forenotice.drivers import inventory_rules
from forenotice.settings import LogFormat, LogLevel


class DiscoveredDomain(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    name: str
    uuid: str
    state: DomainState
    group: str | None = None
    update_domain: int | None = None
    fault_domain: int | None = None
    addresses: list[str] = []
    reason: str | None = None
    """Why it is not in the fleet; null: it is."""


class Discovered(msgspec.Struct, frozen=True, kw_only=True):
    domains: Sequence[DiscoveredDomain]
    fleet: "views.fleet.Fleet"


def discover(hosts: Sequence[str], rules: Path | None) -> Discovered:
    """Of hosts as URIs, or `NAME=URI`."""
    known = inventory_rules.load(rules) if rules else []
    from forenotice.drivers.libvirt.connections import Connections
    from forenotice.drivers.libvirt.inventory import LibvirtInventory

    logs.configure(LogLevel.ERROR, LogFormat.AUTO)
    own = runtime.Runtime()
    connections = Connections(own)
    watcher = LibvirtInventory(own, connections, lambda _: None)
    draft = Draft(World(), now=own.clock.now(), timing=Timing(), new_id=own.new_id, allows_loopback=True)
    try:
        for text in hosts:
            given, _, rest = text.partition("=")
            uri = rest if "://" in rest and "://" not in given else text
            itself = watcher.host_name(uri)
            name = itself if uri is text else given
            if name in draft.world.hosts:
                raise errors.RefusedError(
                    f"two hosts are called {name}: name one of them otherwise, such as other={uri}"
                )
            try:
                membership.add_host(draft, Host(name=name, address=uri, inventory="libvirt"))
            except errors.RefusedError as error:
                raise errors.RefusedError(f"{error.message}; to name the host, give NAME={uri}") from None
        watcher.follow({name: host.address or "" for name, host in draft.world.hosts.items()})
        answers = {name: watcher.list(name) for name in draft.world.hosts}
    finally:
        watcher.close()
        connections.close()
    inventory.require_own_machines({name: answer.machine for name, answer in answers.items()})
    listed = {name: answer.domains for name, answer in answers.items()}
    found = Inventory(listed, known)
    for name in listed:
        inventory.observe(draft, name, found)
    domains = [_domain(draft, found, host, domain) for host, some in listed.items() for domain in some]
    domains.sort(key=lambda each: (fleet.natural_key(each.host), fleet.natural_key(each.name)))
    world = draft.world
    return Discovered(domains=domains, fleet=views.fleet.Fleet.of(world.hosts, world.scopes, world.vms))


def _domain(draft: Draft, found: Inventory, host: str, domain: Domain) -> DiscoveredDomain:
    vm = draft.world.vms.get(draft.world.addresses.get(domain.uuid, ""))
    drift = draft.world.drift.get((host, domain.name[: inventory.LONGEST_NAME]))
    ours: dict[str, Any] = {}
    reason = None
    if drift:
        reason = drift.reason
    elif vm and vm.host == host:
        ours = {"group": vm.group, "update_domain": vm.update_domain, "fault_domain": vm.fault_domain}
        ours["addresses"] = list(vm.addresses)
    elif found.facts(host, domain) is None:
        reason = "a rule ignores it"
    else:
        reason = f"it is on host {vm.host}" if vm else "it is being migrated, or has not begun to run"
    return DiscoveredDomain(host=host, name=domain.name, uuid=domain.uuid, state=domain.state, reason=reason, **ours)


def brief(found: "views.fleet.Fleet") -> dict[str, Any]:
    """As a document, without what is as it would be anyway."""
    return {
        "hosts": {name: msgspec.to_builtins(host) for name, host in found.hosts.items()},
        "groups": {name: _differing(group) for name, group in found.groups.items()},
        "vms": {name: _differing(vm) for name, vm in found.vms.items()},
    }


def _differing(table: msgspec.Struct) -> Mapping[str, Any]:
    usual = {each.name: each.default for each in msgspec.structs.fields(table)}
    plain = msgspec.to_builtins(table)
    kept = [name for name, value in usual.items() if getattr(table, name) != value and name not in ("policy", "facts")]
    return {name: plain[name] for name in kept if plain[name] not in ([], None)}
