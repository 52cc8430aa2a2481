"""A host's bridge with three VMs in namespaces, the guests' endpoint at its usual address, and an outside."""

import contextlib
import itertools
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from tests.metadata.running import DB, DB_VM, EVENT, WEB, WEB_VMS, Running, running
from tests.namespaces import Namespace
from tests.network import frames

from forenotice import publication
from forenotice.metadata import interfaces
from forenotice.network import nft
from forenotice.network.rules import REMOVAL, Port, Ruleset
from forenotice.settings import values

ENDPOINT, ENDPOINT6 = "169.254.169.254", "fd07::fe"
BRIDGE = "br0"
TAPS = ("tap-web", "tap-db", "tap-x")
BLOCKED = 1
"""Seconds after which a connection that the rules forbid has not been made."""


class Machine(Namespace):
    """A namespace with one network card, which can also send frames that its system would not."""

    def __init__(self, name: str, interface: str, mac: str, *addresses: str) -> None:
        super().__init__()
        self.name, self.interface, self.mac, self.addresses = name, interface, mac, addresses
        self._raw: socket.socket | None = None

    @property
    def raw(self) -> socket.socket:
        if self._raw is None:
            self._raw = interfaces.call_in(self.path, lambda: frames.receiver(self.interface))
        return self._raw

    def forget_frames(self) -> None:
        """What has come so far could leave no room for more."""
        self.raw.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.raw.recv(4096):
                pass
        self.raw.settimeout(frames.SECONDS)

    def neighbour(self, address: str) -> str | None:
        """The MAC that it knows for an address."""
        found = re.search(r"lladdr (\S+)", self.run("ip", "neigh", "show", address))
        return found[1] if found else None

    def reaches(self, address: str) -> bool:
        """Whether packets go there and back."""

        def connect() -> bool:
            try:
                socket.create_connection((address, 9), 30).close()
            except ConnectionRefusedError:
                return True
            except OSError:
                return False
            raise AssertionError("nobody listens there")

        return interfaces.call_in(self.path, connect)

    def ask(
        self, what: str = "name", *, source: str = "", at: str = ENDPOINT, body: str = "", seconds: int = 30
    ) -> str:
        """The response's body, or "" if there is none."""
        paths = {
            "name": "/metadata/instance/compute/name?api-version=2021-02-01&format=text",
            "events": "/metadata/scheduledevents?api-version=2020-07-01",
        }
        url = f"http://{f'[{at}]' if at.count(':') > 1 else at}{paths[what]}"
        flags = (*(("--interface", source) if source else ()), *(("-d", body) if body else ()))
        return self.attempt("curl", "-sS", "--max-time", str(seconds), "-H", "Metadata: true", *flags, url).stdout

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()
        super().close()


def assert_silence(*requests: Callable[..., str]) -> None:
    """None of the requests gets a response; they wait for it at the same time."""
    with ThreadPoolExecutor() as pool:
        assert [*pool.map(lambda request: request(seconds=BLOCKED), requests)] == [""] * len(requests)


@dataclass
class Network:
    host: Machine
    web: Machine
    db: Machine
    stranger: Machine
    """On the bridge, but not in the rules."""
    outside: Machine
    """Behind the host, not on the bridge."""
    ports: Sequence[Port]
    server: Running = field(init=False)

    def load(self, **changes: object) -> None:
        """As `--apply` does."""
        rules = self.ruleset(**changes)
        interfaces.call_in(self.host.path, lambda: nft.run(rules.commands))
        interfaces.call_in(self.host.path, lambda: nft.load(rules.text()))

    def unload(self) -> None:
        self.host.run("nft", "-f", "-", input=REMOVAL)
        self.host.run("ip", "link", "set", BRIDGE, "type", "bridge", "no_linklocal_learn", "0")

    def ruleset(self, **changes: object) -> Ruleset:
        endpoints = (values.address(f"{ENDPOINT}:80"), values.address(f"[{ENDPOINT6}]:80"))
        how: dict[str, object] = {"bridges": (BRIDGE,), "ports": tuple(self.ports), "endpoints": endpoints, **changes}
        return Ruleset(**how)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def with_endpoint(self) -> "Iterator[Network]":
        """At an address of the bridge, which each VM takes for one of its own network."""
        _addresses(self.host, f"{ENDPOINT}/32", f"{ENDPOINT6}/128")
        for guest in (self.web, self.db, self.stranger):
            guest.run("ip", "route", "add", ENDPOINT, "dev", "eth0")
        with self.serving(f"{ENDPOINT}:80", f"[{ENDPOINT6}]:80") as self.server:
            yield self

    @contextlib.contextmanager
    def serving(self, *listeners: str) -> Iterator[Running]:
        web = replace(WEB_VMS[0], addresses=self.web.addresses)
        fleet = (
            publication.of(WEB, vms=(web,), events=(EVENT,)),
            publication.of(DB, vms=(replace(DB_VM, addresses=self.db.addresses),)),
        )
        at = [values.listener(f"{each}@{self.host.path}") for each in listeners]
        with running(listeners=at, fleet=fleet) as server:
            yield server

    def learn(self) -> None:
        """Everybody knows who is where, as after any traffic."""
        for machine in (self.web, self.db):
            for address in (ENDPOINT, ENDPOINT6):
                assert machine.ask(at=address)

    def forget(self) -> None:
        """Nobody knows who is where, whatever they were told."""
        for machine in (self.host, self.web, self.db, self.stranger):
            machine.run("ip", "neigh", "flush", "all")

    def arrives(self, sender: Machine, frame: bytes, receiver: Machine) -> bool:
        """Whether a frame gets from one machine to another; what is sent after it does."""
        mark = frames.arp(sender.mac, sender.addresses[0], operation=99, target=f"10.7.9.{next(_MARKS)}")
        receiver.forget_frames()
        sender.raw.send(frame)
        sender.raw.send(mark)
        seen = False
        while True:
            found = receiver.raw.recv(4096)
            if found == mark:
                return seen
            # The kernel takes padding off, too.
            seen = seen or (len(found) >= SHORTEST and _untagged(frame).startswith(found))


