"""`forenotice network`: the rules that hold each VM to its own addresses."""

import sys
from typing import TYPE_CHECKING

import msgspec

from forenotice import views
from forenotice.cli import commands
from forenotice.cli.commands import Operator, Read, UsageError, complain, operator, option, switch
from forenotice.cli.output import counted, cut
from forenotice.core import errors
from forenotice.network import nft
from forenotice.network.rules import METADATA, REMOVAL, Port, Ruleset
from forenotice.settings import Address, values

if TYPE_CHECKING:
    from forenotice.drivers.libvirt.domains import Definition

app = commands.Group()

BRIDGED = ("bridge", "network")
"""Types of a domain's interfaces that are ports of a bridge."""


class Given(msgspec.Struct, frozen=True):
    """A port as it is given by hand."""

    port: str
    vm: str
    mac: str


class LeftOut(msgspec.Struct):
    vm: str
    port: str
    reason: str


class Found(msgspec.Struct, kw_only=True):
    """Ports of VMs, their bridges where these are known, and what cannot be in the rules."""

    ports: list[Port] = []
    bridges: list[str] = []
    left_out: list[LeftOut] = []


class Rules(Found, kw_only=True):
    """What `network rules --json` prints."""

    text: str
    applied: bool


def _port(text: str) -> Given:
    port, _, rest = text.partition("=")
    vm, _, mac = rest.partition(",")
    if not vm or not mac:
        raise ValueError(f"{text!r} is not PORT=VM,MAC: give one such as vnet0=web-0,52:54:00:12:34:56")
    return Given(values.interface(port), values.vm_name(vm), mac.lower())


@operator(
    app,
    "rules",
    option("--host", "HOST", "The host; its libvirt names the ports.", shell_complete=commands.names("hosts")),
    option("--port given", "PORT=VM,MAC", "A port by hand; may be repeated.", multiple=True, type=Read(_port)),
    option("--bridge bridges", "NAME", "A bridge; may be repeated.", multiple=True, type=Read(values.interface)),
    option(
        "--uplink uplinks",
        "PORT",
        "A port that leads to other machines; may be repeated.",
        multiple=True,
        type=Read(values.interface),
    ),
    option(
        "--at endpoints",
        "ADDRESS:PORT",
        "Where guests call; may be repeated.",
        multiple=True,
        type=Read(values.address),
        default=[str(METADATA)],
    ),
    option("--to", "ADDRESS:PORT", "Where the service listens, if elsewhere.", type=Read(values.address)),
    switch("--apply", "Load the rules into the kernel of this machine."),
    switch("--remove", "Remove the rules from the kernel of this machine."),
)
def rules(
    ctx: Operator,
    host: str | None,
    given: tuple[Given, ...],
    bridges: tuple[str, ...],
    uplinks: tuple[str, ...],
    endpoints: tuple[Address, ...],
    to: Address | None,
    apply: bool,
    remove: bool,
) -> None:
    """Print nftables rules for the bridges of a host: each VM sends with its own addresses only.

    Without --apply nothing is changed. Run it again when VMs or their addresses change.
    """
    if remove:
        if host or given or bridges or uplinks or to or apply:
            raise UsageError("--remove removes all of the rules: give it alone")
        nft.load(REMOVAL)
        ctx.out.result(Rules(text=REMOVAL, applied=True), "The rules are removed.")
        return
    if (host is None) == (not given):
        raise UsageError("give either --host, whose libvirt names the ports of its VMs, or --port for each of them")
    found = _by_hand(ctx, given) if host is None else _by_libvirt(ctx, host)
    found.bridges = [*dict.fromkeys((*bridges, *found.bridges))]
    made = Ruleset(bridges=(*found.bridges,), ports=(*found.ports,), uplinks=uplinks, endpoints=endpoints, to=to)
    text = made.text()
    for each in found.left_out:
        complain(f"warning: {each.port} of {each.vm} is left out: {each.reason}")
    if apply:
        nft.require_interfaces((*found.bridges, *(port.port for port in found.ports), *uplinks))
        nft.run(made.commands)
        nft.load(text)
    if apply or ctx.out.json:
        result = Rules(**msgspec.structs.asdict(found), text=text, applied=apply)
        ctx.out.result(result, f"Applied the rules for {counted(len(found.ports), 'port')} of {cut(found.bridges)}.")
    else:
        sys.stdout.write(text)


def _by_hand(ctx: Operator, given: tuple[Given, ...]) -> Found:
    vms = {name: ctx.api.get(views.fleet.Vm, "vms", name) for name in {each.vm for each in given}}
    return Found(
        ports=[Port(port=each.port, vm=each.vm, mac=each.mac, addresses=(*vms[each.vm].addresses,)) for each in given]
    )


def _by_libvirt(ctx: Operator, host: str) -> Found:
    vms = [*ctx.api.items(views.fleet.Vm, "vms", host=host)]
    domains = _domains(ctx, host)
    by_id = {vm.vm_id.lower(): vm for vm in vms}
    # A domain with the VM's id is the VM, and then no other is, whatever its name.
    by_name = {vm.name: vm for vm in vms if vm.vm_id.lower() not in {domain.uuid for domain in domains}}
    found = Found()
    for domain in domains:
        vm = by_id.get(domain.uuid) or by_name.get(domain.name)
        for interface in domain.interfaces:
            if vm is None:
                reason = f"it is no VM of {host} in the fleet"
            elif interface.type not in BRIDGED or not interface.device:
                reason = f"its type {interface.type!r} is not a port of a bridge"
            elif not vm.addresses:
                reason = f"the VM has no address in the fleet: `forenotice vm set {vm.name} --address IP`"
            else:
                found.ports.append(
                    Port(port=interface.device, vm=vm.name, mac=interface.mac, addresses=(*vm.addresses,))
                )
                found.bridges.append(interface.source)
                continue
            found.left_out.append(LeftOut(vm=domain.name, port=interface.device or interface.type, reason=reason))
    return found


def _domains(ctx: Operator, host: str) -> "list[Definition]":
    """Those that run on a host."""
    uri = ctx.api.get(views.fleet.Host, "hosts", host).address
    if uri is None:
        raise errors.RefusedError(
            f"host {host} has no address, so its libvirt cannot be asked: give it one with "
            f"`forenotice host set {host} --address qemu:///system`, or give the ports by hand with --port"
        )
    from forenotice import logs
    from forenotice.drivers.libvirt import connections, domains
    from forenotice.runtime import Runtime

    logs.configure(values.LogLevel.WARNING, values.LogFormat.AUTO)
    kept = connections.Connections(Runtime())
    try:
        # 1: VIR_CONNECT_LIST_DOMAINS_ACTIVE
        texts = kept.to(uri).ask(lambda link: [each.XMLDesc() for each in link.listAllDomains(1)])
    finally:
        kept.close()
    return [domains.parse(text) for text in texts]
