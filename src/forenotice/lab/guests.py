"""A lab's guest: its domain for libvirt, and what it reports on its console."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import msgspec

from forenotice.lab import hosts, packages
from forenotice.lab.image import Kernel
from forenotice.programs import process

MEMORY = 128
"""MiB"""
DISK = 8 * 1024 * 1024
"""Bytes of each disk; what is not written takes no room."""
FIRST = 10
"""The last number of the first guest's address."""
MOST = 200
TAIL = 64 * 1024
KVM = "/dev/kvm"
KVM_SECONDS = 5.0
"""Where KVM works, a guest boots within one."""
EMULATED = ("no_timer_check", "clocksource=acpi_pm")
"""For the kernel of an emulated guest. On a busy machine its first timer interrupts come too late, for which it would
panic, and it measures the frequency of its TSC wrongly, with which its clock would be many times too fast."""
DOMAIN = """\
<domain type={type}>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>
    <fn:vm xmlns:fn="urn:forenotice:vm:1"{group}>
      <fn:address>{address}</fn:address>
      <fn:disk target="vdb" ephemeral="yes"/>
    </fn:vm>
  </metadata>
  <memory unit="MiB">{memory}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch="x86_64" machine="pc">hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initrd}</initrd>
    <cmdline>{words}</cmdline>
  </os>
  <features><acpi/></features>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>{emulator}</emulator>
    <disk type="file" device="disk">
      <driver name="qemu" type="raw" cache="writeback"/>
      <source file={persistent}/>
      <target dev="vda" bus="virtio"/>
    </disk>
    <disk type="file" device="disk">
      <driver name="qemu" type="raw" cache="writeback"/>
      <source file={ephemeral}/>
      <target dev="vdb" bus="virtio"/>
    </disk>
    <interface type="bridge">
      <mac address="{mac}"/>
      <source bridge="{bridge}"/>
      <model type="virtio"/>
    </interface>
    <serial type="pty">
      <log file={console} append="on"/>
      <target port="0"/>
    </serial>
    <controller type="usb" model="none"/>
    <memballoon model="none"/>
  </devices>
</domain>
"""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a guest wrote to its console. What this kind of line does not tell is None."""

    vm: str
    boot_id: str
    uptime: float
    """Seconds"""
    clock: int | None = None
    """The guest's own, in seconds since 1970."""
    date: str | None = None
    """The Date of the endpoint's response; empty: it did not respond."""
    persistent_boots: int | None = None
    ephemeral_boots: int | None = None
    """How often the guest has booted with the file systems of its two disks."""
    event: str | None = None
    """The id of the last event that names this guest; empty: there is none."""
    type: str | None = None
    status: str | None = None
    booted: bool = False
    prepares: str | None = None
    approved: str | None = None
    recovered: str | None = None
    """The id of the event that the guest prepares for, has approved, or has recovered from; only our agent recovers."""
    paused: float | None = None
    """Seconds of a Freeze, as our agent has measured it."""


@dataclass(frozen=True, kw_only=True)
class Guest:
    """One VM of a lab, on whichever host it is."""

    name: str
    directory: Path
    """On every host the same: its disks, its console's log."""
    number: int = 0
    """Different for each guest of a lab; its addresses follow from it."""
    group: str | None = None
    memory: int = MEMORY
    prepare: float = 2
    """Seconds that its handler takes to prepare."""
    approve: bool = True

    @cached_property
    def uuid(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, str(self.directory.absolute() / self.name)))

    @property
    def address(self) -> str:
        return f"10.77.0.{FIRST + self.number}"

    @property
    def console(self) -> Path:
        return self.directory / f"{self.name}.console"

    @property
    def disks(self) -> tuple[Path, Path]:
        """The persistent and the ephemeral one."""
        return self.directory / f"{self.name}.persistent", self.directory / f"{self.name}.ephemeral"

    def make_disks(self) -> None:
        for disk in self.disks:
            with disk.open("xb") as file:
                file.truncate(DISK)

    def domain(self, kernel: Kernel, initrd: Path, accelerator: str) -> str:
        """Its XML. The accelerator is "qemu" or "kvm"."""
        group = f' group={quoteattr(self.group)} kind="availability-set"' if self.group else ""
        words = {
            "name": self.name,
            "address": f"{self.address}/{hosts.GUESTS}",
            "gateway": hosts.GATEWAY,
            "prepare": f"{self.prepare:g}",
            "approve": "yes" if self.approve else "no",
        }
        kernel_words = ("console=ttyS0", "quiet", "panic=-1", *(EMULATED if accelerator == "qemu" else ()))
        persistent, ephemeral = (quoteattr(str(disk.absolute())) for disk in self.disks)
        return DOMAIN.format(
            type=quoteattr(accelerator),
            name=escape(self.name),
            uuid=self.uuid,
            group=group,
            address=self.address,
            memory=self.memory,
            kernel=escape(str(kernel.file)),
            initrd=escape(str(initrd.absolute())),
            words=escape(" ".join([*kernel_words, *(f"fn.{word}={value}" for word, value in words.items())])),
            emulator=escape(packages.program("qemu-system-x86_64")),
            persistent=persistent,
            ephemeral=ephemeral,
            mac=f"52:54:00:77:01:{FIRST + self.number:02x}",
            bridge=hosts.BRIDGE,
            console=quoteattr(str(self.console.absolute())),
        )

    def reports(self, tail: int | None = None) -> Iterator[Report]:
        """All that it wrote, oldest first; with `tail`, only what is in so many bytes at the end."""
        with suppress(FileNotFoundError), self.console.open("rb") as file:
            if tail is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
            for line in file:
                if report := read(line):
                    yield report

    @property
    def latest(self) -> Report | None:
        """The last line that it writes each second, or as it boots: who sees it poll finds nothing older."""
        reports = list(self.reports(TAIL))
        return next((report for report in reversed(reports) if report.booted or report.clock is not None), None)

    @property
    def has_agent(self) -> bool:
        """Whether our agent has said on the console that it runs."""
        with suppress(FileNotFoundError):
            return b'"agent.started"' in self.console.read_bytes()
        return False

    @property
    def last_words(self) -> str:
        """The last line on its console."""
        with suppress(FileNotFoundError), self.console.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().decode(errors="replace").split("\n")
            return next((process.plain(line).strip() for line in reversed(lines) if line.strip()), "")
        return ""


def read(line: bytes) -> Report | None:
    """None: the kernel's words, or a line that is not complete."""
    try:
        return msgspec.json.decode(line, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def accelerator(kernel: Kernel, initrd: Path) -> str:
    """ "kvm" where a guest really boots with it, else "qemu"; /dev/kvm alone says little."""
    if not os.access(KVM, os.R_OK | os.W_OK):
        return "qemu"
    devices = ("-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot")
    # However we end, it ends with us.
    bound = (packages.program("setpriv"), "--pdeathsig", "KILL")
    command = [*bound, packages.program("qemu-system-x86_64"), "-accel", "kvm", "-m", str(MEMORY), *devices]
    image = ("-kernel", str(kernel.file), "-initrd", str(initrd), "-append", "console=ttyS0 quiet fn.end=yes")
    try:
        done = subprocess.run(  # noqa: S603
            [*command, *image], check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=KVM_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "qemu"
    return "kvm" if any(map(read, done.stdout.splitlines())) else "qemu"
