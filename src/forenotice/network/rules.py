"""nftables rules for the bridges of a host: each port sends as its own VM only, and only VMs reach the endpoint.

Three kinds of callers: *ports* of VMs, which send with their own addresses only; *uplinks*, which lead to other
machines; and strangers, all other ports of all bridges. The last two may do as they like, but for what would make them
a VM or the endpoint. The rules need no name of a stranger, so a port that appears later is one. Through an uplink comes
what a VM sends that has moved; this machine itself does not believe it.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from forenotice.core import errors, fleet
from forenotice.settings import Address, values

TABLES = ("bridge", "inet")
NAME = "forenotice"
METADATA = Address(host="169.254.169.254", port=80)
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
REMOVAL = "".join(f"table {family} {NAME}\ndelete table {family} {NAME}\n" for family in TABLES)
"""Of a table that may not be there: it is made first."""
ADVERT, SOLICIT = (f"icmpv6 type nd-neighbor-{kind} @th,64,128" for kind in ("advert", "solicit"))
"""What tells of a neighbour, and what asks for it, by its target; nftables before 1.0.7 has no word for that."""
NESTED_TAGS = "@ll,96,16 { 0x8100, 0x88a8 } @ll,128,16 { 0x8100, 0x88a8 }"
"""A tag before another: our rules do not see what is inside. Guests take off those of VLAN 0, and bridges their own."""

IP = ipaddress.IPv4Address | ipaddress.IPv6Address


class RulesError(errors.RefusedError):
    """No rules can be made of this."""

    code = "usage"


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A port of a bridge, and the VM behind it."""

    port: str
    vm: str
    mac: str
    addresses: tuple[str, ...]

    @property
    def ips(self) -> "tuple[IP, ...]":
        """Its addresses, and the link-local one that belongs to its MAC."""
        high, low = self.mac.replace(":", "")[:6], self.mac.replace(":", "")[6:]
        interface = int(f"{high}fffe{low}", 16) ^ 0x0200_0000_0000_0000
        return (*map(_ip, self.addresses), ipaddress.IPv6Address((0xFE80 << 112) | interface))


