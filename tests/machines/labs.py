"""A lab of a test's own: libvirt hosts, guests that boot, and `forenotice serve`; what operators ask, and what is seen.

Everything is started by the thread that makes the lab, and ends with it, however that ends.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from xml.etree import ElementTree

import libvirt
from tests.acceptance.running import Server

from forenotice.drivers.libvirt import connections
from forenotice.drivers.libvirt.connections import Connections, UnreachableError
from forenotice.lab import hosts, image, packages
from forenotice.lab.guests import Guest, Report
from forenotice.lab.hosts import Host
from forenotice.runtime import Runtime

T = TypeVar("T")

AMPLE = 240.0
"""Seconds for what takes five on a quiet machine."""
SPEED = 60
"""A quarter of an hour is 15 seconds; guests approve sooner."""
WHAT = ("defined", "undefined", "started", "suspended", "resumed", "stopped", "shutdown", "pmsuspended", "crashed")
"""libvirt's events of a domain, by number."""
GRACEFULLY, BY_POWER_CUT, BY_MIGRATION = (
    libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN,
    libvirt.VIR_DOMAIN_EVENT_STOPPED_DESTROYED,
    libvirt.VIR_DOMAIN_EVENT_STOPPED_MIGRATED,
)
MARK = ".//{urn:forenotice:operation:1}operation"
ENDED = ("Completed", "Failed", "Canceled")
DRIVER = """
driver = "libvirt"
storage = "shared"
at_once_per_host = 8
"""


def until(question: Callable[[], T], what: str | Callable[[], str]) -> T:
    """Ask until the answer is something, and give that; not too often, as guests need the processor more."""
    deadline, pause = time.monotonic() + AMPLE, threading.Event()
    while not (answer := question()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {AMPLE:g} s: {what() if callable(what) else what}")
        pause.wait(0.2)
    return answer


class Happened(NamedTuple):
    """What libvirt told of a domain."""

    host: str
    vm: str
    what: str
    how: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Vm:
    """As it is before the test."""

    host: str
    stubborn: bool = False
    """It takes no notice of its power button."""
    approve: bool = True
    policy: Mapping[str, object] = field(default_factory=dict)
    spot: bool = False
    group: str | None = None


class Lab:
    """Operators' and libvirt's side of it; `machine` gives a guest's."""

    def __init__(self, server: Server, found: Mapping[str, Host], guests: Mapping[str, Guest]) -> None:
        self.server, self.hosts, self.guests = server, found, guests
        self.happened: list[Happened] = []
        self._connections = Connections(Runtime())
        self._listeners: list[Callable[[Happened], None]] = []
        self._watched: list[tuple[Any, int]] = []

    # What is seen

    def ask(self, host: str, question: Callable[[Any], T]) -> T:
        """What the function makes of a `libvirt.virConnect`."""

        def answered() -> list[T]:
            try:
                return [self._connections.to(self.hosts[host].uri).ask(question)]
            except UnreachableError:
                return []

        return until(answered, f"{host} answers")[0]

    def watch(self, host: str) -> None:
        """Record what happens to its domains."""

        def changed(_link: Any, domain: Any, event: int, detail: int, *_: object) -> None:
            happened = Happened(host, domain.name(), WHAT[event], detail, datetime.now(UTC))
            self.happened.append(happened)
            for listener in self._listeners:
                listener(happened)

        # libvirt takes one callback for all domains of a connection; the first has begun to wait for events.
        self.ask(host, lambda _: True)
        link = libvirt.open(self.hosts[host].uri)
        number = link.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, changed, None)
        self._watched.append((link, number))

    def listen(self, listener: Callable[[Happened], None]) -> None:
        """It is called in libvirt's thread, and must return at once."""
        self._listeners.append(listener)

    def seen(self, **wanted: object) -> list[Happened]:
        """What has happened of this kind, in order."""
        return [each for each in self.happened if all(getattr(each, name) == value for name, value in wanted.items())]

    def domain(self, host: str, vm: str, function: Callable[[Any], T]) -> T | None:
        """What the function makes of the `libvirt.virDomain`; None: there is none."""

        def look(link: Any) -> T | None:
            try:
                return function(link.lookupByName(vm))
            except libvirt.libvirtError as error:
                if connections.number(error) == libvirt.VIR_ERR_NO_DOMAIN:
                    return None
                raise

        return self.ask(host, look)

    def boot(self, host: str, xml: str) -> None:
        self.ask(host, lambda link: link.defineXML(xml).create())

    def machine(self, name: str) -> "Machine":
        return Machine(self, name)

    # Operators

    def schedule(self, kind: str, name: str, **more: object) -> str:
        """The id of the operation."""
        made: str = self.server.schedule(kind, name, **more)["id"]
        return made

    def operation(self, operation: str) -> Any:
        return self.server.get(f"/v1/operations/{operation}")

    def ended(self, operation: str, status: str = "Completed") -> Any:
        """Wait for its end, which must be this one."""
        until(
            lambda: self.operation(operation)["status"] in ENDED,
            lambda: f"{self.operation(operation)} ends: {self.explained(operation)}",
        )
        ended = self.operation(operation)
        assert ended["status"] == status, ended
        return ended

    def explained(self, operation: str) -> str:
        """Why it waits."""
        said: str = self.server.get(f"/v1/operations/{operation}/explanation")["sentence"]
        return said

    def done(self, kind: str, name: str, **more: object) -> Any:
        return self.ended(self.schedule(kind, name, **more))

    def journal(self, operation: str, action: str) -> list[Any]:
        return [entry["data"] for entry in self.server.history(operation=operation, action=action)]

    def calls(self, operation: str) -> dict[str, Any]:
        """What the driver recorded, by VM."""
        told = [call for entry in self.server.history(operation=operation) for call in entry["data"].get("calls", ())]
        return {vm: call for call in told for vm in call["vms"]}

    def close(self) -> None:
        for link, number in self._watched:
            # Without callbacks it is closed when nobody uses it.
            with suppress(libvirt.libvirtError):
                link.domainEventDeregisterAny(number)
        self._watched.clear()
        self._connections.close()


