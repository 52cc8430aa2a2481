"""Rounds of operations on guests that boot, while the service and libvirtd are killed at random moments."""

import os
import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.machines.killing import Killer
from tests.machines.labs import Lab, Vm, a_lab

ROUNDS = int(os.environ.get("FORENOTICE_SOAK_ROUNDS", "50"))
SEED = int(os.environ.get("FORENOTICE_SOAK_SEED", "16"))
POLICY = {"shutdown_timeout_seconds": 3}
HOSTS: dict[str, dict[str, object]] = {"host-a": {}, "host-b": {}, "host-c": {}}
VMS = {
    "vm-0": Vm(host="host-a", policy=POLICY),
    "vm-1": Vm(host="host-a", policy=POLICY, stubborn=True),
    "vm-2": Vm(host="host-b", policy=POLICY),
    "vm-3": Vm(host="host-c", policy=POLICY),
}
OF_VM, OF_HOST = ("restart", "redeploy"), ("host-update", "host-reboot", "live-migration", "degraded-hardware")
LONGEST_PAUSE = 4.0
"""Seconds between two kills: a start, a shutdown and a migration each take one or two."""


@dataclass
class Boots:
    """How often a guest has booted with each of its disks."""

    persistent: int = 1
    ephemeral: int = 1

    def count(self, kind: str) -> None:
        if kind in ("host-update", "live-migration"):
            return
        self.persistent += 1
        self.ephemeral = self.ephemeral + 1 if kind in ("restart", "host-reboot") else 1


@pytest.mark.soak
def test_each_operation_happens_once_whoever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with a_lab(tmp_path, VMS, HOSTS) as lab:
        killer, boots = Killer(lab), {name: Boots() for name in VMS}
        for number in range(ROUNDS):
            asked = schedule(lab, chance)
            torment(lab, killer, chance)
            ended = killer.see_through(asked)
            lab.server.ready()
            for host in HOSTS:
                # Degraded hardware was cordoned.
                assert lab.server.control("PATCH", f"/v1/hosts/{host}", {"cordoned": False}).status == 200
            check(lab, ended, boots, f"round {number} of seed {SEED}: {ended}")


def schedule(lab: Lab, chance: random.Random) -> list[str]:
    """Two VMs, and mostly the host of others: that first, as nothing is scheduled for a host to which a VM moves."""
    *vms, third = chance.sample(list(VMS), 3)
    hosts = {vm: lab.machine(vm).fleet["host"] for vm in VMS}
    asked = []
    # A service that was killed does not know who had polled. Then a guest whose domain runs counts as alive, and would
    # not have counted its boot if it were rebooted at once.
    if hosts[third] not in {hosts[vm] for vm in vms} and chance.random() < 0.8:
        more: dict[str, object] = {}
        if (kind := chance.choice(OF_HOST)) == "host-update":
            more["duration_seconds"] = 3
        asked.append(lab.schedule(kind, hosts[third], **more))
    return asked + [lab.schedule(chance.choice(OF_VM), vm) for vm in vms]


def torment(lab: Lab, killer: Killer, chance: random.Random) -> None:
    pause = threading.Event()
    for _ in range(chance.randint(1, 4)):
        pause.wait(chance.uniform(0, LONGEST_PAUSE))
        if chance.random() < 0.3:
            lab.hosts[chance.choice(list(HOSTS))].restart_libvirtd()
        else:
            killer.kill()


def check(lab: Lab, ended: list[Any], boots: dict[str, Boots], what: str) -> None:
    """An operation on a host whose VMs have all left is canceled."""
    done = [each for each in ended if each["status"] == "Completed"]
    assert all(each["status"] == "Canceled" and not each["vms"] for each in ended if each not in done), what
    for operation in sorted(done, key=lambda each: str(each["started_at"])):
        for name in operation["vms"]:
            boots[name].count(operation["kind"])
    for name, expected in boots.items():
        vm = lab.machine(name)
        last, told = vm.polled(), f"{name} in {what}"
        assert Boots(last.persistent_boots or 0, last.ephemeral_boots or 0) == expected, told
        assert len(vm.boots) == len(set(vm.boots)) == expected.persistent, told
        (host,) = vm.hosts
        assert vm.facts == ([host], [host], host), told
