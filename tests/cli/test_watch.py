"""`forenotice watch`: one frame, a terminal that is left clean, lines of JSON, and a server that goes away."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from rich.console import Console
from tests.cli.conftest import Run
from tests.cli.samples import history, maintenance, rollouts, sample
from tests.cli.stranger import answer, stranger
from tests.control.running import Control, running, serving

from forenotice import settings
from forenotice.cli import watch
from forenotice.cli.api import Api, RefusalError
from forenotice.cli.watch import Poller, Reason, Snapshot
from forenotice.control import app
from forenotice.control.server import ControlServer
from forenotice.core.operations import EventType
from forenotice.core.rollouts import RolloutStatus

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
T = TypeVar("T")


@contextmanager
def on_a_terminal(*arguments: str, columns: int = 100, rows: int = 24) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "forenotice", *arguments],
        env=os.environ | {"TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, wanted: str) -> str:
    """What was drawn until something was; a terminal that closes before is an error."""
    said = ""
    while wanted not in said:
        said += os.read(terminal, 65536).decode(errors="replace")
    return said


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_terminal_is_drawn_on_and_left_clean(fresh: Run, ending: signal.Signals) -> None:
    fresh("vm", "restart", "web-0")
    with on_a_terminal("watch") as (process, terminal):
        said = read_until(terminal, "event.scheduled by operator:admin")
        assert "\x1b[?1049h" in said
        assert re.search(r"1[45] min (\d+ s)?", said)
        assert "It waits for approval by web (web-0)" in said
        process.send_signal(ending)
        assert read_until(terminal, "\x1b[?1049l").endswith("\x1b[?25h\x1b[?1049l")
        assert process.wait(30) == 0


def test_one_frame(fresh: Run) -> None:
    assert "There are no live events." in fresh("watch", "--once").out
    fresh("vm", "restart", "web-0")
    # What is no terminal gets one frame.
    fresh("watch").shows(
        r"Scheduled +1[45] min( \d+ s)?  Reboot     web: web-0  It waits for approval by web \(web-0\), until .*"
    )
    [view] = fresh("watch", "--once", "--json").json["events"]
    assert view["why"].startswith("It waits for approval by web (web-0)")
    assert view["until"] == view["not_before"]
    asked = ("--hosts", "*", "--kind", "update", "--gate", "https://a.example/")
    rollout = fresh("rollout", "start", *asked, "--json").json["id"]
    fresh("watch", "--once").shows(r"rollout update \*  Running  wave 0 of .*", rf".*by operator:admin  {rollout}")
    [view] = fresh("watch", "--once", "--json").json["rollouts"]
    assert view["why"] == fresh("rollout", "explain", rollout, "--json").json["sentence"] != ""


def test_json_is_a_line_for_each_change(fresh: Run) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "forenotice", "watch", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["events"] == []
    fresh("vm", "restart", "db")
    assert json.loads(process.stdout.readline())["events"][0]["resources"] == ["db"]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 0


def test_without_a_server_or_with_a_wrong_token_there_is_no_frame(run: Run, module_control: Control) -> None:
    ran = run("watch", "--once", "--control-url", "http://127.0.0.1:9", "--token", "t")
    assert (ran.code, "cannot reach the control plane at http://127.0.0.1:9" in ran.err) == (1, True)
    ran = run("watch", "--once", "--control-url", module_control.url, "--token", "wrong")
    assert (ran.code, "A valid bearer token is needed" in ran.err) == (1, True)


def api(url: str, token: str) -> Api:
    return Api(settings.load_operator({}, {"FORENOTICE_CONTROL": url, "FORENOTICE_TOKEN": token}))


def test_a_server_that_restarts_is_found_again(alone: None, tmp_path: Path) -> None:
    with running(tmp_path) as control:
        with serving(ControlServer(app.Api(control.service, control.metrics), "127.0.0.1", 0)) as port:
            poller = Poller(api(f"http://127.0.0.1:{port}", control.token))
            control.post("/v1/hosts", {"name": "h"})
            control.post("/v1/vms", {"name": "v", "host": "h"})
            control.post("/v1/operations", {"kind": "restart", "names": ["v"]})
            assert len(poller.poll().events) == 1
        lost = poller.poll()
        assert lost.lost_since is not None
        assert poller.poll().lost_since == lost.lost_since
        assert lost.events
        assert f"not reachable since {lost.lost_since:%H:%M:%S} UTC, trying again" in drawn(lost)
        with serving(ControlServer(app.Api(control.service, control.metrics), "127.0.0.1", port)):
            assert poller.poll().lost_since is None


class Recording(Api):
    """Remembers what was requested."""

    def get(self, kind: type[T], /, *path: str, **query: object) -> T:
        self.paths.append(path)
        return super().get(kind, *path, **query)

    def requested(self, poller: Poller) -> list[str]:
        """The last part of each path in one poll."""
        self.paths: list[tuple[str, ...]] = []
        poller.poll()
        return [path[-1] for path in self.paths]


def test_little_is_requested_while_nothing_happens(cli: Run, module_control: Control) -> None:
    recording, now = Recording(settings.load_operator({}, os.environ)), [100.0]
    poller = Poller(recording, lambda: now[0])
    assert recording.requested(poller) == ["history", "events", "rollouts"]
    assert recording.requested(poller) == ["history"]
    cli("host", "add", "news")
    cli("vm", "add", "news", "--host", "news")
    cli("vm", "policy", "news", "--listening", "always")
    [operation] = cli("vm", "restart", "news", "--json").json["operations"]
    assert recording.requested(poller) == ["history", "events", "rollouts", "explanation"]
    now[0] += 9
    assert recording.requested(poller) == ["history"]
    now[0] += 2
    assert recording.requested(poller) == ["history", "explanation"]
    cli("event", "approve", operation["events"][0]["id"])
    assert recording.requested(poller) == ["history", "events", "rollouts", "explanation"]


def refusal(status: str, code: str, message: str, facts: str = "{}") -> bytes:
    return answer(status, f'{{"error": {{"code": "{code}", "message": "{message}", "facts": {facts}}}}}'.encode())


def test_a_server_without_rollouts_has_none_and_one_in_trouble_is_waited_for(alone: None) -> None:
    page = answer("200 OK", b'{"items": [], "next": null}')
    missing, conflict = refusal("404 Not Found", "not_found", "nothing"), refusal("409 No", "conflict", "no")
    trouble = refusal("503 Away", "unavailable", "the disk is full")
    with stranger(page, page, missing, trouble) as server:
        poller = Poller(api(server.url, "t"))
        assert poller.poll().rollouts == ()
        assert poller.poll().trouble == "the disk is full"
    with stranger(refusal("429 Busy", "too_many", "wait", '{"retry_after": 3600}')) as server:
        assert Poller(api(server.url, "t")).poll().trouble == "wait"
    with stranger(page, page, conflict) as server, pytest.raises(RefusalError, match="no"):
        Poller(api(server.url, "t")).poll()


EVENT = sample(
    maintenance.Event,
    id="E",
    type=EventType.FREEZE,
    resources=["web-0", "web-1"],
    not_before=NOW + timedelta(seconds=30),
)
ROLLOUT = sample(
    rollouts.ListedRollout,
    id="R",
    wave=2,
    waves=3,
    hosts="rack1-*",
    status=RolloutStatus.PAUSED,
    why="2 hosts failed",
    progress=rollouts.Progress(waiting=4, under_way=1, done=4, failed=1),
)
ENTRY = sample(
    history.Entry,
    at=NOW - timedelta(seconds=1),
    action="vm.added",
    by="",
    vm="web-0",
    event=None,
    host="h",
    operation=None,
    scope="group:web",
    rollout=None,
)
HOUR = timedelta(hours=1)


def of(**changes: Any) -> Snapshot:
    """An event or an entry, changed where it matters."""
    if "action" in changes or "rollout" in changes:
        return Snapshot(entries=(replace(ENTRY, **changes),), known=True)
    return Snapshot(events=(replace(EVENT, **changes),), known=True)


def why(sentence: str, until: datetime | None = None) -> Reason:
    shown = maintenance.Explanation(sentence=sentence, sentences=[sentence], since=None, until=until, waiting_for=[])
    return Reason(EVENT, 0.0, shown)


def drawn(shown: Snapshot, *, width: int = 100, height: int | None = None, now: datetime = NOW) -> str:
    console = Console(width=width, height=height or 100, color_system=None)
    with console.capture() as capture:
        console.print(watch.draw(shown, now, width=width, height=height, url="http://server"))
    return capture.get()


def test_a_rollout_says_why_it_waits_and_how_long() -> None:
    running = replace(ROLLOUT, status=RolloutStatus.RUNNING, why="", hosts="rack1-01,rack1-02," * 20)
    pauses = why("It pauses before wave 3.", NOW + timedelta(minutes=4))
    said = drawn(Snapshot(rollouts=(running,), reasons={"R": pauses}, known=True), width=120).splitlines()
    assert said[1].startswith("rollout update rack1-01,rack1-02,rack1-01,rack1-02,rac…  Running  wave 2 of 3  ")
    assert said[1].endswith(" 5/10 hosts  R")
    assert said[2] == "  4 min left: It pauses before wave 3."
    past = why("It pauses before wave 3.", NOW - HOUR)
    assert "left" not in drawn(Snapshot(rollouts=(running,), reasons={"R": past}, known=True))


def test_many_rollouts_leave_room_for_events() -> None:
    shown = Snapshot(rollouts=(ROLLOUT,) * 30, events=(EVENT,) * 30, entries=(ENTRY,) * 12, known=True)
    said = drawn(shown, height=24).splitlines()
    assert len(said) <= 24
    assert "and 27 others: forenotice rollout list" in said
    assert len([line for line in said if line.startswith("Scheduled")]) > 5
    assert len([line for line in said if "vm.added" in line]) == 3


def test_a_narrow_terminal_has_reasons_on_lines_of_their_own() -> None:
    shown = Snapshot(events=(EVENT,), reasons={"E": why("It waits for web.")}, known=True)
    said = drawn(shown, width=50).splitlines()
    assert said[-3:] == ["Scheduled          30 s  Freeze     web: web-0, w…", "  It waits for web.", ""]
    assert max(map(len, said)) <= 50


def test_what_does_not_fit_is_counted() -> None:
    shown = Snapshot(events=(EVENT,) * 30, entries=(ENTRY,) * 12, more_events=True, known=True)
    said = drawn(shown, height=14).splitlines()
    assert len(said) <= 14
    assert "and 25 or more others: forenotice event list" in said
    assert len(drawn(Snapshot(events=(EVENT,), entries=(ENTRY,) * 12, known=True), height=14).splitlines()) <= 14


DRAWN = [
    (
        Snapshot(rollouts=(ROLLOUT,), known=True),
        "rollout update rack1-*  Paused  wave 2 of 3  ━━━━━━━━━━────────── 5/10 hosts  R\n  2 hosts failed\n",
    ),
    (of(action="rollout.host_failed", rollout="R", vm=None), "11:59:59  rollout.host_failed  R h\n"),
    (of(rollout="R"), "11:59:59  vm.added  web-0\n"),
    (of(not_before=NOW - HOUR), " due  Freeze"),
    (of(status="Started"), "Started                  Freeze     web: web-0, web-1"),
    (of(approved_at=NOW - HOUR), "  approved"),
    (Snapshot(), "forenotice http://server  12:00:00 UTC\nconnecting ...\n"),
]


@pytest.mark.parametrize(("shown", "said"), DRAWN)
def test_what_is_drawn(shown: Snapshot, said: str) -> None:
    assert said in drawn(shown)
