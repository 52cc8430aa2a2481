"""A libvirt host in namespaces: libvirtd with mounts, a network, a host name and processes of its own.

Nothing of it is seen outside but the socket of its libvirtd, and the directory that it was given.
"""

import errno
import grp
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

import msgspec

from forenotice.control_socket import LONGEST
from forenotice.core import errors
from forenotice.lab import host_process, packages
from forenotice.programs import background
from forenotice.programs.background import Process

BRIDGE = "br0"
METADATA = "169.254.169.254"
GATEWAY, GUESTS = "10.77.0.1", 16
"""The host's address in the guests' network, and the length of that network's prefix."""
MAC = "52:54:00:77:00:01"
"""Every host's bridge has it, so that a guest that was moved alive finds its endpoint at once."""
FILE = "host.json"
SOCKET = "libvirt-sock"
UNPRIVILEGED = (
    "without root, user namespaces must be allowed, and may have to mount /proc; docs/lab.md says what that takes, or "
    "run this as root"
)
PRIVILEGED = "run this where root may make namespaces; a container needs the capability CAP_SYS_ADMIN for it"
ROOTLESS = ["unshare", "--user", "--map-root-user"]
START_SECONDS = 60.0
LOOK = 0.02
END_SECONDS = 30.0
CACHE = "/var/cache/libvirt"
PLACES = {"/etc/libvirt": "etc", "/var/lib/libvirt": "lib", CACHE: "cache", "/var/log/libvirt": "log"}
"""Where libvirtd keeps things, and the directories that take their place."""
LIBVIRTD = """\
unix_sock_dir = "{sockets}"
unix_sock_rw_perms = "0700"
unix_sock_ro_perms = "0700"
auth_unix_rw = "none"
auth_unix_ro = "none"
host_uuid = "{uuid}"
log_outputs = "3:file:/var/log/libvirt/libvirtd.log"
"""
QEMU = """\
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
migration_host = "{address}"
"""


