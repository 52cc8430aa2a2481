"""Handlers in a process of their own: what the agent is spared, and how that process ends."""

import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import environment, until
from tests.agent.handlers.work import EVENT, Tried, beside, done, failed, work
from tests.agent.parts import RUNTIME

from forenotice.agent import config
from forenotice.agent.handlers import Outcome, child, facts
from forenotice.agent.handlers.child import ARGV, ChildHandler
from forenotice.agent.handlers.tables import Kubernetes, Notify, Python
from forenotice.agent.rules.policy import Phase

HEAVY = ("aiohttp", "apprise", "asyncio", "kubernetes", "pydantic", "requests", "rich", "click", "urllib3", "yaml")

IN_THE_AGENT = """
import json, sys
from forenotice.agent.handlers import Outcome
from forenotice.agent.handlers.tables import Kubernetes, Notify, Python
from forenotice.runtime import Runtime
from forenotice.agent.workers import make
from tests.agent.handlers.work import work

configs = [Kubernetes(name="k"), Notify(name="n", urls=("nosuch://x",)), Python(name="p", entry_point="x:y")]
*_, theirs = [make(config, Runtime()) for config in configs]
message = Outcome.of(lambda: theirs.run(work())).message
print(json.dumps({"message": message, "modules": sorted(sys.modules)}))
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
    assert found["message"] == "ModuleNotFoundError: No module named 'x'"
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
    outcome = Tried(ChildHandler(config, RUNTIME)).rehearse()
    assert outcome == failed(f"{package} is missing: install forenotice[{extra}]")


def test_a_defect_is_shown_by_its_traceback() -> None:
    ran = subprocess.run(ARGV, input=b"[]", capture_output=True, check=False)
    assert ran.returncode == 1
    assert b"ValidationError: Expected `object`" in ran.stderr


SOURCE = """
import atexit, os, pathlib, sys, threading
here = pathlib.Path(__file__).parent

def tell(phase, facts, options):
    print("on my way")
    return f"{phase} {facts['event']['EventId']} {options['colour']}"

def give(phase, facts, options):
    return {"none": None, "true": True, "false": False, "one": 1}[options["result"]]

def fail(phase, facts, options):
    raise ValueError("the tap\\nis dry")

def leave(phase, facts, options):
    sys.exit("gone")

def wait(phase, facts, options):
    atexit.register((here / "cleaned").touch)
    (here / "ready").touch()
    threading.Event().wait()

def crash(phase, facts, options):
    print("so far so good", flush=True)
    os.abort()

class Tap:
    @staticmethod
    def close(phase, facts, options):
        return "closed"

NOTHING = 3
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of somebody else's."""
    (tmp_path / "their_taps.py").write_text(SOURCE)
    installed = tmp_path / "taps-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: taps\nVersion: 1.0\n")
    points = f"[{child.GROUP}]\ntap = their_taps:Tap.close\nlost = no_such_module:f\n"
    (installed / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def python(entry_point: str, **options: Any) -> Python:
    return Python(name="tap", entry_point=entry_point, options=options)


def run(entry_point: str, **options: Any) -> Outcome:
    return Outcome.of(partial(child.run_python, python(entry_point, **options), facts.document(work())))


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("tell", done(f"on my way / recover {EVENT.id} blue")),
        ("leave", failed("gone")),
        ("crash", failed("ended by signal 6: so far so good")),
    ],
)
def test_a_function_is_called_in_a_process_of_its_own(name: str, outcome: Outcome) -> None:
    handler = ChildHandler(python(f"their_taps:{name}", colour="blue"), RUNTIME)
    assert Tried(handler).run(phase=Phase.RECOVER) == outcome


def test_a_child_that_is_stopped_cleans_up_and_ends(theirs: Path) -> None:
    stop = threading.Event()
    outcomes: list[Outcome] = []
    handler = Tried(ChildHandler(python("their_taps:wait"), RUNTIME))
    with beside(lambda: outcomes.append(handler.run(stop=stop, seconds_left=60))):
        until((theirs / "ready").exists)
        stop.set()
        asked = time.monotonic()
    assert time.monotonic() - asked < 20
    assert not outcomes[0].ok
    assert outcomes[0].message.endswith("as the agent asked")
    assert (theirs / "cleaned").exists()


def test_options_may_be_whatever_toml_knows(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    table = '[[handler]]\nname = "tap"\ntype = "python"\nentry_point = "a:b"\n'
    path.write_text(table + "options = { deep = { list = [1, 2.5, true] }, text = 'x' }\n")
    (found,) = config.load(path).handlers
    assert isinstance(found, Python)
    assert found.options == {"deep": {"list": [1, 2.5, True]}, "text": "x"}


@pytest.mark.usefixtures("theirs")
def test_the_result_of_a_function_is_how_it_went() -> None:
    give = "their_taps:give"
    assert run("tap") == done("closed"), "found by the name of its entry point"
    assert run(give, result="none") == run(give, result="true") == done("")
    assert run(give, result="false") == failed(f"{give} returned False")
    assert run(give, result="one") == failed(f"{give} returned a int: give None, True, False or a text")


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("entry_point", "message"),
    [
        ("their_taps:fail", "ValueError: the tap is dry"),
        ("their_taps:NOTHING", "TypeError: their_taps:NOTHING is a int and cannot be called"),
        ("their_taps:missing", "AttributeError: module 'their_taps' has no attribute 'missing'"),
        ("no_such_module:f", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("lost", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("nowhere", "LookupError: there is no entry point 'nowhere' in the group forenotice.handlers: is its package "),
    ],
)
def test_an_exception_is_shown_by_the_last_line_of_its_traceback(entry_point: str, message: str) -> None:
    rehearsed = Outcome.of(partial(child.rehearse_python, python(entry_point)))
    assert rehearsed.ok == (entry_point == "their_taps:fail"), "it is found, and not called"
    assert rehearsed.message.startswith(f"would call {entry_point}" if rehearsed.ok else message)
    outcome = run(entry_point)
    assert not outcome.ok
    assert outcome.message.startswith(message)
