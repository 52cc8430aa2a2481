"""The history on the command line: in words, as files, and pruned."""

import csv
import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.cli.samples import history, sample
from tests.cli.test_main import on_a_terminal
from tests.control.running import Control

from forenotice.cli.history import row


@pytest.fixture(scope="module")
def told(module_control: Control) -> dict[str, str]:
    """An event and its operation, from the announcement to the end."""
    for host in ("host-a", "host-b"):
        module_control.post("/v1/hosts", {"name": host})
    module_control.post("/v1/groups", {"name": "web", "kind": "availability-set", "policy": {"listening": "always"}})
    module_control.post("/v1/vms", {"name": "web-0", "host": "host-a", "group": "web"})
    asked = {"kind": "restart", "names": ["web-0"], "reason": "new kernel"}
    [operation] = module_control.post("/v1/operations", asked)["operations"]
    [event] = operation["events"]
    module_control.post(f"/v1/events/{event['id']}/approve")
    module_control.post(f"/v1/events/{event['id']}/cancel")
    return {"event": event["id"], "operation": operation["id"]}


def test_an_event_is_told_from_its_beginning_to_its_end(cli: Run, told: dict[str, str]) -> None:
    head, *lines = cli("history", "--event", told["event"]).out.splitlines()
    assert head.split() == ["at", "action", "about", "what", "happened", "by", "from", "why"]
    assert [line.split()[3] for line in lines] == ["event.scheduled", "event.approved", "event.canceled"]
    scheduled = lines[0]
    assert re.search(r"Reboot of web-0 was announced, not before \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", scheduled)
    assert f"group web, host host-a, event {told['event']}, operation {told['operation']}" in scheduled
    assert re.search(r"operator:admin +127\.0\.0\.1 +new kernel$", scheduled)


def test_filters(cli: Run, told: dict[str, str]) -> None:
    def actions(*filters: str) -> list[str]:
        return [entry["action"] for entry in cli("history", "--json", *filters).json]

    of_vm = actions("--vm", "web-0")
    assert {"vm.added", "operation.scheduled", "event.scheduled", "event.approved", "event.canceled"} <= set(of_vm)
    assert actions("--operation", told["operation"], "--action", "event.") == of_vm[-4:-1]
    assert actions("--vm", "web-0", "--limit", "2") == of_vm[-2:]
    assert actions("--vm", "web-0", "--since", "1h") == of_vm
    assert actions("--until", "1h") == actions("--rollout", "none") == actions("--by", "nobody") == []
    assert cli("history", "--group", "web", "--action", "group.added", "--json").json[0]["scope"] == "group:web"
    assert cli("history", "--until", "2020-01-01").out == "No matching entries.\n"
    assert actions("--since", "2020-01-01T00:00:00+02:00", "--host", "host-a") != []


def test_an_export(cli: Run, told: dict[str, str], tmp_path: Path) -> None:
    everything = cli("history", "--limit", "1000", "--json").json
    assert [json.loads(line) for line in cli("history", "--format", "jsonl").out.splitlines()] == everything
    file = tmp_path / "history.csv"
    said = cli("history", "--format", "csv", "--output", str(file), "--event", told["event"].lower())
    assert said.out == f"The history is in {file}.\n"
    with file.open(newline="") as opened:
        actions = [row["action"] for row in csv.DictReader(opened)]
    assert actions == ["event.scheduled", "event.approved", "event.canceled"]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["history.csv"]


def test_what_goes_wrong_leaves_no_file(cli: Run, tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    assert cli("history", "--format", "csv", "-o", str(file), "--vm", "\x00").code == 1
    assert not file.exists()
    said = cli("history", "--format", "csv", "-o", str(tmp_path / "none" / "file"))
    assert said.err == f"forenotice: {tmp_path / 'none' / 'file'} cannot be written: No such file or directory\n"


def test_pruning(cli: Run) -> None:
    said = cli("history", "prune", "--before", "90d", "--dry-run").out
    none = "0 entries, 0 operations, 0 events, 0 rollouts"
    assert re.fullmatch(rf"Would be deleted from before \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC: {none}\.\n", said)
    assert cli("history", "prune", "--before", "2026-01-31", "--yes").out == (
        f"Deleted from before 2026-01-31 00:00:00 UTC: {none}.\n"
    )
    pruned = cli("history", "prune", "--before", "2026-01-31", "--json").json
    assert (pruned["entries"], pruned["complete"]) == (0, True)
    assert "the last 24 hours" in cli("history", "prune", "--before", "2h").err
    assert "--before" not in cli("history", "--action", "history.pruned").out


def test_pruning_is_confirmed_on_a_terminal(cli: Run) -> None:
    code, text = on_a_terminal(b"n\n", "history", "prune", "--before", "90d")
    assert (code, "Delete 0 entries" in text, "nothing was done" in text) == (1, True, True)


def test_a_row_says_who_and_why() -> None:
    told = sample(history.Entry, reason="kernel", vm="web-0", rollout="r", operation=None, data={"approved_by": "vm:a"})
    about, _, *others = row(told)[2:]
    assert about == f"vm web-0, event {told.event}, rollout r"
    assert others == ["operator:admin", "10.0.0.99", "kernel"]
    data = {"approved_by": "vm:a", "reason": "old"}
    assert row(sample(history.Entry, by="", data=data))[4:] == ("vm:a", "10.0.0.99", "old")
