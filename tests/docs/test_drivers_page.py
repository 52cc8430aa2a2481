"""What docs/drivers.md shows is what drivers do."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from tests.acceptance.running import until
from tests.docs.test_snippets import ROOT, blocks

from forenotice.clock import SystemClock
from forenotice.core.driving import Finished, Task
from forenotice.core.operations import Kind
from forenotice.drivers import file, webhook
from forenotice.drivers.letterbox import Letterbox
from forenotice.drivers.webhook import WebhookDriver
from forenotice.outgoing import EVERYWHERE, Outgoing

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
        shown.append(file.load(path))
    command, asked = shown
    assert isinstance(command, file.Command)
    assert isinstance(asked, file.Webhook)
    assert command.each_vm == set(Kind) - {Kind.HOST_UPDATE, Kind.HOST_REBOOT}


def test_the_page_names_every_kind_every_placeholder_and_every_variable() -> None:
    page = PAGE.read_text()
    assert [kind for kind in Kind if f"`{kind}`" not in page] == []
    known = file.Action(run=("x",)).known(Kind.REDEPLOY)
    assert [name for name in known if f"`{{{name}}}`" not in page or f"`FORENOTICE_{name.upper()}`" not in page] == []


def test_the_body_is_what_is_sent() -> None:
    (shown,) = of("json")
    assert json.loads(shown).keys() == webhook.document(TASK, "").keys()
    sent = msgspec.to_builtins(webhook.document(TASK, ""))
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
            driver = WebhookDriver(receiver, Outgoing(private=EVERYWHERE, seconds=5), Letterbox(), clock.outside)
            for _ in range(2):
                outcome = driver.carry_out(TASK, clock.now())
                assert isinstance(outcome, Finished)
                assert (outcome.done == TASK.vms) is taken
                assert all("answered 401" in why for why in outcome.failures.values())
