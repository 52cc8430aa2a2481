"""Two hosts, and what tests do with domains on them."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import libvirt
from tests.acceptance.running import until

from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import Kind
from forenotice.drivers import file
from forenotice.drivers.libvirt import domains
from forenotice.drivers.libvirt.connections import Connection, Connections, UnreachableError
from forenotice.drivers.libvirt.domains import Definition
from forenotice.drivers.libvirt.driver import LibvirtDriver
from forenotice.drivers.surroundings import Surroundings
from forenotice.lab import hosts
from forenotice.lab.hosts import Host
from forenotice.runtime import Runtime

T = TypeVar("T")
START = datetime(2026, 1, 5, tzinfo=UTC)
DOMAIN = """
<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>
    <fn:vm xmlns:fn="urn:forenotice:vm:1"><fn:disk target="vdb" ephemeral="yes"/></fn:vm>
  </metadata>
  <memory unit='MiB'>{memory}</memory>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <features><acpi/></features>
  <on_crash>preserve</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    {disks}
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    {more}
  </devices>
  {after}
</domain>
"""
DISK = """
<disk type='file' device='disk'>
  <driver name='qemu' type='{format}'/><source file='{path}'/><target dev='{target}' bus='virtio'/>
</disk>
"""


def uuid_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


@dataclass
class Pair:
    place: Path
    a: Host
    b: Host
    connections: Connections

    @classmethod
    @contextmanager
    def started(cls, place: Path) -> Iterator["Pair"]:
        cache = place / "cache"
        with (
            Host.start("host-a", place / "a", number=1, cache=cache, bound=True) as a,
            Host.start("host-b", place / "b", number=2, cache=cache, beside=a, bound=True) as b,
        ):
            hosts.connect(a, b)
            made = cls(place=place, a=a, b=b, connections=Connections(Runtime()))
            (place / "disks").mkdir()
            yield made
            made.connections.close()

    def clear(self) -> None:
        for host in (self.a, self.b):
            self.ask(host, _remove_all)
        for path in (self.place / "disks").iterdir():
            path.unlink()

    def on(self, host: Host) -> Connection:
        return self.connections.to(host.uri)

    def ask(self, host: Host, function: Callable[[Any], T]) -> T:
        """Once it answers: its libvirtd may just be starting."""

        def answer() -> list[T]:
            with suppress(UnreachableError):
                return [self.on(host).ask(function)]
            return []

        return until(answer)[0]

    def domain(self, name: str, host: Host) -> Any:
        """The `libvirt.virDomain`; None: there is none."""
        return self.ask(host, lambda link: next((d for d in link.listAllDomains() if d.name() == name), None))

    def disk(self, name: str) -> Path:
        return self.place / "disks" / name

    def xml(
        self, name: str, *, memory: int = 32, disks: Mapping[str, str] | None = None, more: str = "", after: str = ""
    ) -> str:
        """Disks by target, with their format; a persistent vda and an ephemeral vdb unless other ones are given.

        `more` are devices, `after` is what comes after these.
        """
        made = []
        for target, kind in ({"vda": "raw", "vdb": "raw"} if disks is None else disks).items():
            path = self.disk(f"{name}-{target}")
            if kind == "raw":
                path.write_bytes(b"written before")
                with path.open("r+b") as opened:
                    opened.truncate(1 << 20)
            made.append(DISK.format(format=kind, path=path, target=target))
        facts = {"name": name, "uuid": uuid_of(name), "memory": memory}
        return DOMAIN.format(**facts, disks="".join(made), more=more, after=after)

    def make(self, name: str, *, transient: bool = False, run: bool = True, **how: Any) -> Any:
        """A domain on the first host."""
        xml = self.xml(name, **how)
        if transient:
            return self.ask(self.a, lambda link: link.createXML(xml))
        domain = self.ask(self.a, lambda link: link.defineXML(xml))
        if run:
            domain.create()
        return domain

    def driver(
        self,
        *,
        patience: float = 20.0,
        surroundings: Surroundings | None = None,
        runtime: Runtime | None = None,
        **config: Any,
    ) -> LibvirtDriver:
        made = file.Libvirt(**({"storage": "shared"} | config))
        around = surroundings or Surroundings()
        return LibvirtDriver(made, runtime or Runtime(), self.connections, around, patience=patience)

    def task(self, kind: Kind, *vms: str, operation: str = "o-1", grace: float = 0.0, **more: Any) -> Task:
        moves = kind.traits.moves
        facts: dict[str, Any] = {
            "operation": operation,
            "kind": kind,
            "host": "host-a",
            "vms": vms,
            "targets": dict.fromkeys(vms, "host-b") if moves else {},
            "attempt": 1,
            "started_at": START,
            "vm_ids": {vm: uuid_of(vm) for vm in vms},
            "address": self.a.uri,
            "target_addresses": dict.fromkeys(vms, self.b.uri) if moves else {},
            "duration": 1,
            "shutdown_timeouts": dict.fromkeys(vms, timedelta(seconds=grace)),
        }
        return Task(**(facts | more))

    def carry_out(self, task: Task, **how: Any) -> Outcome:
        return self.driver(**how).carry_out(task, START)


def live(domain: Any) -> Definition:
    return domains.parse(domain.XMLDesc())


def kept(domain: Any) -> Definition:
    return domains.parse(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))


def done(outcome: Outcome) -> Finished:
    assert isinstance(outcome, Finished), outcome
    assert outcome.failures == {}
    return outcome


def failure(outcome: Outcome) -> str:
    assert isinstance(outcome, Finished), outcome
    (why,) = outcome.failures.values()
    return why


def waiting(outcome: Outcome) -> Mapping[str, str]:
    assert isinstance(outcome, NotYet), outcome
    return outcome.waiting


def _remove_all(link: Any) -> None:
    for domain in link.listAllDomains():
        # It may just have gone: a libvirtd that was killed finds out when it is back.
        with suppress(libvirt.libvirtError):
            domain.destroy()
        with suppress(libvirt.libvirtError):
            domain.undefineFlags(
                libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
            )
