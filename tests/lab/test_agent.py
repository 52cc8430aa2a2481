"""Our agent in a real guest that really reboots."""

from pathlib import Path

import msgspec
from tests.acceptance.running import until

from forenotice.lab.lab import Lab, Plan

PLAN = Plan(hosts=("host-a",), accelerator="qemu", agents=1, prepare=0.5, speed=5)


def test_the_agent_prepares_approves_and_recovers_after_the_reboot(place: Path) -> None:
    with Lab.up(place / "lab", PLAN, bound=True) as lab:
        guest = lab.guests["vm-0"]
        assert (first := guest.latest)
        done = lab.service.run("vm", "restart", "vm-0", "--wait", "--json", seconds=400)
        assert done.returncode == 0, (done.stdout, done.stderr, guest.last_words)
        (operation,) = msgspec.json.decode(done.stdout)["operations"]
        (event,) = operation["events"]
        assert (event["status"], event["approved_by"]) == ("Completed", "vm-0")
        (recovered,) = until(
            lambda: [report for report in guest.reports() if report.recovered],
            what=lambda: f"the agent has recovered; the guest wrote last: {guest.last_words}",
        )
        prepared = [report for report in guest.reports() if report.prepares]
        assert [(report.prepares, report.type, report.boot_id) for report in prepared] == [
            (event["id"], "Reboot", first.boot_id)
        ]
        # It knew from its journal, on the persistent disk, what it had prepared for.
        assert (recovered.recovered, recovered.type) == (event["id"], "Reboot")
        assert recovered.boot_id != first.boot_id
        assert (last := guest.latest)
        assert (last.boot_id, last.persistent_boots) == (recovered.boot_id, 2)
