"""Every snippet of README and docs does what a reader would see it do.

`sh` blocks run in bash, page by page, against a demo server, or an emulator where the page is about that; `ID` stands
for the newest event, `ROLLOUT` for the rollout that is under way. Blocks without a
language are commands that start or set something up, and each line of theirs must have a way to be run here. TOML
blocks that begin with a file's name are written to it; JSON must be JSON; Python runs as inside a guest of the demo.
"""

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.acceptance.running import environment, run, serving, until
from tests.databases import new_sqlite

from forenotice.emulator.scenarios import catalogue

ROOT = Path(__file__).parents[2]
STORIES = {
    "drivers.md",
    "edges.md",
    "inventory.md",
    "lab.md",
    "libvirt.md",
    "network.md",
    "quickstart-vm.md",
    "testing.md",
}
"""Pages with a test of their own."""
EMULATED = {"emulator.md"}
"""Pages for whose reader an emulator runs."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in STORIES)]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ID = re.compile(r"\b(ID|ROLLOUT)\b")
NEWEST_EVENT = """
with_id() {
    # Where a machine is slow, the event that the page speaks of may just be over.
    forenotice $EVENTS --json | python -c 'import json, sys; [print(one["id"]) for one in json.load(sys.stdin)]' >> .ids
    eval "${1//ID/$(tail -n 1 .ids)}"
}
with_rollout() {
    [ -e .rollout ] ||
        forenotice rollout list --json | python -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])' > .rollout
    eval "${1//ROLLOUT/$(< .rollout)}"
}
"""
IN_CLUSTER = "# in the demo of a cluster\n"
"""Begins what `cluster demo` prints, as tests/acceptance/test_cluster_demo.py tries it."""
ELSEWHERE = ("make test", "make cluster")
"""What runs these very tests, and what tests/acceptance/test_cluster_demo.py runs."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in FENCE.finditer(page.read_text())]


