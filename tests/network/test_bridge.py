"""On a bridge with our rules nobody is taken for another VM. Each attack is first shown to work without them."""

import itertools
import json
import struct
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
from tests.acceptance.running import until
from tests.metadata.running import APPROVAL, EVENT_ID
from tests.namespaces import require_namespaces
from tests.network import frames
from tests.network.bridge import BLOCKED, ENDPOINT, ENDPOINT6, Machine, Network, assert_silence, network

from forenotice.metadata import interfaces
from forenotice.network import nft
from forenotice.network.rules import METADATA, Port, Ruleset
from forenotice.settings import Address


@pytest.fixture(scope="module")
def built() -> Iterator[Network]:
    require_namespaces("nft", "curl")
    with network() as made, made.with_endpoint():
        yield made


@pytest.fixture
def bridge(built: Network) -> Network:
    """Without rules, and as if nobody had ever done anything wrong."""
    built.unload()
    built.forget()
    built.server.guests.approvals.clear()
    built.learn()
    return built


def test_each_vm_gets_its_own_document(bridge: Network) -> None:
    for rules in (False, True):
        if rules:
            bridge.load()
        for at in (ENDPOINT, ENDPOINT6):
            assert (bridge.web.ask(at=at), bridge.db.ask(at=at)) == ("web-0", "db")
            assert EVENT_ID in bridge.web.ask("events", at=at)
            assert EVENT_ID not in bridge.db.ask("events", at=at)
    bridge.web.ask("events", body=APPROVAL.decode())
    assert [each.vm for each in bridge.server.guests.approvals] == ["web-0"]
    # All else goes on as before.
    assert bridge.web.reaches(bridge.db.addresses[0])
    assert bridge.web.reaches(bridge.db.addresses[1])
    assert bridge.web.reaches(bridge.stranger.addresses[0])
    assert bridge.web.reaches(bridge.outside.addresses[0])


def enemy(bridge: Network, role: str) -> tuple[Machine, dict[str, object]]:
    """Who attacks, and what the rules know of it."""
    if role == "uplink":
        return bridge.stranger, {"uplinks": ("tap-x",)}
    return getattr(bridge, role), {}


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("attacker", ["db", "stranger", "uplink"])
def test_a_spoofed_address_gets_nothing(bridge: Network, attacker: str, version: int) -> None:
    thief, known = enemy(bridge, attacker)
    stolen, at = (bridge.web.addresses[0], ENDPOINT) if version == 4 else (bridge.web.addresses[1], ENDPOINT6)
    # The owner is away, so that nobody contradicts.
    bridge.web.run("ip", "link", "set", "eth0", "down")
    thief.run("ip", "address", "add", stolen, "dev", "eth0", *(["nodad"] if version == 6 else []))
    try:
        bridge.host.run("ip", "neigh", "flush", "all")
        assert thief.ask(source=stolen, at=at) == "web-0"
        assert EVENT_ID in thief.ask("events", source=stolen, at=at)
        thief.ask("events", source=stolen, at=at, body=APPROVAL.decode())
        assert [each.vm for each in bridge.server.guests.approvals] == ["web-0"]

        bridge.load(**known)
        bridge.server.guests.approvals.clear()
        polls = bridge.server.server.counters.polls_2xx
        assert_silence(
            *(partial(thief.ask, "events", source=stolen, at=at, body=body) for body in ("", APPROVAL.decode()))
        )
        assert bridge.server.server.counters.polls_2xx == polls
        assert bridge.server.guests.approvals == []
    finally:
        thief.run("ip", "address", "del", stolen, "dev", "eth0")
        bridge.web.run("ip", "link", "set", "eth0", "up")
        bridge.web.run("ip", "address", "replace", f"{bridge.web.addresses[1]}/64", "dev", "eth0", "nodad")
        bridge.web.run("ip", "route", "replace", "default", "via", bridge.host.addresses[0])
        bridge.web.run("ip", "route", "replace", ENDPOINT, "dev", "eth0")
    assert until(lambda: bridge.web.ask(at=at, seconds=BLOCKED)) == "web-0"
    if attacker == "db":
        assert bridge.db.ask(at=at) == "db"


