"""A fleet that follows its hosts: a VM that somebody moves by hand, and a host that fails while its guests run."""

from pathlib import Path

import libvirt
from tests.machines.labs import Happened, Lab, Vm, a_lab, until

WATCHED = {"inventory": "libvirt"}
VMS = {
    "first": Vm(host="host-a"),
    "second": Vm(host="host-a"),
    "nomad": Vm(host="host-a", approve=False),
}
LONG = 600.0
"""Minutes of notice that do not pass."""
FENCE = """#!/bin/sh
# The power switch of a host.
cd "$(dirname "$0")" || exit 2
[ -e allowed ] || { echo "the power switch of $1 does not answer" >&2; exit 1; }
echo "$1" >>fenced
read -r pid <pid
kill -9 "$pid"
while [ -e "/proc/$pid" ]; do sleep 0.1; done
"""
DRIVER = """
driver = "libvirt"
storage = "shared"
fence = ["{fence}", "{{host}}"]
"""
MIGRATE = (
    libvirt.VIR_MIGRATE_LIVE
    | libvirt.VIR_MIGRATE_PERSIST_DEST
    | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    | libvirt.VIR_MIGRATE_UNSAFE
)


def test_a_vm_is_moved_by_hand_and_then_its_former_host_fails(tmp_path: Path) -> None:
    fence = tmp_path / "fence"
    fence.write_text(FENCE)
    fence.chmod(0o755)
    with a_lab(tmp_path, VMS, {"host-a": WATCHED, "host-b": WATCHED}, driver=DRIVER.format(fence=fence)) as lab:
        (tmp_path / "pid").write_text(f"{lab.hosts['host-a'].pid}\n")
        moved_by_hand(lab)
        failed(lab, tmp_path)


def moved_by_hand(lab: Lab) -> None:
    """Between announcement and start: what was announced for it is dropped, and goes on without it for others."""
    restart = lab.schedule("restart", "nomad", notice_minutes=LONG)
    update = lab.schedule("host-update", "host-a", notice_minutes=LONG, duration_seconds=1)
    boots = {name: lab.machine(name).boots for name in VMS}
    begun = len(lab.happened)
    migrate(lab, "nomad", "host-a", "host-b")
    nomad = lab.machine("nomad")
    until(lambda: nomad.fleet["host"] == "host-b", lambda: f"the fleet follows: {nomad.fleet}")
    (entry,) = lab.server.history(vm="nomad", action="vm.moved")
    assert (entry["by"], entry["data"]["source"]) == ("inventory", "host-a")
    assert lab.ended(restart, "Canceled")["vms"] == []
    # Its approval was the last that was missing.
    assert lab.ended(update)["vms"] == ["first", "second"]

    def paused() -> set[str]:
        return {each.vm for each in lab.happened[begun:] if each.what == "suspended" and each.how == PAUSED}

    # libvirt may tell us later than the driver.
    until(lambda: len(paused()) > 1, lambda: f"both are paused: {lab.happened[begun:]}")
    assert paused() == {"first", "second"}
    for name in VMS:
        vm = lab.machine(name)
        assert [vm.polled().boot_id] == vm.boots == boots[name]
    assert nomad.facts == (["host-b"], ["host-b"], "host-b")


PAUSED = libvirt.VIR_DOMAIN_EVENT_SUSPENDED_PAUSED


def migrate(lab: Lab, vm: str, source: str, target: str) -> None:
    """As virsh does."""
    here, there = (libvirt.open(lab.hosts[name].uri) for name in (source, target))
    here.lookupByName(vm).migrate3(there, {}, MIGRATE)
    for link in (here, there):
        link.close()


def failed(lab: Lab, place: Path) -> None:
    """Its libvirtd is gone and its guests run: they must not run elsewhere before it is certainly off."""
    host, both = lab.hosts["host-a"], [lab.machine(name) for name in ("first", "second")]
    nomad = lab.machine("nomad")
    boots = nomad.boots
    ran: list[bool] = []

    def look(happened: Happened) -> None:
        if happened.host == "host-b" and happened.what == "started":
            ran.append(host.is_alive)

    lab.listen(look)
    host.kill_libvirtd()
    operation = lab.schedule("hardware-failure", "host-a")

    def is_waiting() -> bool:
        return "the power switch of host-a does not answer" in lab.explained(operation)

    until(is_waiting, lambda: lab.explained(operation))
    assert "host-a does not answer" in lab.explained(operation)
    lab.server.kill()
    lab.server.start()
    until(is_waiting, lambda: lab.explained(operation))
    assert ran == []
    assert all(vm.polled().persistent_boots == 1 for vm in both), "they still run there"
    (place / "allowed").touch()
    lab.ended(operation)
    assert (place / "fenced").read_text() == "host-a\n"
    assert ran == [False, False]
    for vm in both:
        last = vm.polled()
        assert (len(vm.boots), last.persistent_boots, last.ephemeral_boots) == (2, 2, 1)
        assert vm.facts == (["host-b"], ["host-b"], "host-b")
    assert [nomad.polled().boot_id] == nomad.boots == boots, "it was not there any more"
