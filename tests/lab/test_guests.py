"""Guests without a machine: their domains as the driver reads them, their reports, and whether KVM is used."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from forenotice.drivers.libvirt import domains
from forenotice.lab import guests, packages
from forenotice.lab.guests import Guest, Report
from forenotice.lab.image import Kernel

KERNEL = Kernel(file=Path("/boot/vmlinuz"), modules=Path("/lib/modules/6.1"))
BOOTED = '{"vm":"vm-0","boot_id":"a","uptime":1.5,"booted":true}'
PREPARES = '{"vm":"vm-0","boot_id":"a","uptime":9.5,"prepares":"E"}'
LATER = '{"vm":"vm-0","boot_id":"a","uptime":2.5,"clock":7,"date":"","event":"","type":"","status":""}'


def test_a_domain_is_what_the_driver_and_the_inventory_read(needed: None, tmp_path: Path) -> None:
    guest = Guest(name="vm-1", number=1, directory=tmp_path / "a & b", group='<"web">')
    found = domains.parse(guest.domain(KERNEL, tmp_path / "initrd.gz", "qemu"))
    assert (found.name, found.uuid, found.memory) == ("vm-1", guest.uuid, guests.MEMORY << 20)
    assert [disk.path for disk in (*found.persistent, *found.ephemeral)] == [str(disk) for disk in guest.disks]
    assert [(each.type, each.source, each.mac) for each in found.interfaces] == [("bridge", "br0", "52:54:00:77:01:0b")]
    assert found.vm is not None
    assert (found.vm.group, found.vm.addresses) == ('<"web">', ("10.77.0.11",))
    alone = domains.parse(Guest(name="vm-1", directory=tmp_path).domain(KERNEL, tmp_path / "initrd.gz", "qemu"))
    assert alone.vm is not None
    assert alone.vm.group == ""


@pytest.mark.parametrize(("accelerator", "own"), [("qemu", True), ("kvm", False)])
def test_only_an_emulated_guest_keeps_time_without_its_processor(
    needed: None, tmp_path: Path, accelerator: str, own: bool
) -> None:
    """On a busy machine it can neither rely on its timer's first interrupts nor measure its processor's frequency."""
    xml = Guest(name="vm-1", directory=tmp_path).domain(KERNEL, tmp_path / "initrd.gz", accelerator)
    words = (ElementTree.fromstring(xml).findtext("os/cmdline") or "").split()
    assert {"console=ttyS0", "fn.name=vm-1"} <= set(words)
    assert [word in words for word in ("no_timer_check", "clocksource=acpi_pm")] == [own, own]


@pytest.mark.parametrize(
    ("written", "latest", "last_words"),
    [
        (None, None, ""),
        ("", None, ""),
        (BOOTED, 1.5, BOOTED),
        (f"{BOOTED}\n{LATER}\n", 2.5, LATER),
        (f"{LATER}\n{PREPARES}\n[    1.0] reboot: Power down\r\n", 2.5, "[    1.0] reboot: Power down"),
        (f"{LATER}\n{BOOTED}\n", 1.5, BOOTED),
        (f"{LATER}\n{LATER[:40]}", 2.5, LATER[:40]),
        (f'{LATER}\n{{"vm": 5}}\n[]\n\x1b[2J\n', 2.5, "[2J"),
    ],
)
def test_what_a_guest_has_reported_last(
    tmp_path: Path, written: str | None, latest: float | None, last_words: str
) -> None:
    guest = Guest(name="vm-0", directory=tmp_path)
    if written is not None:
        guest.console.write_text(written)
    found = guest.latest
    assert (found and found.uptime, guest.last_words) == (latest, last_words)


def test_reports_are_read_from_the_beginning(tmp_path: Path) -> None:
    guest = Guest(name="vm-0", directory=tmp_path)
    guest.console.write_text(f"noise\n{BOOTED}\n{LATER}\n")
    assert list(guest.reports()) == [
        Report(vm="vm-0", boot_id="a", uptime=1.5, booted=True),
        Report(vm="vm-0", boot_id="a", uptime=2.5, clock=7, date="", event="", type="", status=""),
    ]


@pytest.mark.parametrize(
    ("does", "chosen"),
    [(f"echo '{BOOTED}'", "kvm"), ("echo no KVM here >&2; exit 1", "qemu"), ("exec sleep 60", "qemu")],
)
def test_kvm_is_used_if_a_guest_boots_with_it(
    needed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, chosen: str
) -> None:
    """The program stands for QEMU, because whether KVM boots depends on the machine that runs this test."""
    qemu = tmp_path / "qemu-system-x86_64"
    qemu.write_text(f"#!/bin/sh\n{does}\n")
    qemu.chmod(0o755)
    (tmp_path / "kvm").touch()
    monkeypatch.setattr(packages, "PATH", f"{tmp_path}:{packages.PATH}")
    monkeypatch.setattr(guests, "KVM", str(tmp_path / "kvm"))
    monkeypatch.setattr(guests, "KVM_SECONDS", 1 if "sleep" in does else 60)
    assert guests.accelerator(KERNEL, tmp_path / "initrd.gz") == chosen
    (tmp_path / "kvm").unlink()
    assert guests.accelerator(KERNEL, tmp_path / "initrd.gz") == "qemu"
