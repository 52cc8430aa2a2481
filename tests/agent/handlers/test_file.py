import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.agent.handlers.work import done, failed, work
from tests.agent.parts import RUNTIME

from forenotice.agent.handlers import facts, tables
from forenotice.agent.handlers.file import File
from forenotice.agent.rules.policy import Phase


def flag(path: Path) -> File:
    return File(tables.File(name="flag", path=str(path)), RUNTIME)


@pytest.mark.parametrize("back", [Phase.RECOVER, Phase.UNDO])
def test_the_flag_is_there_until_recovered(tmp_path: Path, back: Phase) -> None:
    path = tmp_path / "flag"
    before = os.umask(0o077)
    try:
        assert flag(path).run(work()) == done(f"{path} is written")
    finally:
        os.umask(before)
    assert json.loads(path.read_bytes()) == json.loads(facts.encoded(work()))
    assert path.stat().st_mode & 0o777 == 0o644
    assert flag(path).run(work(phase=back)) == done(f"{path} is removed")
    assert flag(path).run(work(phase=back)) == done(f"{path} did not exist")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("back", [Phase.RECOVER, Phase.UNDO])
def test_a_flag_that_an_administrator_had_set_stays_as_it_is(tmp_path: Path, back: Phase) -> None:
    path = tmp_path / "flag"
    path.write_text("a broken disk; Anna")
    memos: list[str] = []
    theirs = done(f"{path} existed before, and is left as it is")
    assert flag(path).run(work(remember=memos.append)) == theirs
    assert flag(path).run(work(attempt=2, memo=memos[-1], remember=memos.append)) == theirs
    assert flag(path).run(work(phase=back, memo=memos[-1])) == theirs
    assert path.read_text() == "a broken disk; Anna"


def test_whose_flag_it_is_is_known_before_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "flag"
    memos: list[tuple[str, bool]] = []
    given = work(remember=lambda memo: memos.append((memo, path.exists())))
    assert flag(path).run(given).ok
    [(memo, was_there)] = memos
    assert not was_there
    # The agent died, and the next one begins anew.
    assert flag(path).run(work(attempt=2, memo=memo)) == done(f"{path} is written")
    assert flag(path).run(work(phase=Phase.RECOVER, memo=memo)) == done(f"{path} is removed")


def test_a_flag_that_cannot_be_remembered_is_not_written(tmp_path: Path) -> None:
    def fail(_: str) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        flag(tmp_path / "flag").run(work(remember=fail))
    assert list(tmp_path.iterdir()) == []


def test_a_flag_that_an_administrator_took_back_meanwhile_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "flag"
    path.write_text("Anna's")
    memos: list[str] = []
    assert flag(path).run(work(remember=memos.append)).ok
    path.unlink()
    assert flag(path).run(work(attempt=2, memo=memos[-1], remember=memos.append)).message == f"{path} is written"
    assert flag(path).run(work(phase=Phase.RECOVER, memo=memos[-1])).message == f"{path} is removed"


def test_a_reader_sees_the_whole_of_it_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "flag"
    done = threading.Event()
    broken: list[bytes] = []

    def read() -> None:
        while not done.is_set():
            content = path.read_bytes() if path.exists() else b"{}\n"
            if not content.endswith(b"}\n"):
                broken.append(content)

    reader = threading.Thread(target=read)
    reader.start()
    for attempt in range(100):
        assert flag(path).run(work(attempt=attempt, memo=f'["{path}"]')).ok
    done.set()
    reader.join()
    assert broken == []
    assert json.loads(path.read_bytes())["attempt"] == 99


def test_what_the_owner_of_the_directory_puts_in_its_way_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who sees the file being written swaps it for a link to one that only root may read."""
    secret = tmp_path / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    directory = tmp_path / "theirs"
    directory.mkdir()
    swapped: list[Path] = []

    def swap(_: int) -> None:
        swapped.extend(directory.iterdir())
        swapped[0].unlink()
        swapped[0].symlink_to(secret)

    monkeypatch.setattr(os, "fsync", swap)
    flag(directory / "flag").run(work())
    assert swapped
    assert (secret.stat().st_mode & 0o777, secret.read_text()) == (0o600, "root's")


def test_a_directory_that_is_missing_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "none" / "flag"
    assert flag(path).run(work()) == failed(f"{path}: no such file or directory")
    assert flag(path).rehearse() == failed(f"there is no directory {tmp_path}/none to write in: make it")
    assert flag(path).run(work(phase=Phase.RECOVER)).ok


def test_nothing_is_left_of_what_could_not_be_written(tmp_path: Path) -> None:
    path = tmp_path / "flag"
    path.mkdir()
    assert flag(path).run(work()) == failed(f"{path}: is a directory")
    assert flag(path).rehearse() == failed(f"{path} is a directory: give the path of a file")
    assert not flag(path).run(work(phase=Phase.RECOVER)).ok
    assert list(tmp_path.iterdir()) == [path]


def test_a_rehearsal_looks_whether_it_may_write() -> None:
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode and not os.environ.get("CI"):
        pytest.skip("no mount namespaces here")
    program = """
from forenotice.agent.handlers import tables
from forenotice.agent.handlers.file import File
from forenotice.runtime import Runtime
print(File(tables.File(name="flag", path="/mnt/flag"), Runtime()).rehearse().message)
"""
    # Read-only also for root.
    mount = ["sh", "-c", 'mount -t tmpfs -o ro tmpfs /mnt && exec "$@"', "sh"]
    ended = subprocess.run(
        [*unshare, *mount, sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert ended.stdout == "this user cannot write in /mnt\n"


def test_a_rehearsal_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "flag"
    assert flag(path).rehearse() == done(f"would write {path}, and remove it afterwards")
    assert list(tmp_path.iterdir()) == []