CLAIMS = [
    # Who claims what, and who would believe it; with a tag that receivers take off, or without.
    ("db", "the endpoint", 4, "web", False),
    ("db", "the endpoint", 6, "web", False),
    ("db", "the gateway", 4, "web", False),
    ("db", "another VM", 4, "host", False),
    ("db", "another VM", 4, "host", True),
    ("db", "another VM", 6, "host", False),
    ("stranger", "the endpoint", 4, "web", False),
    ("stranger", "the endpoint", 4, "web", True),
    ("stranger", "the endpoint", 6, "web", True),
    ("stranger", "another VM", 4, "host", False),
    ("stranger", "another VM", 4, "host", True),
    ("stranger", "another VM", 6, "host", True),
    ("stranger", "another VM", 4, "db", False),
    ("uplink", "the endpoint", 4, "web", False),
    ("uplink", "another VM", 4, "host", False),
    ("uplink", "another VM", 6, "host", False),
]


@pytest.mark.parametrize(("attacker", "claim", "version", "believer", "tagged"), CLAIMS)
def test_a_claim_to_anothers_address_diverts_nothing(
    bridge: Network, attacker: str, claim: str, version: int, believer: str, tagged: bool
) -> None:
    liar, known = enemy(bridge, attacker)
    victim: Machine = getattr(bridge, believer)
    pairs = {
        "the endpoint": (ENDPOINT, ENDPOINT6),
        "the gateway": bridge.host.addresses,
        "another VM": bridge.web.addresses,
    }
    address = pairs[claim][version == 6]
    peer = bridge.host if victim is bridge.web else victim
    assert bridge.web.reaches(peer.addresses[version == 6])
    before = until(lambda: victim.neighbour(address))
    assert before == (bridge.web.mac if claim == "another VM" else bridge.host.mac)
    sender = frames.link_local(liar.mac)
    # To everybody, and as a reply to the victim.
    lies = [frames.arp(liar.mac, address), frames.arp(liar.mac, address, target=victim.addresses[0])]
    if version == 6:
        lies = [frames.advert(liar.mac, sender, address)]

    def lie() -> None:
        for each in lies:
            liar.raw.send(frames.tagged(each) if tagged else each)

    def told() -> str | None:
        lie()
        return victim.neighbour(address)

    until(lambda: told() == liar.mac, what=f"without rules {attacker} diverts {address}")
    victim.run("ip", "neigh", "flush", "all")
    bridge.load(**known)
    assert bridge.web.ask(at=(ENDPOINT, ENDPOINT6)[version == 6]) == "web-0"
    for _ in range(5):
        lie()
    # What it sends afterwards has arrived, so all of it would have.
    assert liar.reaches(bridge.web.addresses[0])
    assert victim.neighbour(address) in (before, None)
    assert bridge.web.ask(at=(ENDPOINT, ENDPOINT6)[version == 6]) == "web-0"


LLDP = "01:80:c2:00:00:0e"
"""Frames to it are for the bridge itself, and pass no rules."""


