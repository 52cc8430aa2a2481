"""Each type of event, on guests that boot: what the guest itself reports of it, and what is left on its hosts."""

import json
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import libvirt
from tests.machines.labs import BY_POWER_CUT, GRACEFULLY, Lab, Machine, Vm, a_lab, together, until

FREEZE, CUT = 4, 8
"""Seconds that VMs are frozen, and until a guest that does not shut down is powered off: it then still polls."""
HOSTS = {"host-a": {"cordoned": True}, "host-b": {"cordoned": True}, "host-c": {}, "host-d": {}}
"""VMs are moved to the last two. What happens to a whole host happens to the first two."""
DOOMED = {"cordoned": True}
VMS = {
    "frozen-0": Vm(host="host-a"),
    "frozen-1": Vm(host="host-a"),
    "mover": Vm(host="host-b"),
    "plain": Vm(host="host-c", group="pool"),
    "stubborn": Vm(host="host-d", stubborn=True, spot=True, policy={"shutdown_timeout_seconds": CUT}),
    "doomed": Vm(host="doomed"),
}
GROUPS = {"pool": {"kind": "availability-set", "policy": {"terminate_notice_minutes": 5}}}
DRIVERS = """
pause = "200ms"

[[drivers]]
driver = "libvirt"
hosts = "doomed"
alive_limit = "5s"

[[drivers]]
driver = "libvirt"
storage = "shared"
at_once_per_host = 8
"""


def test_each_type_of_event(tmp_path: Path) -> None:
    with a_lab(tmp_path, VMS, {**HOSTS, "doomed": DOOMED}, groups=GROUPS, driver=DRIVERS) as lab:
        together(lab, a_whole_host, moved_alive, restarted_redeployed_deleted, powered_off_and_evicted, panics)


def told(machine: Machine, operation: str, kind: str) -> None:
    """Its guest saw the event, with this type, and approved it. It may have ended before it could report the latter."""
    (event,) = [each for each in machine.lab.operation(operation)["events"] if machine.name in each["resources"]]
    assert event["approved_by"] == machine.name
    assert [each.type for each in machine.guest.reports() if each.prepares == event["id"]] == [kind]


def ahead(machine: Machine, since: int = 0) -> float:
    """How far the endpoint's clock is ahead of the guest's own, but for a constant."""
    found = [
        parsedate_to_datetime(report.date).timestamp() - report.uptime
        for report in machine.reports[since:]
        if report.date
    ]
    # The endpoint's is read first and in whole seconds; how much later the guest's is differs from time to time.
    return max(found, default=float("-inf"))


def a_whole_host(lab: Lab) -> None:
    """Updated, then rebooted."""
    both = [lab.machine(name) for name in ("frozen-0", "frozen-1")]
    before = {vm.name: (len(vm.reports), ahead(vm), vm.boots) for vm in both}
    begun = len(lab.happened)
    said = lab.server.cli("host", "update", "host-a", "--duration", f"{FREEZE}s", "--json")
    assert said.returncode == 0, said.stderr
    (made,) = json.loads(said.stdout)["operations"]
    lab.ended(made["id"])

    def paused() -> list[str]:
        seen = [each.what for each in lab.happened[begun:] if each.host == "host-a"]
        return [what for what in seen if what in ("suspended", "resumed")]

    # libvirt may tell us later than the driver.
    until(lambda: len(paused()) == 4, lambda: f"both are paused and go on: {paused()}")
    assert paused() == ["suspended"] * 2 + ["resumed"] * 2
    for vm in both:
        told(vm, made["id"], "Freeze")
        was_frozen(vm, *before[vm.name])
        assert lab.calls(made["id"])[vm.name]["paused_seconds"] >= FREEZE

    operation = lab.done("host-reboot", "host-a")["id"]
    for vm in both:
        rebooted(vm, gracefully=True, persistent=2, ephemeral=2)
        told(vm, operation, "Reboot")
        assert vm.facts == (["host-a"], ["host-a"], "host-a")


