"""docs/edges.md, step by step: NATS servers with TLS, PostgreSQL, the service, and an edge with its guest."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import PROGRAMS, Said, ask, environment, until
from tests.control import certificates
from tests.docs.test_snippets import IN_CLUSTER, ROOT, blocks
from tests.nats_servers import PROGRAM as NATS_SERVER

PAGE = ROOT / "docs" / "edges.md"
DATABASE = "postgresql://forenotice@db/forenotice"
SERVERS = ("n1", "n2", "n3")
MINE, CENTRE, HOST, GUEST = "your machine", "centre", "host-a", "web-0"
SECONDS = 30.0
DEMO = ("make cluster\n", IN_CLUSTER)
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
FILE = re.compile(r"# (\S+), on (.+)")
PLACE = re.compile(r"# (?:as root, )?(?:on|in) (your machine|centre|host-a|web-0)")
SYSTEM_PATH = re.compile(r"(?<![\w./])/(?=(?:etc|opt|run|usr|var)/)")
INSTALLED = (
    "/usr/bin/python3 -m venv /opt/forenotice",
    '/opt/forenotice/bin/pip install "$(ls forenotice-*.whl)[cluster]"',
)
"""What is installed here is the environment of these tests."""
SCP = """
scp() {
    local machine="${2#root@}"
    machine="${machine%%:*}"
    local to="$MACHINES/$machine${2#*:}"
    cp "$1" "$to"
    if [ -d "$to" ]; then sed -i "s|/var/|$MACHINES/$machine/var/|" "$to$(basename "$1")"; fi
}
"""
"""To a machine of this test; what servers include names a directory, and each has its own."""


class Machine:
    """A folder in place of its file system, and an address of loopback in place of its own."""

    def __init__(self, root: Path, number: int) -> None:
        # As in tests.acceptance.running: nobody of another test process is there.
        self.address = f"127.{34 + number}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
        self.root = root
        self.env: dict[str, str] = {}
        """What its administrator has exported."""
        self.units: dict[str, subprocess.Popen[bytes]] = {}
        for folder in ("etc/nats", "etc/systemd/system", "opt/forenotice/share", "usr/bin", "var/lib"):
            (root / folder).mkdir(parents=True)
        (root / "opt/forenotice/bin").symlink_to(PROGRAMS)
        (root / "opt/forenotice/share/forenotice").symlink_to(ROOT / "packaging")


class Site:
    """All machines that the page speaks of, and what runs on them."""

    def __init__(self, root: Path, database: str, stack: ExitStack) -> None:
        self._stack = stack
        self._database = database
        self.machines = {
            name: Machine(root / name, number) for number, name in enumerate((*SERVERS, CENTRE, HOST, MINE, GUEST))
        }
        self._env = environment(root, MACHINES=str(root))
        self.guests = f"{self.machines[HOST].address}:8254"
        self._issue_certificates(root / "ca")
        # As docs/operating.md installs the service.
        centre = self.machines[CENTRE].root
        (centre / "usr/bin/forenotice").symlink_to(PROGRAMS / "forenotice")
        shutil.copy(ROOT / "packaging" / "forenotice.service", centre / "etc/systemd/system")

    def _issue_certificates(self, place: Path) -> None:
        place.mkdir()
        made = certificates.make(place, *(machine.address for machine in self.machines.values()))
        wanted = {
            **dict.fromkeys(SERVERS, ("etc/nats/ca.pem", "etc/nats/server.pem", "etc/nats/server.key")),
            CENTRE: ("etc/nats-ca.pem", "etc/forenotice.pem", "etc/forenotice.key"),
            HOST: ("etc/nats-ca.pem", "etc/forenotice-edge.pem", "etc/forenotice-edge.key"),
            MINE: ("ca.pem", "me.pem", "me.key"),
        }
        for name, files in wanted.items():
            for file, source in zip(files, (made.ca, made.file, made.key), strict=True):
                shutil.copy(source, self.machines[name].root / file)

    def here(self, text: str, name: str) -> str:
        """What is written for that machine, with what stands for its places in this test."""
        machine = self.machines[name]
        text = text.replace(DATABASE, self._database).replace("0.0.0.0", machine.address)
        text = re.sub(rf"(?<=//)({'|'.join(SERVERS)})(?=:)", lambda found: self.machines[found[1]].address, text)
        text = text.replace("169.254.169.254:80%br0", self.guests).replace("//169.254.169.254/", f"//{self.guests}/")
        text = text.replace("10.7.0.4", self.machines[GUEST].address)
        text = text.replace("curl ", f"curl -f --interface {machine.address} ")
        return text if name == MINE else SYSTEM_PATH.sub(f"{machine.root}/", text)

    def write(self, path: str, name: str, text: str) -> None:
        for each in SERVERS if name == SERVERS[0] else (name,):
            file = self.machines[each].root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.here(text, each).replace(f"server_name: {name}", f"server_name: {each}"))

    def run(self, text: str, name: str) -> str:
        machine = self.machines[name]
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", SCP + self.here(text, name)],
            cwd=machine.root,
            env={**self._env, **machine.env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        return done.stdout

    def follow(self, text: str, name: str) -> str:
        """A block of commands, with units started as systemd does; what it printed."""
        output, pending = "", ""
        for line in (line for line in text.splitlines() if line not in INSTALLED):
            if line.startswith("systemctl "):
                output += self.run(pending, name)
                pending = ""
                self._systemctl(line.split()[1:], name)
            elif line.startswith("export "):
                self.machines[name].env |= dict(each.split("=") for each in self.here(line, name).split()[1:])
            else:
                pending += f"{line}\n"
        return output + self.run(pending, name)

    def _systemctl(self, words: list[str], name: str) -> None:
        match words:
            case ["daemon-reload"]:
                pass
            case ["enable", "--now", unit]:
                self._start(unit, name)
            case ["restart", unit]:
                self._stop(self.machines[name].units[unit])
                self._start(unit, name)
            case _:
                raise AssertionError(words)

    def _start(self, unit: str, name: str) -> None:
        machine = self.machines[name]
        units = machine.root / "etc/systemd/system"
        files = [units / f"{unit}.service", *(units / f"{unit}.service.d").glob("*.conf")]
        # A unit is as packaged; what the page adds to it was written for this test already.
        text = "".join(file.read_text().replace(f"{machine.root}/", "/") for file in files)
        found = [(key, self.here(value, name)) for key, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)]
        credentials = machine.root / "run/credentials" / f"{unit}.service"
        shutil.rmtree(credentials, ignore_errors=True)
        credentials.mkdir(parents=True)
        for key, value in found:
            if key == "LoadCredential":
                credential, _, source = value.partition(":")
                (credentials / credential).write_bytes(Path(source).read_bytes())
                (credentials / credential).chmod(0o400)
        (command,) = (value for key, value in found if key == "ExecStart")
        address = machine.address
        env = {
            **{key: value for each, pair in found if each == "Environment" for key, _, value in [pair.partition("=")]},
            # Where nothing else on this machine is.
            "FORENOTICE_CONTROL": f"{address}:8255",
            "FORENOTICE_EDGE_METRICS": f"{address}:8256",
            **({"FORENOTICE_METADATA": f"{address}:8254"} if name == CENTRE else {}),
            "FORENOTICE_ALLOW_LOOPBACK_ADDRESSES": "true",
        }
        log = machine.root / f"{unit}.log"
        machine.units[unit] = self._spawn(shlex.split(command), log, env)
        until(lambda: re.search(r'"action": ?"(serve|edge)\.started"', log.read_text()), SECONDS, log.read_text)

    def start_nats(self, command: str) -> None:
        program, *arguments = shlex.split(command)
        assert program == NATS_SERVER.name
        for name in SERVERS:
            here = [self.here(each, name) for each in arguments]
            self._spawn([str(NATS_SERVER), *here], self.machines[name].root / "nats.log", {})

    def _spawn(self, command: list[str], log: Path, env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        with log.open("wb") as output:
            # However the tests end, it ends with them.
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                env={**self._env, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._stack.callback(self._stop, process)
        return process

    @staticmethod
    def _stop(process: "subprocess.Popen[bytes]") -> None:
        process.terminate()
        process.wait(SECONDS)

    # What is looked at besides

    def ask(self, command: str, name: str = CENTRE) -> Any:
        return json.loads(self.run(command, name))

    def is_right(self, check: str) -> bool:
        return bool(self.ask(f"{check} --json || true", MINE)["ok"])

    def await_right(self, check: str) -> None:
        until(lambda: self.is_right(check), SECONDS)

    def document(self) -> str:
        said = ask(self.guests, "GET", TARGET, None, {"Metadata": "true"}, source=self.machines[GUEST].address)
        return said.body.decode()

    def await_document(self, words: str) -> None:
        until(lambda: words in self.document(), SECONDS)

    def approve(self, event_id: str) -> Said:
        body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
        return ask(self.guests, "POST", TARGET, body, {"Metadata": "true"}, source=self.machines[GUEST].address)

    def is_ready(self) -> bool:
        return ask(f"{self.machines[HOST].address}:8256", "GET", "/readyz").status == 200

    def is_connected(self) -> bool:
        return "forenotice_edge_connected 1" in self.metrics()

    def metrics(self) -> str:
        return ask(f"{self.machines[HOST].address}:8256", "GET", "/metrics").body.decode()


@pytest.fixture
def site(tmp_path: Path, postgres_url: str) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, postgres_url, stack)


def steps() -> Iterator[tuple[str, str, str]]:
    """Where it is, what it is about, and what is written: a file, or commands."""
    for language, text in blocks(PAGE):
        title = text.partition("\n")[0]
        if found := FILE.fullmatch(title):
            yield found[2], found[1], text
        elif language == "sh" and (found := PLACE.fullmatch(title)):
            yield found[1], "", text
        elif text.startswith(("pip ", "nats-server ")):
            yield "", "", text
        else:
            assert text.startswith(DEMO) or "─" in text, f"nothing runs this: {text}"


def test_what_is_tried_is_the_readmes() -> None:
    """Which the demo's own test holds against what it prints."""
    readme, page = ([text for _, text in blocks(each) if text.startswith(DEMO)] for each in (ROOT / "README.md", PAGE))
    assert [text.startswith(IN_CLUSTER) for text in page] == [False, True]
    assert page == readme
    (started,) = re.findall(r"^cluster:.*\n\t@\.venv/bin/(.*) \$\(ARGS\)$", (ROOT / "Makefile").read_text(), re.M)
    assert started == "forenotice cluster demo"