@pytest.mark.parametrize("to", [frames.BROADCAST, LLDP])
@pytest.mark.parametrize("attacker", ["db", "stranger"])
def test_a_foreign_mac_is_dropped(bridge: Network, attacker: str, to: str) -> None:
    """The bridge learns where a MAC is from any frame, and sends there what is for that MAC."""
    liar: Machine = getattr(bridge, attacker)
    port = {"db": "tap-db", "stranger": "tap-x"}[attacker]

    def place() -> str:
        lines = bridge.host.run("bridge", "fdb", "show", "br", "br0").splitlines()
        return next((line.split()[2] for line in lines if line.startswith(bridge.web.mac)), "")

    assert place() == "tap-web"
    lie = frames.udp(bridge.web.mac, liar.addresses[0], "255.255.255.255", (4000, 4000), to)
    # The VM itself may say at any time that it is elsewhere.
    until(lambda: liar.raw.send(lie) and place() == port, what="without rules the bridge believes it")
    bridge.load()
    assert bridge.web.ask() == "web-0"
    assert place() == "tap-web"
    for _ in range(5):
        liar.raw.send(lie)
    assert liar.reaches(bridge.host.addresses[0])
    assert place() == "tap-web"


def test_a_vm_does_not_rule_the_spanning_tree() -> None:
    """Its root could let the bridge forget at once where everybody is, and so send everything to all ports."""
    require_namespaces("bridge")
    host, db = Machine("host", "br0", "52:54:00:07:00:01"), Machine("db", "eth0", "52:54:00:07:00:05")
    with closing(host), closing(db):
        host.run("ip", "link", "add", "br0", "type", "bridge", "stp_state", "1")
        end = ("peer", "name", "eth0", "address", db.mac, "netns", str(db.pid))
        host.run("ip", "link", "add", "tap-db", "type", "veth", *end)
        host.run("ip", "link", "set", "tap-db", "master", "br0", "up")
        host.run("ip", "link", "set", "br0", "up")
        db.run("ip", "link", "set", "eth0", "up")

        def has_claimed() -> bool:
            db.raw.send(frames.bpdu(db.mac))
            (shown,) = json.loads(host.run("ip", "-json", "-details", "link", "show", "br0"))
            return bool(shown["linkinfo"]["info_data"]["root_port"])

        until(has_claimed, what="without rules the VM is the root")
        port = Port(port="tap-db", vm="db", mac=db.mac, addresses=("10.7.0.5",))
        interfaces.call_in(host.path, lambda: nft.run(Ruleset(bridges=("br0",), ports=(port,)).commands))
        until(lambda: not has_claimed(), what="the VM is the root no more")
        assert "state disabled" in host.run("bridge", "link", "show", "dev", "tap-db")