def was_frozen(vm: Machine, reports: int, was_ahead: float, boots: list[str]) -> None:
    """By its own clock, which stood still, and it has not booted since."""
    until(lambda: ahead(vm, reports) - was_ahead > FREEZE - 1, f"{vm.name} was frozen")
    assert [vm.latest.boot_id] == vm.boots == boots


def rebooted(vm: Machine, *, gracefully: bool, persistent: int, ephemeral: int) -> None:
    """Once more, and with these counts of boots on its disks."""
    last = vm.polled()
    assert len(vm.boots) == len(set(vm.boots)) == persistent
    assert (last.boot_id, last.persistent_boots, last.ephemeral_boots) == (vm.boots[-1], persistent, ephemeral)
    stops = vm.lab.seen(vm=vm.name, what="stopped")
    assert [each.how for each in stops] == [GRACEFULLY if gracefully else BY_POWER_CUT] * (persistent - 1)


def moved_alive(lab: Lab) -> None:
    vm = lab.machine("mover")
    boots = vm.boots
    operation = lab.done("live-migration", "host-b")["id"]
    target = lab.operation(operation)["targets"]["mover"]
    assert vm.facts == ([target], [target], target)
    assert target != "host-b"
    assert (vm.polled().boot_id, vm.boots) == (boots[0], boots)
    assert lab.calls(operation)["mover"]["paused_seconds"] > 0
    told(vm, operation, "Freeze")


def restarted_redeployed_deleted(lab: Lab) -> None:
    vm = lab.machine("plain")
    operation = lab.done("restart", "plain")["id"]
    rebooted(vm, gracefully=True, persistent=2, ephemeral=2)
    told(vm, operation, "Reboot")
    assert vm.facts == (["host-c"], ["host-c"], "host-c")

    operation = lab.done("redeploy", "plain")["id"]
    rebooted(vm, gracefully=True, persistent=3, ephemeral=1)
    told(vm, operation, "Redeploy")
    assert vm.facts == (["host-d"], ["host-d"], "host-d")

    operation = lab.done("deletion", "plain")["id"]
    told(vm, operation, "Terminate")
    gone(vm)


def gone(vm: Machine) -> None:
    """What it was to keep is its owner's."""
    assert vm.defined == []
    assert [disk.exists() for disk in vm.guest.disks] == [True, False]
    assert vm.lab.server.control("GET", f"/v1/vms/{vm.name}").status == 404


def powered_off_and_evicted(lab: Lab) -> None:
    """A guest that does not shut down by itself."""
    vm = lab.machine("stubborn")
    ended = lab.done("restart", "stubborn")
    rebooted(vm, gracefully=False, persistent=2, ephemeral=2)
    (stop,) = lab.seen(vm="stubborn", what="stopped")
    assert stop.at - datetime.fromisoformat(ended["started_at"]) >= timedelta(seconds=CUT)
    lab.done("eviction", "stubborn")
    assert {report.type for report in vm.reports} >= {"Preempt"}
    gone(vm)


def panics(lab: Lab) -> None:
    """A kernel that does not come up: its host has failed, and the rollout does nothing to the next one."""

    def spoil(domain: Any) -> bool:
        xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        domain.connect().defineXML(xml.replace("panic=-1", "panic=0 rdinit=/nowhere"))
        return True

    lab.domain("doomed", "doomed", spoil)
    rollout = lab.server.post("/v1/rollouts", {"kind": "reboot", "hosts": "doomed,host-b"})["id"]
    until(lambda: lab.server.get(f"/v1/rollouts/{rollout}")["status"] == "Paused", "it pauses")
    found = lab.server.get(f"/v1/rollouts/{rollout}")
    assert found["why"].endswith("doomed is not alive: its domain on doomed runs but has not polled"), found
    assert found["progress"] == {"waiting": 1, "under_way": 0, "done": 0, "failed": 1, "skipped": 0}
    assert lab.machine("doomed").hosts == ["doomed"]
    # A kernel that has panicked is busy.
    lab.domain("doomed", "doomed", lambda domain: domain.destroy())
