"""`forenotice rollout`, against a control plane that really runs."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.acceptance.running import until
from tests.cli.conftest import Run
from tests.control.conftest import settled
from tests.control.running import Control

from forenotice.service import rollouts
from forenotice.service.rollouts import RolloutLoop


@pytest.fixture(scope="module")
def site(module_control: Control) -> Control:
    return settled(module_control)


@pytest.fixture
def operator(cli: Run, site: Control) -> Iterator[Run]:
    yield cli
    for rollout in cli("rollout", "list", "--json").json:
        cli("rollout", "cancel", rollout["id"])
    rollouts.advance(site.service, {})


def start(operator: Run, *options: str) -> str:
    return str(operator("rollout", "start", "--hosts", "host-*", "--kind", "update", *options, "--json").json["id"])


def test_a_rollout_from_its_start_to_its_cancelling(operator: Run, site: Control) -> None:
    options = ("--batch", "2", "--pause", "10m", "--gate", "https://shop.example.com/", "--max-failures", "3")
    more = ("--window", "daily 00:00-24:00 UTC", "--notice", "1h", "--reason", "new kernel")
    said = operator("rollout", "start", "--hosts", "host-*", "--kind", "reboot", *options, *more).out
    found = re.match(
        r"Rollout (\S+): reboot of 3 hosts, in 2 waves\.\n  why it waits: forenotice rollout explain \1\n", said
    )
    assert found
    shown = operator("rollout", "show", found[1])
    shown.shows("kind +reboot", r"hosts +host-\*", "status +Running", "wave +0 of 2", "progress +2 waiting, 1 skipped")
    shown.shows("batch +2", "pause +10 min", "notice +60 min", "gate +https://shop.example.com/", "by +operator:admin")
    shown.shows("windows +daily 00:00-24:00 UTC", "failures +0 since it was started or resumed", "reason +new kernel")
    shown.shows("pauses after +3 failures", "wave +update domains +progress", "1 +0 +1 waiting, 1 skipped")
    assert "gate result" not in shown.out
    assert operator("rollout", "list").out.splitlines()[1].split()[:4] == [found[1], "reboot", "host-*", "Running"]
    operator("rollout", "pause", found[1], "--reason", "lunch").shows("why +paused by operator:admin: lunch")
    assert "It was paused by operator:admin: lunch." in operator("rollout", "explain", found[1]).out
    assert operator("rollout", "explain", found[1], "--json").json["waiting_for"][0]["kind"] == "paused"
    operator("rollout", "resume", found[1], "--retry").shows("status +Running")
    assert operator("rollout", "cancel", found[1], "--json").json["status"] == "Canceling"
    rollouts.advance(site.service, {})
    assert operator("rollout", "list").out.startswith("No rollout is under way; --all shows")
    assert "Canceled" in operator("rollout", "list", "--all").out
    assert "is Canceled: only a running rollout can be paused" in operator("rollout", "pause", found[1]).err


def test_hosts_of_a_rollout(operator: Run, site: Control) -> None:
    rollout = start(operator)
    assert not re.search(r"^(pause|notice) ", operator("rollout", "show", rollout).out, re.MULTILINE)
    rollouts.advance(site.service, {})
    listed = [line.split()[:3] for line in operator("rollout", "hosts", rollout).out.splitlines()]
    assert listed[:2] == [["host", "wave", "status"], ["host-a", "1", "Under"]]
    (host,) = operator("rollout", "hosts", rollout, "--status", "under-way", "--json").json
    assert host["host"] == "host-a"
    assert operator("rollout", "hosts", rollout, "--status", "failed").out == "It has no such hosts.\n"
    assert "host-a is Scheduled: it waits for approval by" in operator("rollout", "explain", rollout).out


def test_a_plan_for_people_and_for_machines(operator: Run) -> None:
    operator("group", "policy", "web", "--max-unavailable", "50%")
    planning = ("rollout", "plan", "--hosts", "*", "--kind", "update")
    operator(*planning).shows(
        r"Update of 2 hosts in 2 waves, over in \d+ min \d+ s if it is started now\. Nothing is done yet\.",
        r"1 +(\d{4}-\S+ \S+ UTC +){3}host-a +batch, web-0",
        r"web +2 +at most 1 +\d+ s +max_unavailable 50% allows 1",
        r"2 standalone VMs are down too\.",
        r"Skipped, because they have no VMs: host-c\.",
        "Assumed: .*",
    )
    operator(*planning, "--duration", "1m").shows("Assumed: .* each host takes 60 s at speed 1, .*")
    plan = operator(*planning, "--json").json
    assert [host["vms"] for host in plan["planned_hosts"]] == [["batch", "web-0"], ["db", "web-1"]]
    assert operator("rollout", "list", "--json").json == []
    operator("group", "policy", "web", "--max-unavailable", "10%")
    assert "the budget of group web can never be met" in operator(*planning).err
    operator("group", "policy", "web", "--max-unavailable", "off")
    assert operator("rollout", "plan", "--hosts", "host-c", "--kind", "update").out.startswith("Nothing would be")


def test_waiting_for_the_end(operator: Run, site: Control) -> None:
    roller = RolloutLoop(site.service)
    roller.start()
    try:
        ran = operator("rollout", "start", "--hosts", "host-c", "--kind", "update", "--wait", failing=0)
        found = re.search(r"Rollout (\S+) is Completed: 1 skipped\.\n$", ran.out)
        assert found
        assert operator("rollout", "wait", found[1]).out == f"Rollout {found[1]} is Completed: 1 skipped.\n"
    finally:
        roller.stop()


def test_a_wait_that_ends_early_still_shows_the_id(operator: Run) -> None:
    limited = ("--wait-limit", "0.1s")
    asked = ("--hosts", "host-a", "--kind", "update")
    rollout = operator("rollout", "start", *asked, *limited, "--json", failing=1).json["id"]
    assert f"Rollout {rollout} is still Running." in operator("rollout", "wait", rollout, *limited, failing=1).err
    operator("rollout", "pause", rollout)
    paused = operator("rollout", "wait", rollout, "--json", failing=1)
    assert paused.json["status"] == "Paused"
    assert "paused by operator:admin" in paused.err
    resumed = operator("rollout", "resume", rollout, "--retry", *limited, failing=1)
    assert resumed.out == f"Rollout {rollout} is resumed, and tries failed hosts again.\n"
    assert f"Rollout {rollout} is still Running." in resumed.err


@pytest.mark.parametrize(
    ("verb", "ended"), [("pause", "Paused: paused by operator:admin: wait"), ("cancel", "Canceled")]
)
def test_waiting_ends_when_it_goes_no_further(operator: Run, site: Control, verb: str, ended: str) -> None:
    with waiting(site) as process:
        until(lambda: site.get("/v1/rollouts?live=true")["items"] != [])
        (rollout,) = site.get("/v1/rollouts?live=true")["items"]
        site.post(f"/v1/rollouts/{rollout['id']}/{verb}", {"reason": "wait"})
        rollouts.advance(site.service, {})
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"Rollout {rollout['id']} is {ended}" in err.splitlines()[-1]


def waiting(site: Control) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "forenotice", "rollout", "start", "--hosts", "host-a", "--kind", "update", "--wait"],
        env=os.environ | {"FORENOTICE_CONTROL": site.url, "FORENOTICE_TOKEN": site.token},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
