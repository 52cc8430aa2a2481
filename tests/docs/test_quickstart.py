"""docs/quickstart-vm.md works as written: every line of it is typed, in the terminal that it names.

Only the places differ: ports, /tmp/vm, and the system's own folders.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.acceptance.running import HOST, PROGRAMS, Server, environment, serving, until
from tests.wheel import INSTALL, ROOT, Installed

PAGE = (ROOT / "docs" / "quickstart-vm.md").read_text()
FENCE = re.compile(r"^```(\w+)\n(?:# ([^\n]*)\n)?(.*?)^```", re.MULTILINE | re.DOTALL)
ENTER = {"cd /tmp/vm && . bin/activate": "vm/bin/activate", ". .venv/bin/activate": "clone/.venv/bin/python"}
"""What makes a terminal what it is, and what must be there for it."""
AGENT = "forenotice agent run --config agent.toml"


@dataclass
class Desk:
    """Where somebody follows the page: one agent after another in the VM, and an operator."""

    place: Installed
    server: Server
    log: Path
    said: str = ""
    """By the last line that was typed."""
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def type(self, where: str, line: str) -> None:
        in_vm = where.startswith("terminal 2")
        home = {**environment(self.log.parent), "FORENOTICE_LOG_FORMAT": "console"}
        # The page gives it in agent.toml.
        del home["FORENOTICE_ENDPOINT"]
        programs = self.place.vm / "bin" if in_vm else PROGRAMS
        env = {
            **home,
            "PATH": f"{programs}:{home['PATH']}",
            "FORENOTICE_CONTROL": f"http://{self.server.operators}",
            "FORENOTICE_TOKEN": self.server.token,
        }
        folder = self.place.vm if in_vm else self.place.clone
        line = self.here(line)
        if line.startswith("kill"):
            until(lambda: self.log.read_text().count("An event has appeared") == 2, what=self.log.read_text)
        if line == AGENT:
            with self.log.open("ab") as log:
                self.agents.append(subprocess.Popen(line.split(), cwd=folder, env=env, stderr=log))
            until(lambda: self.log.read_text().count("Listening  ") == len(self.agents), what=self.log.read_text)
            return
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}\n{self.log.read_text()}"
        self.said = done.stdout

    def here(self, text: str) -> str:
        if "PID" in text:
            text = text.replace("PID", re.findall(r"runs \(process (\d+)\)", self.said)[0])
        if "127.0.0.1:8256" in text:
            text = text.replace("127.0.0.1:8256", f"{HOST}:{self.port}")
        return text.replace("127.0.0.1:8254", self.server.guests).replace("/tmp/vm", str(self.place.vm))

    @property
    def port(self) -> str:
        """Where the last agent listens; 0, to be chosen, before there is one."""
        return next(reversed(re.findall(r"Listening  .* port=(\d+)", self.log.read_text())), "0")


@pytest.fixture
def desk(installed: Installed, tmp_path: Path) -> Iterator[Desk]:
    with serving(tmp_path, "--demo", "--speed", "20") as server:
        (tmp_path / "log").touch()
        found = Desk(installed, server, tmp_path / "log")
        try:
            yield found
        finally:
            for agent in found.agents:
                agent.kill()
                agent.wait(30)


def test_the_quickstart(desk: Desk, tmp_path: Path) -> None:
    for language, where, text in FENCE.findall(PAGE):
        match language:
            case "toml":
                lines = [line for line in text.splitlines() if line]
                assert len(lines) == 8
                (desk.place.vm / where).write_text(desk.here(text))
            case "text":
                follow(text.splitlines(), desk.log)
            case "sh" if where == "in the VM, as root":
                as_root(text.splitlines(), desk, tmp_path / "system")
            case "sh" if "wheelhouse" in text:
                without_an_index(text.splitlines(), desk)
            case "sh":
                for line in text.splitlines():
                    follow_line(where, line, desk)
    # The second event outlived the agent that prepared for it.
    resumed = r"An event is resumed  event_id='([0-9A-F-]+)'"
    (event,) = until(lambda: re.findall(resumed, desk.log.read_text()), what=desk.log.read_text)
    done = f"event_id='{event}' state='done' why='recovered, although this machine did not reboot'"
    until(lambda: done in desk.log.read_text(), what=desk.log.read_text)
    assert desk.log.read_text().count(f"event_id='{event}' handler='web' phase='recover' attempt=1") == 1
    desk.agents[-1].terminate()
    assert desk.agents[-1].wait(30) == 0


def without_an_index(lines: Sequence[str], desk: Desk) -> None:
    collect, install = (line.replace("/opt/forenotice", "/tmp/vm") for line in lines)
    desk.type("terminal 3", f"PIP_CONSTRAINT={ROOT}/constraints.txt {collect}")
    # Into nothing, because other tests use what is installed there.
    desk.type("terminal 3", f"{install} --dry-run --ignore-installed")
    assert "Would install" in desk.said


def follow_line(where: str, line: str, desk: Desk) -> None:
    if line in ENTER:
        assert (desk.place.vm.parent / ENTER[line]).exists()
    elif line in INSTALL or line == "make serve":
        # Done already, or by another test.
        assert "in the clone" in where
    else:
        desk.type(where, line)


def follow(lines: Sequence[str], log: Path) -> None:
    """These appear one after another, with any number of seconds left; a poll may show the start before the approval
    has been answered."""
    patterns = [re.sub(r"\d+(\\ s)", r"\\d+\1", re.escape(line).replace(r"\.\.\.", ".*")) for line in lines]
    unordered = [pattern for pattern in patterns if "is\\ approved" in pattern]
    ordered = [pattern for pattern in patterns if pattern not in unordered]

    def all_are_logged() -> bool:
        logged = log.read_text().splitlines()
        rest = iter(logged)
        return all(any(re.search(pattern, line) for line in rest) for pattern in ordered) and all(
            any(re.search(pattern, line) for line in logged) for pattern in unordered
        )

    until(all_are_logged, what=log.read_text)


def as_root(lines: Sequence[str], desk: Desk, system: Path) -> None:
    venv, pip, *rest, start = lines
    assert venv == INSTALL[1].replace("/tmp/vm", "/opt/forenotice")
    assert pip == "/opt/forenotice/bin/pip install forenotice-*.whl"
    assert list(desk.place.clone.glob("dist/forenotice-*.whl"))
    for folder in ("usr/bin", "etc/systemd/system"):
        (system / folder).mkdir(parents=True)
    for line in rest:
        if line == "forenotice agent check":
            # That of the example; nginx need not be here.
            line = f"{line} --config /etc/forenotice/agent.toml | grep -F 'agent.toml is well-formed.'"
        line = re.sub(r"/(usr|etc)/", rf"{system}/\1/", line).replace("/opt/forenotice", str(desk.place.vm))
        desk.type("", line)
    assert shutil.which("forenotice", path=str(system / "usr" / "bin"))
    unit = re.fullmatch(r"systemctl enable --now (\S+)", start)
    assert unit is not None
    exec_start = "ExecStart=/usr/bin/forenotice agent run --config /etc/forenotice/agent.toml\n"
    assert exec_start in (system / "etc" / "systemd" / "system" / f"{unit[1]}.service").read_text()