@dataclass(frozen=True)
class Place:
    """What runs on the reader's machine."""

    guests: str
    operators: str
    env: Mapping[str, str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Place]:
    with serving(tmp_path, "--demo", "--speed", "20") as started:
        env = {**started.env, "FORENOTICE_DATA": str(started.data), "FORENOTICE_TOKEN": started.token}
        yield Place(started.guests, started.operators, {**env, "EVENTS": "event list"})


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Place]:
    env = environment(tmp_path)
    ready = tmp_path / "emulator.json"
    with emulating("forenotice emulate", {**env, "FORENOTICE_READY_FILE": str(ready)}, tmp_path, ready) as found:
        guests, operators = (found[name].removeprefix("http://") for name in ("endpoint", "control"))
        yield Place(
            guests, operators, {**env, "EVENTS": "emulator events", "FORENOTICE_CONTROL": f"http://{operators}"}
        )


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_snippets_run(page: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    place = "emulator" if page.name in EMULATED else "server"
    for language, text in blocks(page):
        match language:
            case "sh" if text.startswith(("# as root", IN_CLUSTER)):
                pass  # By a test of that page's own.
            case "haproxy":
                pass
            case "sh":
                run_shell(text, request.getfixturevalue(place), folder)
            case "python":
                run_python(text, request.getfixturevalue(place))
            case "toml":
                tomllib.loads(text)
                if named := re.match(r"# (\w+\.toml)\n", text):
                    server = request.getfixturevalue(place)
                    (folder / named[1]).write_text(text.replace("127.0.0.1:8254", server.guests))
            case "json":
                json.loads(text)
            case _:
                assert language == "", f"{page.name} has a block in {language}, which nothing here runs"


def run_shell(text: str, server: Place, folder: Path) -> None:
    lines = [
        f"with_{found[1].lower()} {shlex.quote(line)}" if (found := ID.search(line)) else line
        for line in text.splitlines()
    ]
    text = "\n".join([NEWEST_EVENT, *lines])
    text = text.replace("127.0.0.1:8254", server.guests).replace("127.0.0.1:8255", server.operators)
    text = text.replace("-s ", "-fs ").replace("curl -H", "curl -fsS -H")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=server.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def run_python(text: str, server: Place) -> None:
    """As inside a guest of the demo."""
    env = {**server.env, "FORENOTICE_ENDPOINT": f"http://{server.guests}"}
    done = run(sys.executable, "-W", "error", "-c", text, env=env, seconds=60)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""


def commands() -> list[str]:
    """The lines of blocks without a language, each once."""
    found = [
        line.partition(" #")[0].strip()
        for page in PAGES
        for language, text in blocks(page)
        if language == ""
        for line in text.splitlines()
    ]
    return list(dict.fromkeys(line for line in found if line not in ELSEWHERE))


@pytest.mark.parametrize("command", commands())
def test_commands_that_set_something_up(command: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    env = environment(tmp_path)
    secret = tmp_path / "proxy.secret"
    secret.write_text("a secret of sixteen bytes or more")
    secret.chmod(0o600)
    places = {
        "169.254.169.254:80": "127.0.0.1:0",
        "127.0.0.1:8255": "127.0.0.1:0",
        "/var/lib/forenotice": str(tmp_path / "data"),
        "/etc/forenotice/proxy.secret": str(secret),
    }
    for written, here in places.items():
        command = command.replace(written, here)
    if "postgresql://forenotice@db/forenotice" in command:
        url = request.getfixturevalue("postgres_url")
        command = command.replace("postgresql://forenotice@db/forenotice", url)
        if "migrate" not in command:
            assert run("forenotice", "migrate", "--database", url, env=env).returncode == 0
    if "clock accept" in command:
        make_ahead(env, tmp_path / ".local" / "share" / "forenotice" / "forenotice.db")
    if command.startswith("pip install"):
        extra = re.fullmatch(r"pip install 'forenotice\[(\w+)\]'", command)
        assert extra is not None
        assert extra[1] in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    elif command.startswith(("forenotice serve", "make serve")):
        serves(command, {**env, "FORENOTICE_METADATA": "127.0.0.1:0", "FORENOTICE_CONTROL": "127.0.0.1:0"}, tmp_path)
    elif command.startswith("forenotice emulate") and "--list" not in command and "--show" not in command:
        (tmp_path / "my-scenario.toml").write_text(catalogue.load("reboot").text.content)
        ready = tmp_path / "ready.json"
        emulates = re.sub(r"--port \d+", "--port 0", command)
        with emulating(emulates, {**env, "FORENOTICE_READY_FILE": str(ready)}, tmp_path, ready):
            pass
    else:
        done = run("bash", "-c", command, env=env)
        assert done.returncode == 0, done.stderr


def make_ahead(env: dict[str, str], database: Path) -> None:
    """A journal that was written by a clock a day ahead."""
    database.parent.mkdir(parents=True, mode=0o700)
    new_sqlite(database.parent)
    assert run("forenotice", "token", "create", "me", "--offline", env=env).returncode == 0
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE journal SET at = at + 86400000000")
        connection.commit()


def serves(command: str, env: dict[str, str], folder: Path) -> None:
    log = folder / "log"
    with log.open("wb") as errors:
        started = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    try:
        until(lambda: b"serve.started" in log.read_bytes() or started.poll() is not None, what=log.read_text())
        assert started.poll() is None, log.read_text()
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        started.wait(30)
    assert b"serve.stopped" in log.read_bytes()


@contextmanager
def emulating(command: str, env: Mapping[str, str], folder: Path, ready: Path) -> Iterator[dict[str, str]]:
    """Gives what its ready file says, which the environment names."""
    started = subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env={"FORENOTICE_EMULATOR_PORT": "0", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: ready.exists() or started.poll() is not None)
        assert started.poll() is None, command
        yield json.loads(ready.read_text())
    finally:
        started.terminate()
        assert started.wait(30) == 0


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if f"({page})" not in index and str(page) != "README.md"] == []
