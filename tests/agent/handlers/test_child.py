"""Handlers in a process of their own: what the agent is spared, and how that process ends."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.acceptance.running import environment, until
from tests.agent.handlers.work import failed, work

from forenotice.agent.handlers import Outcome
from forenotice.agent.handlers.child import ARGV, ChildHandler
from forenotice.agent.handlers.tables import Kubernetes, Notify, Python

HEAVY = ("aiohttp", "apprise", "asyncio", "kubernetes", "pydantic", "requests", "rich", "click", "urllib3", "yaml")

IN_THE_AGENT = """
import json, sys
from forenotice.agent.handlers.tables import Kubernetes, Notify, Python
from forenotice.runtime import Runtime
from forenotice.agent.workers import make
from tests.agent.handlers.work import failed, work

configs = [Kubernetes(name="k"), Notify(name="n", urls=("nosuch://x",)), Python(name="p", entry_point="x:y")]
*_, theirs = [make(config, Runtime()) for config in configs]
said = theirs.run(work()).message
print(json.dumps({"said": said, "modules": sorted(sys.modules)}))
"""


def test_the_agent_itself_imports_nothing_of_what_its_children_do(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IN_THE_AGENT],
        env=environment(tmp_path),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        check=True,
    )
    found = json.loads(ran.stdout)
    assert found["said"] == "ModuleNotFoundError: No module named 'x'"
    assert not {name.partition(".")[0] for name in found["modules"]} & set(HEAVY)


@pytest.mark.parametrize(
    ("package", "config", "extra"),
    [
        ("kubernetes", Kubernetes(name="k"), "kubernetes"),
        ("apprise", Notify(name="n", urls=("json://localhost",)), "notify"),
    ],
)
def test_an_extra_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, config: Kubernetes | Notify, extra: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{package!r}] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    said = f"{package} is missing: install forenotice[{extra}]"
    assert ChildHandler(config).rehearse() == failed(said)


SLEEPER = """
import atexit, os, pathlib, threading
here = pathlib.Path(__file__).parent
if "ready" not in os.listdir(here):
    atexit.register((here / "cleaned").touch)

def wait(phase, facts, options):
    (here / "ready").touch()
    threading.Event().wait()

def crash(phase, facts, options):
    print("so far so good", flush=True)
    os.abort()
"""


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def test_a_child_that_is_told_to_stop_cleans_up_and_ends(sleeper: Path) -> None:
    stop = threading.Event()
    ends: list[Outcome] = []
    handler = ChildHandler(Python(name="p", entry_point="sleeper:wait"))
    running = threading.Thread(target=lambda: ends.append(handler.run(work(stop=stop))))
    running.start()
    until((sleeper / "ready").exists)
    stop.set()
    asked = time.monotonic()
    running.join()
    assert time.monotonic() - asked < 20
    assert not ends[0].ok
    assert ends[0].message.endswith("as the agent asked")
    assert (sleeper / "cleaned").exists()


@pytest.mark.usefixtures("sleeper")
def test_a_child_that_dies_is_a_failure_with_its_last_words() -> None:
    outcome = ChildHandler(Python(name="p", entry_point="sleeper:crash")).run(work())
    assert outcome == failed("ended by signal 6: so far so good")


def test_a_defect_is_told_by_its_traceback() -> None:
    ran = subprocess.run(ARGV, input=b"[]", capture_output=True, check=False)
    assert ran.returncode == 1
    assert b"ValidationError: Expected `object`" in ran.stderr