def test_the_page_as_it_is_written(site: Site) -> None:
    token, event_id, check, done = "TOKEN", "ID", "", []
    for place, file, text in steps():
        text = text.replace("=TOKEN", f"={token}").replace('"ID"', f'"{event_id}"')
        if file:
            site.write(file, place, text)
        elif text.startswith("pip "):
            assert text == "pip install 'forenotice[cluster]'\n"
        elif text.startswith("nats-server "):
            site.start_nats(text)
        elif "cluster check" in text:
            # Who reads the page takes longer than the service does to make its streams.
            check = text.rstrip()
            site.await_right(check)
        else:
            if "edge list" in text:
                until(site.is_ready, SECONDS)
            printed = site.follow(text, place)
            if "token create" in text:
                token = printed.split()[-1]
            elif "vm restart" in text:
                (event,) = site.ask("forenotice event list --json")
                event_id = event["id"]
                site.await_document(event_id)
            elif "history" in text:
                assert_approved(site, event_id)
                assert site.is_right(check)
                assert_described(site)
                done.append("set up")
            elif "revoke" in text and "--old" in text:
                until(site.is_connected, SECONDS)
                assert site.approve(event_id).status == 200
                done.append("rotated")
            elif "revoke" in text:
                until(lambda: not site.is_connected(), SECONDS)
                assert site.approve(event_id).status == 503
                assert '"Events"' in site.document()
                done.append("revoked")
    assert done == ["set up", "rotated", "revoked"]


def assert_approved(site: Site, event_id: str) -> None:
    def history() -> dict[str, str]:
        return {each["action"]: each["by"] for each in site.ask(f"forenotice history --event {event_id} --json")}

    until(lambda: "event.started" in history(), SECONDS, lambda: str(history()))
    assert history()["event.approved"] == f"vm:{GUEST}"
    (edge,) = site.ask("forenotice edge list --json")
    assert (edge["host"], edge["refused"], edge["lost_since"]) == (HOST, 0, None)


def assert_described(site: Site) -> None:
    """The page has all metrics of an edge."""
    known = re.findall(r"^# TYPE (\w+)", site.metrics(), re.MULTILINE)
    assert set(known) == set(re.findall(r"`(forenotice_edge_\w+)`", PAGE.read_text()))