def test_what_a_vm_may_send(bridge: Network) -> None:
    """Whether each frame reaches another VM: without rules all of them do."""
    mac, (own, own6), (other, other6) = bridge.web.mac, bridge.web.addresses, bridge.db.addresses
    local = frames.link_local(mac)
    everybody, dhcp, rest = "255.255.255.255", (68, 67), bytes(12)
    router = frames.icmpv6(mac, local, frames.ROUTER_ADVERT, rest)
    allowed = {
        "its own ARP": frames.arp(mac, own),
        "the search for duplicates of its address": frames.arp(mac, "0.0.0.0", target=own, operation=1),
        "its announcement after a migration": frames.rarp(mac),
        "its own IPv4": frames.udp(mac, own, everybody, (4000, 4000)),
        "the search for a DHCP server": frames.udp(mac, "0.0.0.0", everybody, dhcp),
        "its own neighbour advertisement": frames.advert(mac, own6, own6),
        "the same, for its link-local address": frames.advert(mac, local, local),
        "the search for a neighbour": frames.solicit(mac, own6, other6),
        "the same by IPv6": frames.solicit(mac, "::", own6),
        "the same for its link-local address": frames.solicit(mac, "::", local),
        "the search for a router": frames.icmpv6(mac, "::", 133, bytes(4)),
        "what it listens to": frames.icmpv6(mac, "::", 131, bytes(20)),
        "the same in its second version": frames.icmpv6(mac, "::", 143, bytes(24)),
        "its own IPv6": frames.udp(mac, own6, "ff02::1", (4000, 4000)),
    }
    forbidden = {
        "another MAC": frames.udp("52:54:00:07:77:77", own, everybody, (4000, 4000)),
        "another MAC with its own ARP": frames.arp("52:54:00:07:77:77", own, hardware=mac),
        "another MAC inside ARP": frames.arp(mac, own, hardware=bridge.db.mac),
        "another's ARP": frames.arp(mac, other),
        "the search for duplicates of another's": frames.arp(mac, "0.0.0.0", target=other, operation=1),
        "the same of the endpoint's": frames.arp(mac, "0.0.0.0", target=ENDPOINT, operation=1),
        "the same of another's by IPv6": frames.solicit(mac, "::", other6),
        "another's ARP request": frames.arp(mac, other, target="10.7.0.1", operation=frames.REQUEST),
        "the endpoint's ARP": frames.arp(mac, ENDPOINT),
        "another's IPv4": frames.udp(mac, other, everybody, (4000, 4000)),
        "the endpoint's IPv4": frames.udp(mac, ENDPOINT, everybody, (80, 4000)),
        "no address, but not for DHCP": frames.udp(mac, "0.0.0.0", everybody, (4000, 4000)),
        "offers of a DHCP server": frames.udp(mac, own, everybody, (67, 68)),
        "another's neighbour advertisement": frames.advert(mac, own6, other6),
        "the endpoint's neighbour advertisement": frames.advert(mac, local, ENDPOINT6),
        "that of a link-local address": frames.advert(mac, local, frames.link_local(bridge.host.mac)),
        "another's IPv6": frames.udp(mac, other6, "ff02::1", (4000, 4000)),
        "another link-local address": frames.udp(mac, "fe80::1", "ff02::1", (4000, 4000)),
        "no IPv6 address, but not to find one": frames.udp(mac, "::", "ff02::1", (4000, 4000)),
        "advertisements of a router": router,
        "redirects": frames.icmpv6(mac, local, frames.REDIRECT, rest + bytes(24)),
        "offers of a DHCPv6 server": frames.udp(mac, own6, "ff02::1", (547, 546)),
        "what is for the endpoint": frames.udp(mac, own, ENDPOINT, (4000, 80)),
        "the search for the endpoint": frames.arp(mac, own, target=ENDPOINT, operation=frames.REQUEST),
        "what is for the endpoint by IPv6": frames.udp(mac, own6, ENDPOINT6, (4000, 80)),
        "what is neither ARP nor IP": frames.ethernet(mac, frames.LLDP, b"switch"),
        "its own in a VLAN": frames.tagged(frames.arp(mac, own), 7),
        "another's with a priority": frames.tagged(frames.arp(mac, other)),
        "another's in two tags": frames.tagged(frames.tagged(frames.arp(mac, other))),
    }
    # What the rules look for is in the second fragment.
    for kind in (0, 43, 44, 60):
        hidden = frames.first_fragment(mac, own6, bytes((17, 0, 1, 4, 0, 0, 0, 0)), kind)
        forbidden[f"what comes behind a header of kind {kind}"] = hidden
    lie = frames.payload(frames.advert(mac, own6, other6))
    forbidden["another's advertisement, its first bytes"] = frames.first_fragment(mac, own6, lie, 58)
    for name, frame in (allowed | forbidden).items():
        assert bridge.arrives(bridge.web, frame, bridge.db), f"without rules: {name}"
    bridge.load()
    found = {name: bridge.arrives(bridge.web, frame, bridge.db) for name, frame in (allowed | forbidden).items()}
    assert found == dict.fromkeys(allowed, True) | dict.fromkeys(forbidden, False)


