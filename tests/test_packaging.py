"""What is shipped: example configurations that can be used, and a wheel that brings them and little else."""

import json
import re
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement
from tests.agent.handlers.work import Tried
from tests.wheel import Installed, clone

from forenotice.agent import config as configs
from forenotice.agent import workers
from forenotice.agent.handlers import kubernetes, tables
from forenotice.agent.rules.policy import Phase
from forenotice.runtime import Runtime

ROOT = Path(__file__).parents[1]
PACKAGING = ROOT / "packaging"
EXAMPLES = sorted((PACKAGING / "agent").glob("*.toml"))

OURS = {"click", "forenotice", "h11", "msgspec", "rich"}
THEIRS = {"markdown-it-py", "mdurl", "pygments"}
"""What Rich needs itself."""
WITH_PYTHON = {"pip", "setuptools"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_can_be_used_as_it_is(example: Path) -> None:
    config = configs.load(example)
    assert config.handlers
    assert all(Phase.PREPARE in handler.phases for handler in config.handlers)
    assert [line for line in example.read_text().splitlines() if len(line) > 120] == []
    assert f"(../packaging/agent/{example.name})" in (ROOT / "docs" / "agent.md").read_text()


def test_there_is_an_example_for_each_common_job() -> None:
    assert {path.stem for path in EXAMPLES} == {"batch", "haproxy", "kubernetes", "nginx", "patroni"}


class Patroni(BaseHTTPRequestHandler):
    """The two requests of its REST API that the example makes."""

    leader, switchover = 200, 200
    asked: str

    def do_GET(self) -> None:
        self._answer(self.leader if self.path == "/leader" else 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        type(self).asked = f"{self.path} {json.loads(body)}"
        self._answer(self.switchover, b"no good candidates have been found")

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def patroni() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("ThisPatroni", (Patroni,), {"asked": ""})) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("leader", "switchover", "ok", "asked", "said"),
    [
        (200, 200, True, "/switchover {'leader': 'pg-1'}", ""),
        (200, 412, False, "/switchover {'leader': 'pg-1'}", "no good candidates"),
        (503, 200, True, "", "pg-1 is not the leader"),
        (500, 200, False, "", "Patroni does not answer"),
    ],
)
def test_the_leader_hands_over_or_is_not_approved(
    patroni: ThreadingHTTPServer, leader: int, switchover: int, ok: bool, asked: str, said: str
) -> None:
    answers = patroni.RequestHandlerClass
    answers.leader, answers.switchover = leader, switchover  # type: ignore[attr-defined]
    (example,) = configs.load(PACKAGING / "agent" / "patroni.toml").handlers
    assert isinstance(example, tables.Command)
    place = {**example.environment, "PATRONI": f"http://127.0.0.1:{patroni.server_port}"}
    outcome = Tried(workers.make(msgspec.structs.replace(example, environment=place), Runtime())).run()
    assert outcome.ok is ok, outcome
    assert said in outcome.message
    assert answers.asked == asked  # type: ignore[attr-defined]


def test_the_cluster_role_of_the_example_allows_what_is_needed() -> None:
    text = (PACKAGING / "agent" / "kubernetes.toml").read_text()
    rules = re.findall(r"resources: \[([a-z/]+)\], verbs: \[([a-z, ]+)\]", text)
    allowed = {(verb, resource) for resource, verbs in rules for verb in verbs.split(", ")}
    needed = (*kubernetes.NEEDED, kubernetes.TO_ESCALATE)
    assert allowed == {(verb, "/".join(filter(None, what))) for verb, *what in needed}


def test_an_environment_that_cannot_build_the_wheel_is_told_why(tmp_path: Path) -> None:
    """As one that was made before setuptools was installed into it."""
    clone(tmp_path / "clone")
    project = tmp_path / "clone" / "pyproject.toml"
    project.write_text(project.read_text().replace('requires = ["setuptools>=77"]', 'requires = ["setuptools>=7777"]'))
    (tmp_path / "clone" / ".venv" / ".installed").touch()
    done = subprocess.run(
        ["make", "wheel"], cwd=tmp_path / "clone", capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert "is incompatible with setuptools>=7777" in done.stderr


def test_the_wheel_brings_what_a_guest_needs_and_no_more(installed: Installed) -> None:
    ask = "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
    said = subprocess.run(
        [installed.vm / "bin" / "python", "-c", ask], capture_output=True, text=True, check=True, timeout=30
    )
    names = {re.sub(r"[-_.]+", "-", name).lower() for name in json.loads(said.stdout)}
    assert names - WITH_PYTHON == OURS | THEIRS


def test_without_its_extra_an_edge_says_what_to_install(installed: Installed) -> None:
    command = [str(installed.vm / "bin" / "forenotice"), "edge", "run", "--host", "a", "--nats", "nats://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    said = "nats-py, httptools, structlog, which are not installed: pip install 'forenotice[cluster]'"
    assert (done.returncode, done.stderr) == (2, f"forenotice: edges need {said}\n")


def test_without_its_extras_the_demo_of_a_cluster_says_what_to_install(installed: Installed, tmp_path: Path) -> None:
    command = [str(installed.vm / "bin" / "forenotice"), "cluster", "demo", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert done.stderr.endswith("which is not installed: pip install 'forenotice[server,cluster,demo]'\n")


def test_nothing_asks_for_uvloop_on_windows() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = [Requirement(line) for lines in extras.values() for line in lines if line.startswith("uvloop")]
    assert len(wanted) == 3
    for each in wanted:
        assert each.marker is not None
        assert [each.marker.evaluate({"sys_platform": name}) for name in ("linux", "darwin", "win32")] == [1, 1, 0]


def test_the_wheel_holds_units_and_examples(installed: Installed) -> None:
    share = installed.vm / "share" / "forenotice"
    found = {str(path.relative_to(share)): path.read_bytes() for path in share.rglob("*") if path.is_file()}
    shipped = [*PACKAGING.glob("*.service"), *EXAMPLES]
    assert found == {str(path.relative_to(PACKAGING)): path.read_bytes() for path in shipped}
