"""Processes that outlive the command that started them."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from forenotice.programs import background

CODE = "import time; time.sleep(60)"


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", CODE, "of this test"]) as process:
        yield process
        process.kill()


def test_a_process_is_found_by_its_command(sleeper: "subprocess.Popen[bytes]") -> None:
    found = background.find(["setpriv", "--clear-groups", sys.executable, "-c", CODE, "of this test"])
    assert found is not None
    assert (found.pid, found.is_alive) == (sleeper.pid, True)


@pytest.mark.parametrize(
    "argv",
    [
        [sys.executable, "-c", CODE, "of another"],
        [sys.executable, "-c", CODE],
        [f"{sys.executable}-other", "-c", CODE, "of this test"],
    ],
)
@pytest.mark.usefixtures("sleeper")
def test_another_command_is_another_process(argv: list[str]) -> None:
    assert background.find(argv) is None


def test_a_process_that_has_ended_is_not_found(sleeper: "subprocess.Popen[bytes]") -> None:
    sleeper.kill()
    sleeper.wait()
    assert background.find([sys.executable, "-c", CODE, "of this test"]) is None