class Ruleset(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules are made of. Nothing but names, MACs and addresses gets into their text."""

    bridges: tuple[str, ...]
    ports: tuple[Port, ...]
    uplinks: tuple[str, ...] = ()
    endpoints: tuple[Address, ...] = (METADATA,)
    """Where guests call."""
    to: Address | None = None
    """Where the service listens, if not there."""

    def __post_init__(self) -> None:
        names = [*(port.port for port in self.ports), *self.uplinks]
        try:
            for name in (*self.bridges, *names):
                values.interface(name)
        except ValueError as error:
            raise RulesError(str(error)) from None
        if len(names) != len(set(names)):
            raise RulesError("the same port is given twice: give each once")
        if not self.bridges:
            raise RulesError("no bridge is known: give --bridge NAME")
        self._require_ports()
        self._require_places()

    def _require_ports(self) -> None:
        owners: dict[str, str] = {}
        for port in self.ports:
            if not MAC.fullmatch(port.mac):
                raise RulesError(f"{port.mac!r} is not a MAC: give one such as 52:54:00:12:34:56")
            if (owner := owners.setdefault(port.mac, port.vm)) != port.vm:
                raise RulesError(f"VMs {owner} and {port.vm} have the same MAC {port.mac}: give one of them another")
            if not fleet.NAME.fullmatch(port.vm):
                raise RulesError(f"{port.vm!r} is not the name of a VM")
            if not port.addresses:
                raise RulesError(
                    f"VM {port.vm} has no address in the fleet, and would be cut off: give it its addresses with "
                    f"`forenotice vm set {port.vm} --address IP`"
                )

    def _require_places(self) -> None:
        for at in self.open_to_vms:
            ip = _host(at)
            if not at.port or ip.is_unspecified or ip.is_multicast or (ip.version == 6 and ip.is_link_local):
                raise RulesError(f"guests are not told apart at {at}: give the address and port that they call")
        if self.to is not None and _ip(self.to.host).is_loopback:
            raise RulesError(
                f"guests cannot be led to {self.to}: let the service listen at the bridge's own address and give that"
            )
        if self.to is not None and {_ip(each.host).version for each in self.endpoints} != {_ip(self.to.host).version}:
            raise RulesError(
                f"guests of another IP version cannot be led to {self.to}: give --at one address of its own"
            )
        claimed = {*map(_host, self.open_to_vms)} & {ip for port in self.ports for ip in port.ips}
        if claimed:
            raise RulesError(f"{claimed.pop()} is the address of a VM in the fleet, not of the endpoint")

    @property
    def open_to_vms(self) -> tuple[Address, ...]:
        return (*self.endpoints, *([self.to] if self.to else []))

    @property
    def commands(self) -> tuple[str, ...]:
        """What closes a bridge to frames to 01:80:c2:00:00:0x, which pass none of the rules.

        From their sender it would learn where a MAC is, and by those of the spanning tree a VM would become its root,
        and let the bridge forget where everybody is.
        """
        bridges = (f"ip link set dev {name} type bridge no_linklocal_learn 1" for name in self.bridges)
        ports = (f"ip link set dev {port.port} type bridge_slave guard on" for port in self.ports)
        return (*bridges, *ports)

    def text(self) -> str:
        """What `nft -f` takes: one transaction, in place of what was there before."""
        needed = ("# They need, too:", *(f"# {command}" for command in self.commands))
        return "\n".join((*needed, REMOVAL, *_bridge_table(self), "", *_inet_table(self), ""))


def _bridge_table(rules: Ruleset) -> Iterator[str]:
    ips = [ip for port in rules.ports for ip in port.ips if not ip.is_link_local]
    endpoints = {version: [ip for ip in map(_host, rules.endpoints) if ip.version == version] for version in (4, 6)}
    yield f"table bridge {NAME} {{"
    yield _set("macs", "type ether_addr", sorted({port.mac for port in rules.ports}))
    yield from _address_sets(ips)
    yield _set("targets", "typeof @th,64,128", [_hex(ip) for ip in sorted(_of(ips, 6))])
    yield _chain(
        "from_vm",
        "ether type ip udp sport 67 drop",
        "ether type ip6 udp sport 547 drop",
        "ether type ip6 icmpv6 type { nd-router-advert, nd-redirect } drop",
        # The rest of the headers, or what an advertisement says, can be in the next fragment.
        "ether type ip6 frag nexthdr { 0, 43, 44, 60 } drop",
        "ether type ip6 exthdr frag exists icmpv6 type nd-neighbor-advert drop",
    )
    for port in rules.ports:
        yield f"\t# VM {port.vm}"
        yield _chain(f"port_{port.port}", *_own(port))
    yield _chain(
        "as_a_vm",
        "meta protocol arp arp saddr ip @addresses4 drop",
        "meta protocol ip ip saddr @addresses4 drop",
        "meta protocol ip6 ip6 saddr @addresses6 drop",
        f"meta protocol ip6 {ADVERT} @targets drop",
    )
    yield _chain(
        "stranger",
        *(f"meta protocol arp arp saddr ip {ip} drop" for ip in endpoints[4]),
        *(f"meta protocol ip6 {ADVERT} {_hex(ip)} drop" for ip in endpoints[6]),
        *(f"meta protocol ip6 ip6 saddr {ip} drop" for ip in endpoints[6]),
        f"{NESTED_TAGS} @ll,116,12 0 drop",
        f"{NESTED_TAGS} @ll,148,12 0 drop",
        *([f"iifname {_names(rules.uplinks)} return"] if rules.uplinks else []),
        *(f"meta protocol ip ip saddr {ip} drop" for ip in endpoints[4]),
        "ether saddr @macs drop",
        "goto as_a_vm",
    )
    verdicts = ", ".join(f'"{port.port}" : goto port_{port.port}' for port in rules.ports)
    yield _chain(
        "prerouting",
        "type filter hook prerouting priority -300; policy accept;",
        *([f"iifname vmap {{ {verdicts} }}"] if verdicts else []),
        "goto stranger",
    )
    if rules.uplinks:
        yield _chain(
            "input",
            "type filter hook input priority -200; policy accept;",
            f"iifname {_names(rules.uplinks)} goto as_a_vm",
        )
    # What is for the endpoint is for this machine alone.
    yield _chain(
        "forward",
        "type filter hook forward priority -200; policy accept;",
        *(f"meta protocol arp arp daddr ip {ip} drop" for ip in endpoints[4]),
        *(f"meta protocol ip ip daddr {ip} drop" for ip in endpoints[4]),
        *(f"meta protocol ip6 ip6 daddr {ip} drop" for ip in endpoints[6]),
    )
    yield "}"


def _own(port: Port) -> Iterator[str]:
    """What a VM may send: nothing in a VLAN, and nothing that is not named here."""
    own4, own6 = (", ".join(map(str, sorted(_of(port.ips, version)))) for version in (4, 6))
    targets = ", ".join(map(_hex, sorted(_of(port.ips, 6))))
    arp = f"ether type arp arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp saddr ether {port.mac}"
    yield "jump from_vm"
    yield f"ether saddr != {port.mac} drop"
    # The search for duplicates of an address is for its own: whoever begins to use an address gives it up if another
    # searches for it at the same time.
    if own4:
        yield f"{arp} arp saddr ip {{ {own4} }} accept"
        yield f"{arp} arp saddr ip 0.0.0.0 arp daddr ip {{ {own4} }} accept"
    # How qemu tells switches where a VM is after a migration.
    yield "ether type 0x8035 accept"
    if own4:
        yield f"ether type ip ip saddr {{ {own4} }} accept"
    yield "ether type ip ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp sport 68 udp dport 67 accept"
    yield f"ether type ip6 {ADVERT} != {{ {targets} }} drop"
    yield f"ether type ip6 ip6 saddr {{ {own6} }} accept"
    yield f"ether type ip6 ip6 saddr :: {SOLICIT} {{ {targets} }} accept"
    kinds = "nd-router-solicit, mld-listener-report, mld2-listener-report"
    yield f"ether type ip6 ip6 saddr :: icmpv6 type {{ {kinds} }} accept"
    yield "drop"


def _inet_table(rules: Ruleset) -> Iterator[str]:
    bridges = _names(rules.bridges)
    ips = [ip for port in rules.ports for ip in port.ips if not ip.is_link_local]
    yield f"table inet {NAME} {{"
    yield from _address_sets(ips)
    if rules.to is not None:
        to = f"dnat {_family(rules.to)} to {rules.to}"
        yield _chain(
            "prerouting",
            "type nat hook prerouting priority dstnat; policy accept;",
            *(f"iifname {bridges} {_from_vms(at)} {_called(at)} {to}" for at in rules.endpoints),
        )
    yield _chain(
        "input",
        "type filter hook input priority filter - 10; policy accept;",
        'iifname "lo" accept',
        *(f"iifname != {bridges} {_called(at)} drop" for at in rules.open_to_vms),
        # What comes from anything else has not passed the rules of bridges.
        *(f'meta iifkind != "bridge" {_called(at)} drop' for at in rules.open_to_vms),
        *(f"{_called(at)} {_from_vms(at, others=True)} drop" for at in rules.open_to_vms),
    )
    yield "}"


def _called(at: Address) -> str:
    return f"{_family(at)} daddr {_host(at)} tcp dport {at.port}"


def _from_vms(at: Address, *, others: bool = False) -> str:
    return f"{_family(at)} saddr {'!= ' if others else ''}@addresses{_host(at).version}"


def _family(at: Address) -> str:
    return "ip" if _host(at).version == 4 else "ip6"


def _address_sets(ips: "Sequence[IP]") -> Iterator[str]:
    yield _set("addresses4", "type ipv4_addr", map(str, sorted(_of(ips, 4))))
    yield _set("addresses6", "type ipv6_addr", map(str, sorted(_of(ips, 6))))


def _set(name: str, kind: str, elements: Iterable[str]) -> str:
    listed = ", ".join(elements)
    return _block(f"set {name}", kind, *([f"elements = {{ {listed} }}"] if listed else []))


def _block(head: str, *lines: str) -> str:
    return "\n".join((f"\t{head} {{", *(f"\t\t{line}" for line in lines), "\t}"))


def _chain(name: str, *lines: str) -> str:
    return _block(f"chain {name}", *lines)


def _names(names: Iterable[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"{{ {quoted} }}"


def _of(ips: "Iterable[IP]", version: int) -> "set[IP]":
    return {ip for ip in ips if ip.version == version}


def _ip(text: str) -> "IP":
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        ip = None
    if ip is None or getattr(ip, "scope_id", None) is not None:
        raise RulesError(f"{text!r} is not an IP address without a zone: give one such as 169.254.169.254")
    return ip


def _host(at: Address) -> "IP":
    return _ip(at.host)


def _hex(ip: "IP") -> str:
    return f"0x{int(ip):032x}"