def test_what_others_on_the_bridge_may_send(bridge: Network) -> None:
    """A port that is not in the rules may do as it likes, but be neither a VM nor the endpoint."""
    mac, (own, own6), (other, other6) = bridge.stranger.mac, bridge.stranger.addresses, bridge.web.addresses
    everybody = "255.255.255.255"
    allowed = {
        "its own ARP": frames.arp(mac, own),
        "any other ARP": frames.arp(mac, "10.7.0.200"),
        "a MAC of its own": frames.arp("52:54:00:07:77:77", own),
        "a VLAN": frames.tagged(frames.arp(mac, own), 7),
        "switches' own": frames.ethernet(mac, frames.LLDP, b"switch"),
        "DHCP": frames.udp(mac, own, everybody, (67, 68)),
        "its neighbour advertisement": frames.advert(mac, own6, own6),
    }
    forbidden = {
        "the endpoint's ARP": frames.arp(mac, ENDPOINT),
        "the same as a reply": frames.arp(mac, ENDPOINT, target=bridge.db.addresses[0]),
        "the same with a priority": frames.tagged(frames.arp(mac, ENDPOINT)),
        "the same in two tags": frames.tagged(frames.tagged(frames.arp(mac, ENDPOINT))),
        "the same in two tags, one for the bridge": frames.tagged(frames.tagged(frames.arp(mac, ENDPOINT)), 1),
        "the same in two tags, one for the guest": frames.tagged(frames.tagged(frames.arp(mac, ENDPOINT), 1)),
        "the endpoint's neighbour advertisement": frames.advert(mac, own6, ENDPOINT6),
        "the endpoint's IPv4": frames.udp(mac, ENDPOINT, everybody, (80, 4000)),
        "the endpoint's IPv6": frames.udp(mac, ENDPOINT6, "ff02::1", (80, 4000)),
    }
    as_a_vm = {
        "a VM's MAC": frames.arp(bridge.web.mac, own),
        "a VM's ARP": frames.arp(mac, other),
        "a VM's IPv4": frames.udp(mac, other, everybody, (4000, 4000)),
        "a VM's IPv6": frames.udp(mac, other6, "ff02::1", (4000, 4000)),
        "a VM's neighbour advertisement": frames.advert(mac, own6, other6),
    }
    every = allowed | forbidden | as_a_vm
    for name, frame in every.items():
        assert bridge.arrives(bridge.stranger, frame, bridge.db), f"without rules: {name}"
    bridge.load()
    found = {name: bridge.arrives(bridge.stranger, frame, bridge.db) for name, frame in every.items()}
    assert found == {name: name in allowed for name in every}
    # An uplink may bring a VM that has moved to another host, but the endpoint is here all the same.
    bridge.load(uplinks=("tap-x",))
    found = {name: bridge.arrives(bridge.stranger, frame, bridge.db) for name, frame in every.items()}
    assert found == {name: name in {*allowed, *as_a_vm, "the endpoint's IPv4"} for name in every}


def test_nobody_else_reaches_the_endpoint(bridge: Network) -> None:
    unknown = "No VM is known"
    others = (bridge.stranger, bridge.outside)
    for each in others:
        assert unknown in each.ask()
    assert unknown in bridge.stranger.ask(at=ENDPOINT6)
    bridge.load()
    assert_silence(*(each.ask for each in others), partial(bridge.stranger.ask, at=ENDPOINT6))
    for each in others:
        assert each.reaches(bridge.host.addresses[0])
    # From the host itself it is, as by a probe.
    assert unknown in bridge.host.ask()
    assert bridge.web.ask() == "web-0"
    # Nor do VMs through a bridge that is not named.
    bridge.host.run("nft", "-f", "-", input=bridge.ruleset(bridges=("br9",)).text())
    assert_silence(bridge.web.ask, partial(bridge.web.ask, at=ENDPOINT6))


