"""Fixtures of the command line's tests."""

import json
import re
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

    def shows(self, *lines: str) -> None:
        """A line of the output for each regular expression."""
        for line in lines:
            assert re.search(rf"^{line}$", self.out, re.MULTILINE), f"{line} in {self.out}"


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
    def call(*arguments: str, failing: int | None = None) -> Ran:
        """`failing`: the exit code of a command that also prints a result."""
        capsys.readouterr()
        # What the service in this process logs is not what a command prints.
        with structlog.testing.capture_logs():
            code = main(arguments)
        printed = capsys.readouterr()
        if failing is not None:
            assert code == failing
        elif code:
            assert printed.out == ""
            assert "Traceback" not in printed.err
        else:
            assert printed.err == ""
        return Ran(code, printed.out, printed.err)

    return call


@pytest.fixture(scope="module")
def module_control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    with running(tmp_path_factory.mktemp("control")) as found:
        yield found


@pytest.fixture
def cli(run: Run, module_control: Control, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Commands against a control plane that lives as long as the module."""
    _use(module_control, monkeypatch)
    return run


@pytest.fixture
def fleet(cli: Run, module_control: Control) -> Run:
    """The same, with nothing but a small fleet."""
    module_control.post_fleet(b"", prune=True)
    module_control.post_fleet(FLEET)
    return cli


@pytest.fixture
def fresh(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Commands against a control plane of their own, with a small fleet."""
    with running(tmp_path) as control:
        _use(control, monkeypatch)
        control.post_fleet(FLEET)
        yield run


def _use(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENOTICE_CONTROL", control.url)
    monkeypatch.setenv("FORENOTICE_TOKEN", control.token)
