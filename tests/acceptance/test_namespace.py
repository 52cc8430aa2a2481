"""The whole path where clients expect it, http://169.254.169.254, in a network namespace that the test makes."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.acceptance.running import Server, run, until

ENDPOINT = "169.254.169.254"
SCRIPT = f'ip link set lo up && ip address add {ENDPOINT}/32 dev lo && exec "$@"'


class Inside:
    """A terminal in the server's namespace."""

    def __init__(self, server: Server) -> None:
        assert server.process is not None
        enter = ["nsenter", f"--target={server.process.pid}", "--net"]
        self._enter = enter if os.geteuid() == 0 else [*enter, "--user", "--preserve-credentials"]
        # Nothing but the namespace leads to the endpoint: its clients go by their own default.
        self._env = {name: value for name, value in server.env.items() if name != "FORENOTICE_ENDPOINT"}
        leads = self.run("ip", "-o", "route", "show", "table", "all").splitlines()
        assert [line for line in leads if " dev lo " not in f"{line} "] == [], "not a namespace of its own"

    def run(self, *command: str) -> str:
        done = run(*self._enter, *command, env=self._env)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout


def test_guests_need_to_be_told_nothing(tmp_path: Path) -> None:
    unshare = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        assert os.environ.get("CI") != "true", "this test needs a network namespace of its own"
        pytest.skip("needs a network namespace of its own, as root or in a user namespace")
    server = Server(tmp_path, "--demo", "--speed", "20", before=(*unshare, "sh", "-c", SCRIPT, "sh"))
    server.guests, server.operators = f"{ENDPOINT}:80", "127.0.0.1:8255"
    server.start()
    try:
        inside = Inside(server)
        inside.run("forenotice", "vm", "restart", "web-0")
        (event,) = json.loads(inside.run("forenotice", "guest", "events", "--json"))["Events"]
        assert event["EventType"] == "Reboot"
        assert inside.run("forenotice", "guest", "approve", event["EventId"]) == f"Approved {event['EventId']}.\n"
        url = f"http://{ENDPOINT}/metadata/scheduledevents?api-version=2020-07-01"
        until(
            lambda: not json.loads(inside.run("curl", "-sS", "-H", "Metadata:true", url))["Events"],
            what="the approved restart is done",
        )
        assert server.terminate() == 0
    finally:
        if server.process is not None:
            server.kill()