@dataclass(frozen=True)
class Machine:
    """One VM: as its guest reports, as its hosts have it, as the fleet has it."""

    lab: Lab
    name: str

    @cached_property
    def guest(self) -> Guest:
        return self.lab.guests[self.name]

    @property
    def reports(self) -> list[Report]:
        """Those that it writes each second."""
        return [report for report in self.guest.reports() if report.clock is not None]

    @property
    def latest(self) -> Report:
        found = self.guest.latest
        assert found is not None
        return found

    @property
    def boots(self) -> list[str]:
        """The id of each boot, in order."""
        return [report.boot_id for report in self.guest.reports() if report.booted]

    def polled(self) -> Report:
        """Its first report from now on that the endpoint answered."""
        before = len(self.reports)
        until(lambda: any(each.date for each in self.reports[before:]), f"{self.name} polls")
        return next(each for each in self.reports[before:] if each.date)

    @property
    def hosts(self) -> list[str]:
        """Those that run it."""
        alive = [name for name, host in self.lab.hosts.items() if host.is_alive]
        return [name for name in alive if self.lab.domain(name, self.name, lambda domain: domain.isActive())]

    @property
    def defined(self) -> list[str]:
        """The hosts that have a domain of it."""
        alive = [name for name, host in self.lab.hosts.items() if host.is_alive]
        return [name for name in alive if self.lab.domain(name, self.name, lambda _: True)]

    @property
    def fleet(self) -> Any:
        return self.lab.server.get(f"/v1/vms/{self.name}")

    @property
    def facts(self) -> tuple[list[str], list[str], str]:
        """Where it runs, where it is defined, and where the fleet has it."""
        return self.hosts, self.defined, self.fleet["host"]

    def mark(self, host: str, *, live: bool) -> str:
        """The id of the operation that the driver has marked it with."""
        flags = 0 if live else libvirt.VIR_DOMAIN_XML_INACTIVE
        xml = self.lab.domain(host, self.name, lambda domain: domain.XMLDesc(flags))
        found = None if xml is None else ElementTree.fromstring(xml).find(MARK)
        return "" if found is None else found.get("id", "")


