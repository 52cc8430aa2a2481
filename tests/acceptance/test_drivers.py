"""Drivers that act, through `forenotice serve`: what is asked for outside, what is told, what is left after a crash."""

import threading
from pathlib import Path
from typing import Any

from tests.acceptance.running import Server, serving, until
from tests.drivers.receiver import SECRET, Asked, Said, receiving

ACT = """#!/bin/sh
# Waits where it is told to, and fails for one VM.
echo "$FORENOTICE_OPERATION $FORENOTICE_ATTEMPT $1 $2" >> "$PLACE/log"
for _ in $(seq 200); do
    [ "$1" = web-0 ] && [ ! -e "$PLACE/go" ] || break
    sleep 0.1
done
[ "$1" != pool_1 ] || { echo "no room for $1 on $2" >&2; exit 3; }
"""
COMMAND = """
driver = "command"
tries = 2
pause = "200ms"
pass = ["PLACE"]

[actions]
default = ["FOLDER/act", "{vm}", "{host}"]
hardware-failure = ["FOLDER/act", "{vm}", "{target}"]
"""
WEBHOOK = """
driver = "webhook"
url = "URL"
secret_file = "FOLDER/secret"
completion_limit = "1m"
"""


def served(folder: Path, description: str) -> Any:
    (folder / "driver.toml").write_text(description.replace("FOLDER", str(folder)))
    return serving(folder, "--demo", "--speed", "600", "--driver", str(folder / "driver.toml"))


def ended(server: Server, operation: str) -> Any:
    return until(lambda: (found := server.get(f"/v1/operations/{operation}"))["ended_at"] and found)


def test_commands_are_repeated_after_a_crash_and_end_with_each_vms_result(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PLACE", str(tmp_path))
    (tmp_path / "act").write_text(ACT)
    (tmp_path / "act").chmod(0o755)
    log = tmp_path / "log"

    def begun() -> list[list[str]]:
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    with served(tmp_path, COMMAND) as server:
        operation = server.schedule("hardware-failure", "host-a")["id"]
        until(lambda: [operation, "1", "web-0", "host-d"] in begun())
        server.kill()
        before = begun()
        assert "cannot reach the control plane at" in server.cli("vm", "list").stderr
        server.start()
        assert server.cli("vm", "list").returncode == 0, "at the new socket, in place of what was left behind"
        until(lambda: [operation, "1", "web-0", "host-d"] in begun()[len(before) :])
        (tmp_path / "go").touch()
        found = ended(server, operation)
        assert (found["status"], set(found["failures"])) == ("Failed", {"pool_1"})
        target = found["targets"]["pool_1"]
        assert found["failures"]["pool_1"] == f"exit code 3: no room for pool_1 on {target}"
        failed = [entry["data"] for entry in server.history(operation=operation, action="driver.failed")]
        assert [entry["attempt"] for entry in failed] == [1, 2]
        assert set(failed[0]["done"]) == {"web-0", "pool_0"}
        (last,) = failed[1]["calls"]
        assert (last["vms"], last["exit_code"], last["output"]) == (["pool_1"], 3, f"no room for pool_1 on {target}")
        (over,) = server.history(operation=operation, action="operation.failed")
        assert over["data"]["results"] == {**dict.fromkeys(["web-0", "pool_0"], "done"), **found["failures"]}
        # What was done is not asked for again.
        assert [vm for _, attempt, vm, _ in begun() if attempt == "2"] == ["pool_1"]


def test_a_webhook_answers_at_once_by_polling_or_by_callback(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    result = {"failures": {}, "attempt": 1}

    def answer(asked: Asked) -> Said:
        if asked.method == "GET":
            return 200, {"done": [asked.path.rpartition("/")[2]]}
        (vm,) = [vm["name"] for vm in asked.json["vms"]]
        if vm == "web-0":
            return 200, {"done": [vm]}
        if vm == "db":
            return 202, {"poll": f"/jobs/{vm}", "after_seconds": 0.1}
        body = {**result, "done": [vm]}
        path = f"/v1/operations/{asked.json['operation']}/result"
        threading.Thread(target=lambda: told.append(server.control("POST", path, body).status), daemon=True).start()
        return 202, b""

    told: list[int] = []
    with receiving(answer) as outside, served(tmp_path, WEBHOOK.replace("URL", outside.url)) as server:
        made = {vm: server.schedule("restart", vm) for vm in ("web-0", "db", "batch")}
        for operation in made.values():
            server.post(f"/v1/events/{operation['events'][0]['id']}/approve")
        for operation in made.values():
            assert ended(server, operation["id"])["status"] == "Completed"
        assert told == [200]
        late = server.control("POST", f"/v1/operations/{made['db']['id']}/result", {**result, "done": ["db"]})
        assert (late.status, late.json["error"]["facts"]["status"]) == (409, "Completed")
        posted = [asked for asked in outside.asked if asked.method == "POST"]
        assert sorted(asked.json["operation"] for asked in posted) == sorted(one["id"] for one in made.values())
