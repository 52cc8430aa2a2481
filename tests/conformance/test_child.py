"""A handler's process: what it says is kept in bounds, and all of it ends."""

import os
import sys
from pathlib import Path

import pytest
from tests.acceptance.running import until

from forenotice.conformance.command import LAST_WORDS, MARK, Child
from forenotice.core import errors

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(60)
"""


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
    else:
        os._exit(0)
time.sleep(60)
"""


def mine(folder: Path) -> dict[str, str]:
    return {**os.environ, MARK: str(folder)}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_it_ends_with_all_that_it_started_also_if_it_does_not_want_to(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    child = Child("--client", [sys.executable, "-I", "-c", STUBBORN, str(file)], mine(tmp_path))
    pid = int(until(lambda: file.exists() and file.read_text()))
    assert child.exit_code is None
    child.end(grace=0.1)
    assert child.exit_code == -9
    until(lambda: not is_running(pid))


def test_also_what_has_left_its_session(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    child = Child("--client", [sys.executable, "-I", "-c", DAEMON, str(file)], mine(tmp_path))
    pid = int(until(lambda: file.exists() and file.read_text()))
    other = Child("--client", ["sleep", "60"], mine(tmp_path / "other"))
    child.end()
    until(lambda: not is_running(pid))
    assert other.exit_code is None
    other.end()


def test_what_it_says_last_is_kept(tmp_path: Path) -> None:
    child = Child("--client", ["sh", "-c", "yes | head -c 1000000; echo; echo the end >&2; exit 3"], mine(tmp_path))
    until(lambda: child.exit_code is not None)
    child.end()
    assert child.exit_code == 3
    assert child.output.endswith("y y the end")
    assert len(child.output) == LAST_WORDS


def test_what_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(errors.RefusedError, match="--client: '/nowhere' cannot be run: No such file or directory"):
        Child("--client", ["/nowhere"], mine(tmp_path))