@contextmanager
def a_lab(
    directory: Path,
    vms: Mapping[str, Vm],
    found: Mapping[str, Mapping[str, object]],
    *,
    groups: Mapping[str, object] | None = None,
    driver: str = DRIVER,
    speed: float = SPEED,
) -> Iterator[Lab]:
    """Hosts with these facts of the fleet, and VMs that have all polled."""
    initrd = directory / "initrd.gz"
    kernel = image.write(initrd)
    (directory / "driver.toml").write_text(driver)
    with ExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fn-")))
        started: dict[str, Host] = {}
        for number, name in enumerate(found, 1):
            place, cache = directory / "hosts" / name, directory / "cache"
            beside = next(iter(started.values()), None)
            host = stack.enter_context(
                Host.start(name, place, number=number, sockets=sockets / name, cache=cache, beside=beside, bound=True)
            )
            for other in started.values():
                hosts.connect(other, host)
            started[name] = host
        guests = {
            name: Guest(name=name, number=number, directory=directory / "guests", prepare=0, approve=vm.approve)
            for number, (name, vm) in enumerate(vms.items())
        }
        enter = next(iter(started.values())).enter() if os.geteuid() else []
        server = Server(directory, *_flags(directory, started, speed), before=(*enter, *BOUND))
        lab = Lab(server, started, guests)
        stack.callback(_end, server)
        stack.callback(lab.close)
        for host_name in started:
            lab.watch(host_name)
        server.start()
        server.post("/v1/fleet", {"groups": dict(groups or {}), **_fleet(vms, found, lab)})
        (directory / "guests").mkdir()
        for name, vm in vms.items():
            guests[name].make_disks()
            xml = guests[name].domain(kernel, initrd, "qemu")
            lab.boot(vm.host, xml.replace("quiet", "quiet module_blacklist=button") if vm.stubborn else xml)
        for name in vms:
            lab.machine(name).polled()
        yield lab
        assert server.defects == []


BOUND = (packages.find("setpriv") or "setpriv", "--pdeathsig", "KILL", "--")


def _flags(directory: Path, found: Mapping[str, Host], speed: float) -> list[str]:
    listeners = [word for host in found.values() for word in ("--metadata", f"{hosts.METADATA}:80@{host.netns}")]
    return ["--driver", str(directory / "driver.toml"), "--speed", f"{speed:g}", "--token-rate", "off", *listeners]


def _end(server: Server) -> None:
    if server.process is not None:
        server.kill()


def _fleet(vms: Mapping[str, Vm], found: Mapping[str, Mapping[str, object]], lab: Lab) -> dict[str, Any]:
    return {
        "hosts": {name: {"address": lab.hosts[name].uri, **facts} for name, facts in found.items()},
        "vms": {
            name: {
                "host": vm.host,
                "addresses": [lab.guests[name].address],
                "vm_id": lab.guests[name].uuid,
                "spot": vm.spot,
                **({"group": vm.group} if vm.group else {"policy": {"listening": "always", **vm.policy}}),
            }
            for name, vm in vms.items()
        },
    }


Story = Callable[[Lab], None]


def together(lab: Lab, *stories: Story) -> None:
    """All at the same time, each on VMs of its own; tells every one that fails."""
    with ThreadPoolExecutor(len(stories)) as pool:
        told = {story.__name__: pool.submit(story, lab) for story in stories}
    failed = [(name, error) for name, future in told.items() if (error := future.exception())]
    for name, error in failed:
        error.add_note(f"in {name}")
    if failed:
        raise BaseExceptionGroup("stories that failed", [error for _, error in failed])
