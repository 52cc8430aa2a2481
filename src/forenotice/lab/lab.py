"""A lab as a whole: hosts, guests and the service, from `up` to `down`, whoever was killed in between."""

import errno
import fcntl
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from forenotice.core import errors
from forenotice.lab import agent, guests, hosts, image, packages
from forenotice.lab.guests import Guest
from forenotice.lab.hosts import Host
from forenotice.lab.service import Service
from forenotice.programs import background
from forenotice.runtime import Runtime

FILE, LOCK = "lab.json", "lab.lock"
OWN = frozenset({LOCK, f"{FILE}.new"})
"""What is there before there is a lab."""
UNUSABLE = frozenset(
    {errno.EACCES, errno.EDQUOT, errno.ENAMETOOLONG, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS}
)
"""Errors that are the directory's, or its file system's."""
BOOT_SECONDS, MORE_SECONDS = 150.0, 30.0
"""For the first guest and each other one. An emulated guest on a busy machine takes half a minute."""
LOOK = 0.1
MOST_HOSTS = 8
LONGEST_RUNTIME = 50
"""Bytes of a path, with which the sockets below it are still short enough."""
DRIVER = """\
driver = "libvirt"
storage = "shared"
"""
LISTENER = f"onehop:{hosts.METADATA}:80@"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a lab has; kept in `lab.json` from before anything is made."""

    hosts: tuple[str, ...] = ("host-a", "host-b")
    vms: tuple[str, ...] = ("vm-0",)
    group: str | None = None
    """Of all VMs."""
    memory: int = guests.MEMORY
    """MiB of each VM."""
    prepare: float = 2
    """Seconds that a guest prepares before it approves."""
    agents: int = 0
    """So many VMs, from the first, run our agent instead of a handler script."""
    accelerator: str = ""
    """`kvm` or `qemu`; empty: KVM is tried."""
    speed: float = 1
    control: str = "127.0.0.1:0"
    driver: str = DRIVER
    """The driver's file."""
    sockets: str = ""
    kernel: str = ""
    modules: str = ""
    ready: bool = False


def plan(*, vms: int, hosts: int, agents: int = 0, **more: Any) -> Plan:
    """By numbers of VMs and hosts; `more` are fields of the plan."""
    if not 1 <= hosts <= MOST_HOSTS:
        raise errors.RefusedError(f"a lab has 1 to {MOST_HOSTS} hosts, not {hosts}")
    if not 1 <= vms <= guests.MOST:
        raise errors.RefusedError(f"a lab has 1 to {guests.MOST} VMs, not {vms}")
    if not 0 <= agents <= vms:
        raise errors.RefusedError(f"of {vms} VMs, 0 to {vms} run our agent, not {agents}")
    return Plan(
        hosts=tuple(f"host-{letter}" for letter in "abcdefgh"[:hosts]),
        vms=tuple(f"vm-{number}" for number in range(vms)),
        agents=agents,
        **more,
    )


def silent(_: str) -> None:
    """Says nothing."""


