"""Whoever is killed in the middle of an operation: it happens once, and its event ends."""

from collections.abc import Mapping
from pathlib import Path

from tests.machines.killing import Killer
from tests.machines.labs import BY_POWER_CUT, Lab, Vm, a_lab, until

SHUTDOWN, FREEZE = 8, 9
"""Seconds. All that is under way lasts so long that a service which was killed is up again before it goes on."""
STUBBORN = {"shutdown_timeout_seconds": SHUTDOWN}
HOSTS = {
    "host-a": {"cordoned": True},
    "host-b": {"cordoned": True},
    "host-c": {"cordoned": True},
    "host-d": {},
    "host-e": {},
}
VMS = {
    "frozen": Vm(host="host-a", approve=False),
    "rebooted": Vm(host="host-b", approve=False, stubborn=True, policy=STUBBORN),
    "mover": Vm(host="host-c", approve=False),
    "restarted": Vm(host="host-d", approve=False, stubborn=True, policy=STUBBORN),
    "redeployed": Vm(host="host-d", approve=False, stubborn=True, policy=STUBBORN),
    "evicted": Vm(host="host-d", approve=False, stubborn=True, policy=STUBBORN, spot=True),
    "deleted": Vm(host="host-d", approve=False, stubborn=True, policy=STUBBORN),
}
RESTARTED = ("rebooted", "restarted", "redeployed")
KINDS = {
    "frozen": ("host-update", "host-a", {"duration_seconds": FREEZE}),
    "rebooted": ("host-reboot", "host-b", {}),
    "mover": ("live-migration", "host-c", {}),
    "restarted": ("restart", "restarted", {}),
    "redeployed": ("redeploy", "redeployed", {}),
    "evicted": ("eviction", "evicted", {}),
    "deleted": ("deletion", "deleted", {}),
}


def test_the_service_and_libvirtd_are_killed(tmp_path: Path) -> None:
    with a_lab(tmp_path, VMS, HOSTS) as lab:
        begun = len(lab.happened)
        operations = begin(lab, *KINDS)
        until(lambda: is_in_the_middle(lab, operations), lambda: f"all are under way: {lab.happened}")
        # Also at the very moment at which the first is powered off, and when the first is started again. Where the
        # machine is slow, that may have been already.
        seen = {each.what for each in lab.happened[begun:] if each.vm in RESTARTED}
        killer = Killer(lab, RESTARTED, {"stopped", "started"} - seen)
        lab.server.kill()
        ended = killer.see_through(operations.values())
        assert [each["status"] for each in ended] == ["Completed"] * len(ended), ended
        assert killer.wanted == set()
        each_happened_once(lab)
        libvirtd_is_killed(lab)


def begin(lab: Lab, *vms: str) -> dict[str, str]:
    """All at once, approved by an operator; gives the operation for each VM."""
    made = {vm: lab.server.schedule(kind, name, **more) for vm, (kind, name, more) in KINDS.items() if vm in vms}
    for operation in made.values():
        for event in operation["events"]:
            if event["type"] != "Preempt":
                lab.server.post(f"/v1/events/{event['id']}/approve")
    return {vm: operation["id"] for vm, operation in made.items()}


def is_in_the_middle(lab: Lab, operations: Mapping[str, str]) -> bool:
    """Each is marked, frozen, or on its way; or already further than that, where the machine is slow."""
    return all(_is_under_way(lab, vm, operation) for vm, operation in operations.items())


def _is_under_way(lab: Lab, vm: str, operation: str) -> bool:
    if vm == "frozen":
        return bool(lab.seen(vm=vm, what="suspended"))
    if vm == "mover":
        return len(lab.seen(vm=vm, what="started")) > 1
    host = VMS[vm].host
    return lab.machine(vm).mark(host, live=False) == operation or bool(lab.seen(vm=vm, what="stopped"))


def each_happened_once(lab: Lab) -> None:
    """By what guests and libvirt say."""
    for name, persistent, ephemeral in (("restarted", 2, 2), ("rebooted", 2, 2), ("redeployed", 2, 1)):
        vm = lab.machine(name)
        last = vm.polled()
        assert len(vm.boots) == 2, name
        assert (last.boot_id, last.persistent_boots, last.ephemeral_boots) == (vm.boots[-1], persistent, ephemeral), (
            name
        )
        assert [each.how for each in lab.seen(vm=name, what="stopped")] == [BY_POWER_CUT], name
    assert lab.machine("restarted").facts == (["host-d"], ["host-d"], "host-d")
    assert lab.machine("rebooted").facts == (["host-b"], ["host-b"], "host-b")
    for name in ("redeployed", "mover"):
        assert lab.machine(name).facts == (["host-e"], ["host-e"], "host-e"), name
    for name in ("mover", "frozen"):
        vm = lab.machine(name)
        assert [vm.polled().boot_id] == vm.boots, name
    assert len(lab.seen(vm="frozen", what="suspended")) == 1
    for name in ("evicted", "deleted"):
        vm = lab.machine(name)
        assert vm.defined == []
        assert len(vm.boots) == 1
        assert [disk.exists() for disk in vm.guest.disks] == [True, False]
        assert lab.server.control("GET", f"/v1/vms/{name}").status == 404


def libvirtd_is_killed(lab: Lab) -> None:
    """Guests go on without it; when it is back, so does what was under way."""
    frozen, restarted = lab.machine("frozen"), lab.machine("restarted")
    moved = [lab.machine(name) for name in ("mover", "redeployed")]
    boots = {vm.name: vm.boots for vm in (frozen, restarted, *moved)}
    begun = len(lab.happened)
    operations = begin(lab, "frozen", "restarted")
    migration = lab.server.schedule("live-migration", "host-e")
    for event in migration["events"]:
        lab.server.post(f"/v1/events/{event['id']}/approve")

    def are_under_way() -> bool:
        seen = {(each.vm, each.what) for each in lab.happened[begun:]}
        marked = restarted.mark("host-d", live=False) == operations["restarted"]
        return (
            marked
            and ("frozen", "suspended") in seen
            and bool({("mover", "started"), ("redeployed", "started")} & seen)
        )

    until(are_under_way, lambda: f"all are under way: {lab.happened[begun:]}")
    for name in ("host-a", "host-d", "host-e"):
        lab.hosts[name].restart_libvirtd()
    for operation in (*operations.values(), migration["id"]):
        lab.ended(operation)
    last = restarted.polled()
    assert (restarted.boots[:-1], last.persistent_boots, last.ephemeral_boots) == (boots["restarted"], 3, 3)
    for vm in (frozen, *moved):
        assert vm.polled().boot_id == boots[vm.name][-1]
        assert vm.boots == boots[vm.name]
    for vm in moved:
        assert vm.facts == (["host-d"], ["host-d"], "host-d")
