"""What docs/drivers.md shows is what drivers do."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from tests.acceptance.running import until
from tests.docs.test_snippets import ROOT, blocks

from forenotice.clock import SystemClock
from forenotice.core.driver_calls import Finished, Task
from forenotice.core.operations import Kind
from forenotice.drivers import file, webhook
from forenotice.drivers.webhook import WebhookDriver
from forenotice.runtime import Runtime
from forenotice.ssrf import EVERYWHERE, OutgoingClient

PAGE = ROOT / "docs" / "drivers.md"
SECRET = "a secret of sixteen or more"
TASK = Task(
    operation="o-1",
    kind=Kind.RESTART,
    host="host-a",
    vms=("web-0", "web-1"),
    targets={},
    attempt=1,
    started_at=datetime(2026, 1, 5, tzinfo=UTC),
)


def of(language: str) -> list[str]:
    return [text for found, text in blocks(PAGE) if found == language]


def test_the_files_are_ones_that_serve_takes(tmp_path: Path) -> None:
    shown = []
    for text in of("toml"):
        path = tmp_path / "driver.toml"
        path.write_text(text)
        shown.append(file.load(path)[1])
    kinds = [[type(config) for _, config in drivers] for drivers in shown]
    assert kinds == [[file.Command], [file.Webhook], [file.Webhook, file.Command, file.Command]]
    ((_, command),) = shown[0]
    assert command.each_vm == set(Kind) - {Kind.HOST_UPDATE, Kind.HOST_REBOOT}


VIRSH = """#!/bin/sh
# Stands for virsh, which cannot run here without libvirt: a folder for each host, with a file for each VM in it.
[ "$1 $2" = "-q -c" ] || exit 9
cd "$HOSTS/$(echo "$3" | sed 's#qemu+ssh://\\(.*\\)/system#\\1#')" || exit 1
shift 3
echo "$*" >> "$HOSTS/asked"
case $1 in list) ls; exit ;; esac
for vm; do case $vm in -*) ;; *) [ -e "$vm" ] && break ;; esac; done
[ -e "$vm" ] || exit 1
case $1 in
domstate) read -r state < "$vm"; [ "$state" != "shutting down" ] || echo "shut off" > "$vm"; echo "$state" ;;
domid) read -r state < "$vm"; if [ "$state" = running ]; then cat "$HOSTS/id"; else echo -; fi ;;
shutdown) echo "shutting down" > "$vm" ;;
destroy) echo "shut off" > "$vm" ;;
start) echo running > "$vm"; echo "$(($(cat "$HOSTS/id") + 1))" > "$HOSTS/id" ;;
undefine) rm "$vm" ;;
migrate) mv "$vm" "../$(echo "$6" | sed 's#qemu+ssh://\\(.*\\)/system#\\1#')" ;;
esac
"""


@dataclass
class Hypervisors:
    folder: Path

    def machine(self, *words: str, operation: str = "o-1") -> int:
        env = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOSTS": str(self.folder)}
        script = str(self.folder / "machine")
        env |= {"FORENOTICE_OPERATION": operation, "FORENOTICE_SHUTDOWN_TIMEOUT": "60"}
        return subprocess.run([script, *words], env=env, check=False).returncode

    @property
    def asked(self) -> list[str]:
        """What changed something."""
        asked = self.folder / "asked"
        lines = asked.read_text().splitlines() if asked.exists() else []
        asked.unlink(missing_ok=True)
        return [line for line in lines if line.split()[0] not in ("list", "domstate", "domid")]


@pytest.fixture
def hypervisors(tmp_path: Path) -> Hypervisors:
    (script,) = of("sh")
    for name, text in {
        "machine": script.replace("/var/lib/forenotice", str(tmp_path)),
        "bin/virsh": VIRSH,
        "host-a/web-0": "running\n",
        "host-b/db": "shut off\n",
        "id": "1\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return Hypervisors(tmp_path)


def test_the_script_ends_when_a_vm_has_restarted_and_repeats_nothing(hypervisors: Hypervisors) -> None:
    assert hypervisors.machine("restart", "web-0", "host-a") == 0
    assert hypervisors.asked == ["shutdown web-0", "start web-0"]
    assert hypervisors.machine("restart", "web-0", "host-a") == 0
    assert hypervisors.asked == []
    # It died between the two.
    (hypervisors.folder / "host-a" / "web-0").write_text("shut off\n")
    assert hypervisors.machine("restart", "web-0", "host-a") == 0
    assert hypervisors.asked == ["start web-0"]
    assert hypervisors.machine("restart", "db", "host-b", operation="o-2") == 0
    assert hypervisors.asked == ["start db"]
    assert hypervisors.machine("restart", "none", "host-b") != 0


def test_the_script_leaves_no_deleted_vm_running(hypervisors: Hypervisors) -> None:
    assert hypervisors.machine("eviction", "web-0", "host-a") == 0
    assert hypervisors.machine("eviction", "web-0", "host-a") == 0
    assert hypervisors.asked == ["destroy web-0"]
    (hypervisors.folder / "host-a" / "web-0").write_text("running\n")
    assert hypervisors.machine("deletion", "web-0", "host-a") == 0
    assert hypervisors.machine("deletion", "web-0", "host-a") == 0
    assert hypervisors.asked == ["destroy web-0", "undefine web-0 --nvram --remove-all-storage"]


def test_the_script_does_not_take_a_vm_for_gone_whose_host_does_not_answer(hypervisors: Hypervisors) -> None:
    assert hypervisors.machine("deletion", "web-0", "host-c") != 0
    assert hypervisors.machine("live-migration", "web-0", "host-c", "host-b") != 0


def test_the_script_moves_a_vm_once(hypervisors: Hypervisors) -> None:
    for _ in range(2):
        assert hypervisors.machine("live-migration", "web-0", "host-a", "host-b") == 0
    assert [line.split()[0] for line in hypervisors.asked] == ["migrate"]
    assert (hypervisors.folder / "host-b" / "web-0").exists()
    assert hypervisors.machine("live-migration", "none", "host-a", "host-b") != 0


def test_the_page_names_every_kind_every_placeholder_and_every_variable() -> None:
    page = PAGE.read_text()
    assert [kind for kind in Kind if f"`{kind}`" not in page] == []
    known = file.Action(run=("x",)).known(Kind.REDEPLOY)
    assert [name for name in known if f"`{{{name}}}`" not in page or f"`FORENOTICE_{name.upper()}`" not in page] == []


def test_the_body_is_what_is_sent() -> None:
    (shown,) = of("json")
    assert json.loads(shown).keys() == webhook.document(TASK).keys()
    sent = msgspec.to_builtins(webhook.document(TASK))
    assert json.loads(shown)["vms"][0].keys() == sent["vms"][0].keys()


@contextmanager
def receiving(folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "driver.secret").write_text(SECRET + "\n")
    (folder / "driver.secret").chmod(0o600)
    (text,) = of("python")
    text = text.replace("/etc/forenotice", str(folder)).replace("8300", str(port))
    started = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.DEVNULL)
    try:
        until(lambda: _listens(port))
        yield f"http://127.0.0.1:{port}/"
    finally:
        started.terminate()
        started.wait(60)


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_the_receiver_takes_what_is_signed_and_nothing_else(tmp_path: Path) -> None:
    clock = SystemClock()
    with receiving(tmp_path) as url:
        for secret, taken in ((SECRET, True), ("another one of that length", False)):
            receiver = webhook.Receiver(url=url, secret=secret, completion_seconds=5)
            driver = WebhookDriver(receiver, OutgoingClient(private=EVERYWHERE, seconds=5), Runtime(clock=clock))
            for _ in range(2):
                outcome = driver.carry_out(TASK, clock.now())
                assert isinstance(outcome, Finished)
                assert (outcome.done == TASK.vms) is taken
                assert all("answered 401" in why for why in outcome.failures.values())