@dataclass(kw_only=True)
class Lab:
    """Made by `up` or `find`; as a context manager it goes down at the end."""

    directory: Path
    plan: Plan
    hosts: dict[str, Host] = field(default_factory=dict)
    bound: bool = False

    # Its life

    @classmethod
    def up(
        cls, directory: Path, plan: Plan | None = None, *, bound: bool = False, say: Callable[[str], None] = silent
    ) -> "Lab":
        """Return when every guest has polled. With `bound`, all of it ends with the thread that calls this.

        Unless this process is killed, nothing is left after an error; `remove` removes what there is in any case.
        """
        directory = directory.absolute()
        with _held(directory):
            if (found := cls.find(directory)) is not None:
                raise errors.ConflictError(found.sentence)
            if any(name not in OWN for name in os.listdir(directory)):
                # Down would remove them.
                raise errors.ConflictError(
                    f"{directory} has files that are not a lab's: move them, or give another directory with --data"
                )
            lab = cls(directory=directory, plan=plan or Plan(), bound=bound)
            lab._keep(sockets=str(_runtime_directory() / f"forenotice-lab-{secrets.token_hex(4)}"))
            try:
                lab._make(say)
            except BaseException:
                if lab.hosts:
                    say("Ending what was started, so that nothing is left.")
                lab._remove()
                raise
        return lab

    @classmethod
    def find(cls, directory: Path) -> "Lab | None":
        try:
            with _usable(directory):
                plan = msgspec.json.decode((directory / FILE).read_bytes(), type=Plan)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        found = {name: host for name in plan.hosts if (host := Host.find(directory / "hosts" / name))}
        return cls(directory=directory, plan=plan, hosts=found)

    def down(self) -> None:
        """Once more is no mistake."""
        if self.directory.exists():
            with _held(self.directory):
                self._remove()

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def is_up(self) -> bool:
        """All of it."""
        alive = [host.is_alive for host in self.hosts.values()]
        return self.plan.ready and self.service.is_alive and len(alive) == len(self.plan.hosts) and all(alive)

    @property
    def sentence(self) -> str:
        if self.is_up:
            return (
                f"the lab is up, in {self.directory}: `forenotice lab status` shows it, `forenotice lab down` ends it"
            )
        return f"a lab in {self.directory} was not ended: run `forenotice lab down` first"

    # Its parts

    @cached_property
    def guests(self) -> dict[str, Guest]:
        plan = self.plan
        return {
            name: Guest(
                name=name,
                number=number,
                directory=self.directory / "guests",
                group=plan.group,
                memory=plan.memory,
                prepare=plan.prepare,
            )
            for number, name in enumerate(plan.vms)
        }

    @cached_property
    def service(self) -> Service:
        return Service(directory=self.directory)

    @cached_property
    def _connections(self) -> Any:
        from forenotice.drivers.libvirt.connections import Connections

        return Connections(Runtime())

    def ask(self, host: str, question: Callable[[Any], Any]) -> Any:
        """What the function makes of a `libvirt.virConnect` to this host."""
        return self._connections.to(self.hosts[host].uri).ask(question)

    def domain(self, guest: Guest) -> str:
        """Its XML."""
        kernel = image.Kernel(file=Path(self.plan.kernel), modules=Path(self.plan.modules))
        initrd = self._initrd_with_agent if self._runs_agent(guest) else self._initrd
        return guest.domain(kernel, initrd, self.plan.accelerator)

    def first_host(self, vm: str) -> str:
        """Where a VM is started."""
        return self.plan.hosts[self.plan.vms.index(vm) % len(self.plan.hosts)]

    @property
    def _initrd(self) -> Path:
        return self.directory / "initrd.gz"

    @property
    def _initrd_with_agent(self) -> Path:
        return self.directory / "initrd-with-agent"

    def _runs_agent(self, guest: Guest) -> bool:
        return guest.number < self.plan.agents

    # Up

    def _make(self, say: Callable[[str], None]) -> None:
        require()
        self._make_image(say)
        Path(self.plan.sockets).mkdir(mode=0o700)
        for name in self.plan.hosts:
            self.start_host(name)
        say(f"{packages.all_of(self.plan.hosts)} {'is' if len(self.hosts) == 1 else 'are'} up.")
        for name, guest in self.guests.items():
            guest.directory.mkdir(mode=0o700, exist_ok=True)
            guest.make_disks()
            self.ask(self.first_host(name), partial(_define, self.domain(guest)))
        driver = self.directory / "driver.toml"
        driver.touch(mode=0o600)
        driver.write_text(self.plan.driver)
        self.start_service()
        say(f"The service is up at http://{self.service.control}.")
        self._apply_fleet()
        self._await_guests(say)
        self._keep(ready=True)

    def _make_image(self, say: Callable[[str], None]) -> None:
        kernel = image.write(self._initrd)
        if self.plan.agents:
            agent.write(self._initrd_with_agent, self._initrd, self.plan.prepare)
        say(f"The guests' image is made, of the kernel {kernel.version} and busybox.")
        if not (accelerator := self.plan.accelerator):
            accelerator = guests.accelerator(kernel, self._initrd)
            say("Guests run on KVM." if accelerator == "kvm" else "KVM boots no guest here, so QEMU emulates them.")
        self._keep(kernel=str(kernel.file), modules=str(kernel.modules), accelerator=accelerator)

    def start_host(self, name: str) -> Host:
        """Also once more, after it was stopped; the service then has to be started again, to listen there."""
        others = [host for host in self.hosts.values() if host.name != name and host.is_alive]
        host = Host.start(
            name,
            self.directory / "hosts" / name,
            number=self.plan.hosts.index(name) + 1,
            sockets=Path(self.plan.sockets) / name,
            cache=self.directory / "cache",
            beside=next(iter(others), None),
            bound=self.bound,
        )
        for other in others:
            hosts.connect(other, host)
        self.hosts[name] = host
        return host

    def start_service(self) -> None:
        """It listens in the networks of the hosts that are up."""
        alive = [host for host in self.hosts.values() if host.is_alive]
        plan, service = self.plan, self.service
        listeners = [flag for host in alive for flag in ("--metadata", f"{LISTENER}{host.netns}")]
        driver = str(self.directory / "driver.toml")
        what = ("--control", plan.control, "--driver", driver, "--speed", f"{plan.speed:g}", "--sign-in-link")
        service.flags = (*what, *listeners)
        service.before = alive[0].enter() if os.geteuid() else []
        if self.bound:
            service.before += [packages.program("setpriv"), "--pdeathsig", "KILL"]
        service.start()

    def _apply_fleet(self) -> None:
        """The hosts; the service finds their VMs by itself, with what their domains say of them."""
        file = self.directory / "fleet.toml"
        hosts = (
            f'[hosts.{name}]\naddress = "{host.uri}"\ninventory = "libvirt"\n' for name, host in self.hosts.items()
        )
        file.write_text("\n".join(hosts))
        done = self.service.run("fleet", "apply", str(file))
        if done.returncode:
            raise errors.UnavailableError(f"the service refused the lab's fleet: {done.stderr.strip()}")

    def _await_guests(self, say: Callable[[str], None]) -> None:
        """Until every one has polled, and our agent runs where it should."""
        waiting, pause = dict(self.guests), threading.Event()
        seconds = BOOT_SECONDS + MORE_SECONDS * (len(waiting) - 1)
        deadline = time.monotonic() + seconds
        while waiting:
            self._require_parts()
            for name, guest in list(waiting.items()):
                if (report := guest.latest) and report.date and (guest.has_agent or not self._runs_agent(guest)):
                    say(f"{name} has booted on {self.first_host(name)} and polls.")
                    del waiting[name]
            if waiting and time.monotonic() > deadline:
                words = next(iter(waiting.values())).last_words or "nothing"
                named = packages.all_of(list(waiting))
                raise errors.UnavailableError(
                    f"{named} did not poll within {seconds:g} s; the first wrote last: {words}"
                )
            pause.wait(LOOK)

    def _require_parts(self) -> None:
        """Nobody polls once one of these has ended."""
        self.service.require()
        for host in self.hosts.values():
            if not host.is_alive:
                raise errors.UnavailableError(f"{host.name} has ended")

    def _keep(self, **changes: Any) -> None:
        self.plan = msgspec.structs.replace(self.plan, **changes)
        background.keep(self.directory / FILE, self.plan)

    # Down

    def _remove(self) -> None:
        """The service first, so that it acts on nothing; guests end with their hosts."""
        if "_connections" in self.__dict__:
            self._connections.close()
        self.service.stop()
        for directory in sorted((self.directory / "hosts").glob("*")):
            if host := self.hosts.get(directory.name) or Host.find(directory):
                host.stop()
        shutil.rmtree(self.plan.sockets, ignore_errors=True)
        for entry in self.directory.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != FILE:
                entry.unlink()
        # The last, so that a second attempt finds what the first has not removed.
        (self.directory / FILE).unlink(missing_ok=True)
        self.directory.rmdir()


