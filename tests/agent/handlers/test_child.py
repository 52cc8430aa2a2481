"""Handlers in a process of their own: what the agent is spared, and how that process ends."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import environment, until
from tests.agent.handlers.work import EVENT, done, failed, work
from tests.agent.parts import RUNTIME

from forenotice.agent import config
from forenotice.agent.handlers import Outcome, child, facts
from forenotice.agent.handlers.child import ARGV, ChildHandler
from forenotice.agent.handlers.tables import Kubernetes, Notify, Python
from forenotice.agent.rules.policy import Phase

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
    assert ChildHandler(config, RUNTIME).rehearse() == failed(said)


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
    handler = ChildHandler(Python(name="p", entry_point="sleeper:wait"), RUNTIME)
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
    outcome = ChildHandler(Python(name="p", entry_point="sleeper:crash"), RUNTIME).run(work())
    assert outcome == failed("ended by signal 6: so far so good")


def test_a_defect_is_told_by_its_traceback() -> None:
    ran = subprocess.run(ARGV, input=b"[]", capture_output=True, check=False)
    assert ran.returncode == 1
    assert b"ValidationError: Expected `object`" in ran.stderr


SOURCE = """
import sys

def tell(phase, facts, options):
    print("on my way")
    return f"{phase} {facts['event']['EventId']} {options['colour']}"

def give(phase, facts, options):
    return {"none": None, "true": True, "false": False, "one": 1}[options["answer"]]

def fail(phase, facts, options):
    raise ValueError("the tap\\nis dry")

def leave(phase, facts, options):
    sys.exit(0 if options.get("well") else "gone")

class Tap:
    @staticmethod
    def close(phase, facts, options):
        return "closed"

NOTHING = 3
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_taps.py").write_text(SOURCE)
    told = tmp_path / "taps-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: taps\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[{child.GROUP}]\ntap = their_taps:Tap.close\nlost = no_such_module:f\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def do(entry_point: str, **options: Any) -> Outcome:
    return child.run_python(Python(name="tap", entry_point=entry_point, options=options), facts.document(work()))


@pytest.mark.usefixtures("theirs")
def test_a_function_is_told_phase_facts_and_options_in_a_process_of_its_own() -> None:
    handler = ChildHandler(Python(name="tap", entry_point="their_taps:tell", options={"colour": "blue"}), RUNTIME)
    outcome = handler.run(work(phase=Phase.RECOVER))
    assert outcome == done(f"on my way / recover {EVENT.id} blue")


def test_options_may_be_whatever_toml_knows(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    table = '[[handler]]\nname = "tap"\ntype = "python"\nentry_point = "a:b"\n'
    path.write_text(table + "options = { deep = { list = [1, 2.5, true] }, text = 'x' }\n")
    (found,) = config.load(path).handlers
    assert isinstance(found, Python)
    assert found.options == {"deep": {"list": [1, 2.5, True]}, "text": "x"}


@pytest.mark.usefixtures("theirs")
def test_a_function_that_leaves_takes_its_process_with_it() -> None:
    outcome = ChildHandler(Python(name="tap", entry_point="their_taps:leave"), RUNTIME).run(work())
    assert outcome == failed("gone")


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("none", Outcome(ok=True)),
        ("true", Outcome(ok=True)),
        ("false", failed("their_taps:give returned False")),
        ("one", failed("their_taps:give returned a int: give None, True, False or a text")),
    ],
)
def test_what_a_function_returns_is_how_it_went(answer: str, outcome: Outcome) -> None:
    assert do("their_taps:give", answer=answer) == outcome


@pytest.mark.usefixtures("theirs")
def test_an_entry_point_is_found_by_its_name() -> None:
    assert do("tap") == done("closed")


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("entry_point", "said"),
    [
        ("their_taps:fail", "ValueError: the tap is dry"),
        ("their_taps:NOTHING", "TypeError: their_taps:NOTHING is a int and cannot be called"),
        ("their_taps:missing", "AttributeError: module 'their_taps' has no attribute 'missing'"),
        ("no_such_module:f", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("lost", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("nowhere", "LookupError: there is no entry point 'nowhere' in the group forenotice.handlers: is its package "),
    ],
)
def test_an_exception_is_told_by_the_last_line_of_its_traceback(entry_point: str, said: str) -> None:
    outcome = do(entry_point)
    assert not outcome.ok
    assert outcome.message.startswith(said)


@pytest.mark.usefixtures("theirs")
def test_a_rehearsal_imports_and_calls_nothing() -> None:
    def look(entry_point: str) -> Outcome:
        return child.rehearse_python(Python(name="tap", entry_point=entry_point))

    assert look("their_taps:fail") == done("would call their_taps:fail")
    assert look("tap") == done("would call tap")
    assert look("their_taps:NOTHING").ok is False
    assert look("no_such_module:f").ok is False