@pytest.mark.parametrize("version", [4, 6])
def test_a_vms_address_is_of_no_use_outside_the_bridge(bridge: Network, version: int) -> None:
    """Responses go to the VM, but a request that needs none would do harm."""
    stolen, at = bridge.web.addresses[version == 6], (ENDPOINT, ENDPOINT6)[version == 6]
    assert bridge.outside.reaches(bridge.web.addresses[0])
    gateway = bridge.outside.neighbour("10.8.0.1") or ""
    number = itertools.count(5000)

    def is_answered() -> bool:
        """Whether the endpoint takes the first packet of a connection: the VM then gets the second."""
        port = next(number)
        bridge.web.forget_frames()
        bridge.outside.raw.send(frames.syn(bridge.outside.mac, stolen, at, (port, 80), gateway))
        last = frames.udp(bridge.outside.mac, "10.8.0.2", bridge.web.addresses[0], (port, port), gateway)
        bridge.outside.raw.send(last)
        ports, ended = struct.pack("!HH", 80, port), struct.pack("!HH", port, port)
        answered = False
        while ended not in (found := bridge.web.raw.recv(4096)):
            answered = answered or ports in found
        return answered

    assert is_answered()
    bridge.load()
    assert not is_answered()
    # Nor if somebody takes that interface for a bridge.
    bridge.host.run("nft", "-f", "-", input=bridge.ruleset(bridges=("br0", "eth1")).text())
    assert not is_answered()


def test_guests_are_led_to_where_the_service_listens(bridge: Network) -> None:
    """Where the host does not have the metadata address itself, and guests send everything to their gateway."""
    gateway = bridge.host.addresses[0]
    guests = (bridge.web, bridge.db, bridge.stranger)
    bridge.host.run("ip", "address", "del", f"{ENDPOINT}/32", "dev", "br0")
    for guest in guests:
        guest.run("ip", "route", "del", ENDPOINT)
    try:
        with bridge.serving(f"{gateway}:8254"):
            assert_silence(bridge.web.ask)
            assert "No VM is known" in bridge.outside.ask(at=f"{gateway}:8254")
            bridge.load(endpoints=(METADATA,), to=Address(host=gateway, port=8254))
            assert (bridge.web.ask(), bridge.db.ask()) == ("web-0", "db")
            others = (bridge.stranger.ask, bridge.outside.ask)
            assert_silence(*others, *(partial(ask, at=f"{gateway}:8254") for ask in others))
    finally:
        bridge.host.run("ip", "address", "add", f"{ENDPOINT}/32", "dev", "br0")
        for guest in guests:
            guest.run("ip", "route", "add", ENDPOINT, "dev", "eth0")


def test_answers_of_one_hop_do_not_pass_a_router(bridge: Network) -> None:
    """Such as the VM itself, for a container behind it."""
    container = Machine("container", "eth0", "52:54:00:09:00:02", "10.9.0.2")
    try:
        bridge.web.run(
            *("ip", "link", "add", "c0", "type", "veth", "peer", "name", "eth0", "netns", str(container.pid))
        )
        bridge.web.run("ip", "address", "add", "10.9.0.1/24", "dev", "c0")
        bridge.web.run("ip", "link", "set", "c0", "up")
        bridge.web.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        masquerade = "table ip t { chain c { type nat hook postrouting priority srcnat; oifname eth0 masquerade; }; }"
        bridge.web.run("nft", "-f", "-", input=masquerade)
        container.run("ip", "address", "add", "10.9.0.2/24", "dev", "eth0")
        container.run("ip", "link", "set", "eth0", "up")
        container.run("ip", "route", "add", "default", "via", "10.9.0.1")
        bridge.load()
        bridge.host.run("ip", "address", "add", "10.7.0.80/32", "dev", "br0")
        with bridge.serving("onehop:10.7.0.80:80"):
            assert container.ask() == "web-0"
            assert bridge.web.ask(at="10.7.0.80") == "web-0"
            assert_silence(partial(container.ask, at="10.7.0.80"))
    finally:
        bridge.web.attempt("ip", "link", "del", "c0")
        bridge.web.attempt("nft", "delete", "table", "ip", "t")
        bridge.host.attempt("ip", "address", "del", "10.7.0.80/32", "dev", "br0")
        container.close()
