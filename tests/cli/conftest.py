"""Fixtures of the command line's tests."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.control.running import Control, running

from forenotice.cli.main import main

VARIABLES = ("CONTROL", "TOKEN", "DATA", "DATABASE", "CONFIG", "ENDPOINT", "NAME", "DEMO", "SPEED", "METADATA")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]
FLEET = b"""
[hosts]
host-a = {}
host-b = {}
[groups.web]
kind = "availability-set"
policy.listening = "always"
[vms]
web-0 = { host = "host-a", group = "web" }
db = { host = "host-b", addresses = ["10.0.0.9"] }
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the person who runs the tests reaches a command."""
    for name in VARIABLES:
        monkeypatch.delenv(f"FORENOTICE_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def run(alone: None, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        # What the service in this process logs is not what a command says.
        with structlog.testing.capture_logs():
            code = main(arguments)
        said = capsys.readouterr()
        if code:
            assert said.out == ""
            assert "Traceback" not in said.err
        else:
            assert said.err == ""
        return Ran(code, said.out, said.err)

    return call


@pytest.fixture(scope="module")
def module_control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    with running(tmp_path_factory.mktemp("control")) as found:
        yield found


@pytest.fixture
def cli(run: Run, module_control: Control, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Commands against a control plane that lives as long as the module."""
    monkeypatch.setenv("FORENOTICE_CONTROL", module_control.url)
    monkeypatch.setenv("FORENOTICE_TOKEN", module_control.token)
    return run


@pytest.fixture
def fresh(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Commands against a control plane of their own, with a small fleet."""
    with running(tmp_path) as control:
        monkeypatch.setenv("FORENOTICE_CONTROL", control.url)
        monkeypatch.setenv("FORENOTICE_TOKEN", control.token)
        control.post_fleet(FLEET)
        yield run