SHORTEST = 42
"""Of frames: UDP without data."""
_MARKS = itertools.cycle(range(1, 255))


def _untagged(frame: bytes) -> bytes:
    """The kernel shows a tag beside a frame, not in it."""
    return frame[:12] + frame[16:] if frame[12:14] == b"\x81\x00" else frame


@contextlib.contextmanager
def network() -> Iterator[Network]:
    with contextlib.ExitStack() as stack:

        def machine(name: str, interface: str, number: int) -> Machine:
            addresses = (f"10.7.0.{number}", f"fd07::{number}")
            made = Machine(name, interface, f"52:54:00:07:00:{number:02x}", *addresses)
            return stack.enter_context(contextlib.closing(made))

        host = machine("host", BRIDGE, 1)
        host.run("ip", "link", "add", BRIDGE, "address", host.mac, "type", "bridge")
        # No delay before a port forwards, and no packets of its own.
        host.run("ip", "link", "set", BRIDGE, "type", "bridge", "forward_delay", "0", "mcast_snooping", "0")
        _addresses(host, *(f"{address}/64" if ":" in address else f"{address}/24" for address in host.addresses))
        host.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        guests = [machine(name, "eth0", 4 + number) for number, name in enumerate(("web-0", "db", "stranger"))]
        for port, guest in zip(TAPS, guests, strict=True):
            _join(host, guest, port)
        outside = stack.enter_context(contextlib.closing(Machine("outside", "eth0", "52:54:00:08:00:02", "10.8.0.2")))
        _wire(host, outside, "eth1")
        host.run("ip", "address", "add", "10.8.0.1/24", "dev", "eth1")
        host.run("ip", "link", "set", "eth1", "up")
        _addresses(outside, "10.8.0.2/24")
        outside.run("ip", "route", "add", "default", "via", "10.8.0.1")
        web, db, stranger = guests
        ports = [
            Port(port=port, vm=each.name, mac=each.mac, addresses=each.addresses)
            for port, each in zip(TAPS, (web, db), strict=False)
        ]
        yield Network(host=host, web=web, db=db, stranger=stranger, outside=outside, ports=ports)


def _join(host: Machine, guest: Machine, port: str) -> None:
    _wire(host, guest, port)
    host.run("ip", "link", "set", port, "master", BRIDGE, "up")
    _addresses(guest, *(f"{address}/64" if ":" in address else f"{address}/24" for address in guest.addresses))
    guest.run("ip", "route", "add", "default", "via", host.addresses[0])


def _wire(host: Machine, other: Machine, port: str) -> None:
    peer = ("peer", "name", other.interface, "address", other.mac, "netns", str(other.pid))
    host.run("ip", "link", "add", port, "type", "veth", *peer)


def _addresses(machine: Machine, *addresses: str) -> None:
    """Usable at once, and with neighbours that may change at any time."""
    machine.run("ip", "link", "set", machine.interface, "up")
    for address in addresses:
        machine.run("ip", "address", "add", address, "dev", machine.interface, *(["nodad"] if ":" in address else []))
    machine.run("sysctl", "-qw", f"net.ipv4.neigh.{machine.interface}.locktime=0")