class HostError(errors.UnavailableError):
    """The lab's host cannot be started."""

    code = "lab_host"


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What `host.json` holds."""

    name: str
    number: int
    sockets: str
    process: Process


class Host:
    """Made by `start` or `find`. All that runs on it is in a process namespace, and ends with its first process."""

    def __init__(self, directory: Path, recorded: Recorded, starter: "subprocess.Popen[str] | None" = None) -> None:
        self.directory = directory
        self.name, self.number = recorded.name, recorded.number
        self._recorded, self._starter = recorded, starter

    @classmethod
    def start(
        cls,
        name: str,
        directory: Path,
        *,
        number: int = 1,
        sockets: Path | None = None,
        cache: Path | None = None,
        beside: "Host | None" = None,
        bound: bool = False,
    ) -> "Host":
        """`number` is different for each host of a lab. `sockets` is a directory with a short path.

        Domains that are defined stay in `directory`, and are there when a host is started in it again. Hosts may share
        a `cache`, so that only the first asks QEMU what it can do. Users other than root name a running host `beside`
        which another is started, because both need the same user namespace. With `bound`, the host ends with the
        thread that starts it, however that ends.
        """
        packages.require(("libvirtd", "qemu-system-x86_64", "ip", "unshare", "setpriv", "nsenter"))
        sockets = sockets or directory
        if len(os.fsencode(sockets / SOCKET)) + len("-admin") > LONGEST:
            raise HostError(f"the path {sockets} is too long for a socket: give a directory with a short one")
        own = {place: directory / name for place, name in PLACES.items()} | ({CACHE: cache} if cache else {})
        for made in (directory, sockets, *own.values()):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (former := cls.find(directory)) and former.is_alive:
            raise errors.ConflictError(f"host {name} is running already in {directory}: stop it first")
        _configure(name, directory, sockets, number)
        starter = _start(directory, beside, bound=bound)
        output = cast("IO[str]", starter.stdout)
        try:
            first = output.readline()
            if not first:
                raise HostError(f"host {name} cannot be started: {_why(starter, directory)}")
            recorded = Recorded(name=name, number=number, sockets=str(sockets), process=Process.of(int(first)))
            background.keep(directory / FILE, recorded)
            _tell(starter, _order(name, directory, sockets, own))
            if output.readline().encode() != host_process.READY:
                raise HostError(f"host {name} cannot be started: {_why(starter, directory)}")
        except BaseException:
            starter.kill()
            starter.wait()
            raise
        finally:
            output.close()
        return cls(directory, recorded, starter)

    @classmethod
    def find(cls, directory: Path) -> "Host | None":
        """What was started in this directory, perhaps by another process; perhaps it has ended."""
        try:
            return cls(directory, msgspec.json.decode((directory / FILE).read_bytes(), type=Recorded))
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    @property
    def uri(self) -> str:
        return f"qemu+unix:///system?socket={self._recorded.sockets}/{SOCKET}"

    @property
    def address(self) -> str:
        """By which other hosts reach this one, to migrate guests."""
        return address(self.number)

    @property
    def pid(self) -> int:
        """Of the first process in its namespaces."""
        return self._recorded.process.pid

    @property
    def netns(self) -> str:
        return f"/proc/{self.pid}/ns/net"

    @property
    def is_alive(self) -> bool:
        return self._recorded.process.is_alive

    def command(self, *argv: str) -> list[str]:
        """What runs a program in the host's network."""
        return [*self.enter(), f"--net={self.netns}", *argv]

    def enter(self) -> list[str]:
        """What runs a program with the rights that the host's programs have: root's, perhaps in a user namespace."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return [packages.program("nsenter"), f"--target={self.pid}", *user]

    def processes(self) -> list[Process]:
        """All in its process namespace."""
        return [each for each, _, _ in self._processes()]

    @property
    def libvirtd(self) -> Process | None:
        """None: it was killed. What it starts bears its name for a moment."""
        named = (each for each, name, parent in self._processes() if name == "libvirtd" and parent == self.pid)
        return next(named, None)

    def _processes(self) -> "Iterator[tuple[Process, str, int]]":
        """Each with its name and its parent, and none that has ended but is not reaped yet."""
        with suppress(OSError):
            namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
            if not self.is_alive:
                return
            for pid in filter(str.isdecimal, os.listdir("/proc")):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                        stat = Path(f"/proc/{pid}/stat").read_text()
                        name, _, rest = stat.partition("(")[2].rpartition(")")
                        state, parent, *_ = rest.split()
                        if state not in "ZX":
                            yield Process.of(int(pid)), name, int(parent)

    def kill_libvirtd(self) -> None:
        """With SIGKILL, and with it what it has only just forked; guests live on. Return when nobody listens.

        What one of its threads has forked bears the name of that thread and has its sockets until it is a program of
        its own. And its first thread may have ended before the others.
        """
        deadline, pause = time.monotonic() + END_SECONDS, threading.Event()
        while (found := self.libvirtd) or self.is_listening:
            if time.monotonic() > deadline:
                raise HostError(f"libvirtd of {self.name} has not ended after {END_SECONDS:g} s")
            if found:
                found.send(signal.SIGKILL)
            pause.wait(LOOK)

    def restart_libvirtd(self) -> None:
        """Return when it listens."""
        self.kill_libvirtd()
        self._recorded.process.send(host_process.AGAIN)
        deadline, pause = time.monotonic() + START_SECONDS, threading.Event()
        while not self.is_listening:
            if time.monotonic() > deadline:
                raise HostError(f"libvirtd of {self.name} does not listen after {START_SECONDS:g} s")
            pause.wait(LOOK)

    @property
    def is_listening(self) -> bool:
        """Whether its libvirtd takes connections."""
        with socket.socket(socket.AF_UNIX) as tried:
            return tried.connect_ex(f"{self._recorded.sockets}/{SOCKET}") == 0

    def stop(self) -> None:
        """End it with everything that runs on it, as when its power is cut. Once more is no mistake."""
        process = self._recorded.process
        process.send(signal.SIGKILL)
        if not process.wait(END_SECONDS):
            raise HostError(f"host {self.name} has not ended after {END_SECONDS:g} s: process {process.pid}")
        if self._starter is not None:
            self._starter.wait()
        for name in (SOCKET, f"{SOCKET}-ro", "libvirt-admin-sock"):
            (Path(self._recorded.sockets) / name).unlink(missing_ok=True)

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def address(number: int) -> str:
    return f"10.78.0.{number}"


def connect(one: Host, other: Host) -> None:
    """Join two hosts by a cable of their own, over which guests are migrated."""
    ends = (f"to-{other.number}", one), (f"to-{one.number}", other)
    _ip(one, "link", "add", ends[0][0], "type", "veth", "peer", "name", ends[1][0], "netns", str(other.pid))
    for (device, host), peer in zip(ends, (other, one), strict=True):
        _ip(host, "address", "add", host.address, "peer", peer.address, "dev", device)
        _ip(host, "link", "set", device, "up")


def _ip(host: Host, *arguments: str) -> None:
    command = host.command(packages.program("ip"), *arguments)
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise HostError(f"{host.name}: ip {' '.join(arguments)}: {done.stderr.strip()}")


def _configure(name: str, directory: Path, sockets: Path, number: int) -> None:
    etc = directory / "etc"
    own = uuid.uuid5(uuid.NAMESPACE_URL, str(directory.absolute()))
    (etc / "libvirtd.conf").write_text(LIBVIRTD.format(sockets=sockets, uuid=own))
    (etc / "qemu.conf").write_text(QEMU.format(address=address(number)))
    # libvirtd wants a user and a group that only some packages of it make.
    users, groups = [entry.pw_name for entry in pwd.getpwall()], [entry.gr_name for entry in grp.getgrall()]
    user = [] if "libvirt-qemu" in users else ["libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin"]
    more = [f"{name}:x:{number}:" for name, number in (("libvirt-qemu", 64055), ("kvm", 64056)) if name not in groups]
    for file, lines in (("passwd", user), ("group", more)):
        (directory / file).write_text("\n".join([Path("/etc", file).read_text().rstrip("\n"), *lines, ""]))
    (directory / "hosts").write_text(f"127.0.0.1 localhost\n{address(number)} {name}\n")


def _order(name: str, directory: Path, sockets: Path, own: Mapping[str, Path]) -> dict[str, object]:
    here = directory.absolute()
    return {
        "name": name,
        "directories": {
            **{place: str(path.absolute()) for place, path in own.items()},
            **{f"/etc/{file}": str(here / file) for file in ("passwd", "group", "hosts")},
        },
        "network": [line.split() for line in _network()],
        "ip": packages.program("ip"),
        "libvirtd": [packages.program("libvirtd"), "-f", "/etc/libvirt/libvirtd.conf", "-p", "/run/libvirtd.pid"],
        "path": packages.PATH,
        "output": str(here / "libvirtd.out"),
        "socket": str(sockets / SOCKET),
        "seconds": START_SECONDS,
    }


def _network() -> Iterator[str]:
    yield "link set lo up"
    yield f"link add {BRIDGE} address {MAC} type bridge forward_delay 0"
    yield f"address add {GATEWAY}/{GUESTS} dev {BRIDGE}"
    yield f"address add {METADATA}/32 dev {BRIDGE}"
    yield f"link set {BRIDGE} up"


def _start(directory: Path, beside: Host | None, *, bound: bool) -> "subprocess.Popen[str]":
    """The first process, which waits for its order."""
    command = [packages.program("unshare"), "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child"]
    if bound:
        command = [packages.program("setpriv"), "--pdeathsig", "KILL", *command]
    if os.geteuid():
        command = [*(beside.enter() if beside else ROOTLESS), *command]
    with (directory / "start.log").open("w") as said:
        return subprocess.Popen(  # noqa: S603
            [*command, sys.executable, "-I", "-S", host_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )


def _tell(starter: "subprocess.Popen[str]", order: dict[str, object]) -> None:
    with suppress(BrokenPipeError), cast("IO[str]", starter.stdin) as pipe:
        pipe.write(json.dumps(order) + "\n")


def _why(starter: "subprocess.Popen[str]", directory: Path) -> str:
    """What it said at its end."""
    with suppress(subprocess.TimeoutExpired):
        starter.wait(END_SECONDS)
    said = [*(directory / "start.log").read_text().split("\n"), *_tail(directory / "libvirtd.out")]
    why = "; ".join(line.strip() for line in said if line.strip()) or f"exit code {starter.returncode}"
    return f"{why}: {UNPRIVILEGED if os.geteuid() else PRIVILEGED}" if os.strerror(errno.EPERM) in why else why


def _tail(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(errors="replace").splitlines()[-3:]
    return []
