"""Our agent in a real guest that is really paused, and really reboots."""

from pathlib import Path
from typing import Any

import msgspec
from tests.acceptance.running import until

from forenotice.lab.guests import Guest, Report
from forenotice.lab.lab import Lab, Plan

PLAN = Plan(hosts=("host-a",), accelerator="qemu", agents=1, prepare=0.5, speed=5)
FREEZE = 4
"""Seconds; where only the endpoint's Date shows a pause, it is known to a second."""


def _ended(lab: Lab, *command: str) -> dict[str, Any]:
    """The event, which is over."""
    done = lab.service.run(*command, "--wait", "--json", seconds=400)
    assert done.returncode == 0, (done.stdout, done.stderr, lab.guests["vm-0"].last_words)
    event: dict[str, Any] = msgspec.json.decode(done.stdout)["operations"][0]["events"][0]
    assert event["status"] == "Completed"
    return event


def _recovered(guest: Guest, times: int) -> list[Report]:
    def all_of_them() -> list[Report]:
        found = [report for report in guest.reports() if report.recovered]
        return found if len(found) == times else []

    return until(all_of_them, what=lambda: f"the agent has recovered; the guest wrote last: {guest.last_words}")


def test_the_agent_measures_a_freeze_and_recovers_after_a_reboot(place: Path) -> None:
    with Lab.up(place / "lab", PLAN, bound=True) as lab:
        guest = lab.guests["vm-0"]
        assert (first := guest.latest)
        assert _ended(lab, "host", "update", "host-a", "--duration", f"{FREEZE}s")["approved_by"] == "vm-0"
        (frozen,) = _recovered(guest, 1)
        # Its own clocks stood still; by others it has noticed nearly all of it.
        assert (frozen.type, frozen.boot_id) == ("Freeze", first.boot_id)
        assert frozen.paused is not None
        assert frozen.paused > FREEZE - 1.5

        event = _ended(lab, "vm", "restart", "vm-0")
        assert event["approved_by"] == "vm-0"
        _, recovered = _recovered(guest, 2)
        _, *prepared = (report for report in guest.reports() if report.prepares)
        assert [(report.prepares, report.type, report.boot_id) for report in prepared] == [
            (event["id"], "Reboot", first.boot_id)
        ]
        # It knew from its journal, on the persistent disk, what it had prepared for.
        assert (recovered.recovered, recovered.type) == (event["id"], "Reboot")
        assert recovered.boot_id != first.boot_id
        assert (last := guest.latest)
        assert (last.boot_id, last.persistent_boots) == (recovered.boot_id, 2)
