"""One agent at a time for a state directory."""

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forenotice.agent.journal import JournalError, Lock, is_running
from forenotice.core import errors


def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be used"):
        Lock(tmp_path / "file")
    assert is_running(tmp_path / "nowhere") is None


def test_one_agent_at_a_time(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    assert is_running(tmp_path)
    with pytest.raises(errors.ConflictError, match="another agent runs"):
        Lock(tmp_path)
    lock.release()
    assert not is_running(tmp_path)


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from forenotice.agent.journal import Lock;"
        " lock = Lock(Path(sys.argv[1])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 9
    Lock(tmp_path).release()


def test_who_only_looks_is_not_in_the_way(tmp_path: Path) -> None:
    """`agent status` asks for the lock, for a moment, just when the agent starts."""
    Lock(tmp_path).release()
    looking = sqlite3.connect(tmp_path / "lock", isolation_level=None, check_same_thread=False)
    looking.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.1, looking.close)
    timer.start()
    Lock(tmp_path).release()
    timer.join()


def test_a_lock_that_is_none_is_held_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"this is no database, and it is long enough to show it" * 20)
    assert not is_running(tmp_path)
    lock = Lock(tmp_path)
    assert is_running(tmp_path)
    lock.release()


def test_a_lock_that_was_removed_keeps_nobody_out(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    assert lock.is_there()
    (tmp_path / "lock").unlink()
    assert not lock.is_there()
    other = Lock(tmp_path)
    assert (lock.is_there(), other.is_there()) == (False, True)
    lock.release()
    assert is_running(tmp_path)
    other.release()


def test_a_directory_that_others_can_change_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(errors.RefusedError, match=f"the state directory {tmp_path} can be changed by other users"):
        Lock(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_no_lock_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock", 0o600)
    assert is_running(tmp_path) is None
    with pytest.raises(errors.RefusedError, match="lock is neither a file nor a directory"):
        Lock(tmp_path)


def test_what_others_could_have_written_is_no_lock_nor_made_anew(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        Lock(tmp_path).release()
    finally:
        os.umask(mask)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    (tmp_path / "lock").chmod(0o666)
    with pytest.raises(errors.RefusedError, match="lock can be changed by other users"):
        Lock(tmp_path)


def test_a_lock_that_can_only_be_read_is_none(tmp_path: Path) -> None:
    Lock(tmp_path).release()
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
    program = (
        "import sys; from pathlib import Path; from forenotice.agent import journal;"
        " print(journal.is_running(Path(sys.argv[1]))); journal.Lock(Path(sys.argv[1]))"
    )
    ran = [sys.executable, "-c", program, str(tmp_path)]
    told = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", str(tmp_path), *ran], capture_output=True, text=True, check=False
    )
    if "mount:" in told.stderr or "unshare:" in told.stderr:
        assert os.environ.get("CI") != "true", "this test needs to mount a file system of its own"
        pytest.skip("needs to mount a file system of its own, as root or in a user namespace")
    assert told.stdout == "None\n"
    assert "JournalError" in told.stderr