def remove(directory: Path) -> bool:
    """Whatever is there of a lab, whoever started it; whether there was something."""
    with _usable(directory):
        if not directory.exists():
            return False
    with _held(directory):
        if (found := Lab.find(directory)) is None:
            return False
        found._remove()
        return True


def require() -> None:
    """RefusedError: something that the lab needs is not installed."""
    packages.require(more=image.lacking())
    require_library()


def require_library() -> None:
    """RefusedError: libvirt-python is not installed."""
    import forenotice.drivers.libvirt  # noqa: F401 - says what to install


def _runtime_directory() -> Path:
    """The path of a socket may have 107 bytes, so these are not in the lab's directory."""
    usual = (os.environ.get("XDG_RUNTIME_DIR"), "/run", tempfile.gettempdir())

    def fits(place: str) -> bool:
        """It becomes a part of URIs and configuration files too."""
        return len(place) <= LONGEST_RUNTIME and place == quote(place) and os.access(place, os.W_OK)

    found = next(filter(fits, filter(None, usual)), "/tmp")  # noqa: S108 - what is made there is for this user alone
    return Path(found)


def _define(xml: str, link: Any) -> None:
    link.defineXML(xml).create()


@contextmanager
def _usable(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in UNUSABLE:
            raise
        raise errors.RefusedError(
            f"{error.filename or directory} cannot be used ({error.strerror}): mend that, or give another directory "
            "with --data"
        ) from error


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """One `up` or `down` at a time."""
    with _usable(directory), _locked(directory):
        yield


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise errors.ConflictError(
                f"another `forenotice lab` is at work in {directory}: wait until it is done"
            ) from None
        try:
            yield
        finally:
            with suppress(OSError):
                if not (directory / FILE).exists():
                    for name in OWN:
                        (directory / name).unlink(missing_ok=True)
                    directory.rmdir()
    finally:
        os.close(descriptor)
