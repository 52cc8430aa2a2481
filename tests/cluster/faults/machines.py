"""Machines of a cluster: network namespaces on one bridge, each of which can be cut off, and small disks."""

import http.client
import socket
import subprocess
from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing

from tests.acceptance.running import Said
from tests.namespaces import Namespace

from forenotice.metadata import interfaces

NETWORK = "10.77.0"
VMS = "10.99.0"
"""Addresses of VMs: every machine takes them for its own, so that a guest can speak from wherever its VM is."""
CUT = """
table inet fault {{
    chain input {{ type filter hook input priority 0; iifname eth0 {sources}drop; }}
    chain output {{ type filter hook output priority 0; oifname eth0 {targets}drop; }}
}}
"""


class Machine(Namespace):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.address = f"{NETWORK}.{number}"

    def cut_off(self, others: Collection["Machine"] = ()) -> None:
        """From these, or from all: packets are lost silently, those of connections that exist, too."""
        addresses = ", ".join(other.address for other in others)
        sources, targets = (f"ip {way} {{ {addresses} }} " if others else "" for way in ("saddr", "daddr"))
        self.run("nft", "-f", "-", input=CUT.format(sources=sources, targets=targets))

    def join_again(self) -> None:
        self.run("nft", "delete", "table", "inet", "fault")

    def ask(
        self,
        port: int,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        source: str = "127.0.0.1",
        seconds: float = 10,
    ) -> Said:
        """One request from this machine to itself. An OSError or HTTPException: it was not answered."""
        with closing(Connection(self, port, source, seconds)) as connection:
            return connection.ask(method, target, body, headers)


class Connection(http.client.HTTPConnection):
    """Within a machine, from one of its addresses; made again when it was lost."""

    def __init__(self, machine: Machine, port: int, source: str, seconds: float) -> None:
        super().__init__("127.0.0.1", port, timeout=seconds)
        self._machine = machine
        self._source = source

    def connect(self) -> None:
        self.sock = interfaces.call_in(self._machine.path, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        self.sock.settimeout(self.timeout)
        self.sock.bind((self._source, 0))
        self.sock.connect((self.host, self.port))

    def ask(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Said:
        try:
            self.request(method, target, body, dict(headers or {}))
            answer = self.getresponse()
            return Said(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        except (OSError, http.client.HTTPException):
            self.close()
            raise


def connect(machines: Collection[Machine], stack: ExitStack) -> None:
    """With each other, through a bridge in a namespace of its own."""
    switch = stack.enter_context(closing(Namespace()))
    lines = ["link add br0 type bridge forward_delay 0", "link set br0 up"]
    for number, machine in enumerate(machines):
        lines.append(f"link add port{number} type veth peer name eth0 netns {machine.pid}")
        lines.append(f"link set port{number} master br0 up")
    switch.run("ip", "-batch", "-", input="\n".join(lines))
    for machine in machines:
        lines = [
            f"address add {machine.address}/24 dev eth0",
            "link set eth0 up",
            f"route add local {VMS}.0/24 dev lo",
        ]
        machine.run("ip", "-batch", "-", input="\n".join(lines))


class Disk:
    """A small file system that nobody else sees; it lasts as long as a process of ours has it."""

    def __init__(self, at: str, megabytes: int) -> None:
        self.path = at
        mount = f"mount -t tmpfs -o size={megabytes}m tmpfs {at} && echo made && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", mount], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"made\n"

    @property
    def enter(self) -> tuple[str, ...]:
        return ("nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--")

    def fill(self) -> None:
        with open(self._filler, "ab", buffering=0) as file:
            try:
                while file.write(bytes(65536)):
                    pass
            except OSError:
                return

    def free(self) -> None:
        with open(self._filler, "wb"):
            """It has no bytes any more."""

    @property
    def _filler(self) -> str:
        return f"/proc/{self._holder.pid}/root{self.path}/filler"

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait(30)
