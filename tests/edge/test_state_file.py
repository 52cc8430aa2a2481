"""The state on disk is whole, or it is not there."""

import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forenotice.edge.state_file import FormerStaysError, StateFile


@contextmanager
def full_disk(size: int = 0) -> Iterator[None]:
    """No file may be longer than this meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_what_was_written_last_is_read_with_the_time_when(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    assert file.read() is None
    before = datetime.now(UTC) - timedelta(seconds=1)
    file.write(b"one")
    file.write(b"another")
    found = StateFile(tmp_path).read()
    assert found is not None
    data, written = found
    assert data == b"another"
    assert before <= written <= datetime.now(UTC)
    assert os.listdir(tmp_path) == ["state"]


def test_a_new_one_that_was_not_finished_is_not_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(b"whole")
    (tmp_path / "state.new").write_bytes(b"ha")
    found = StateFile(tmp_path).read()
    assert found is not None
    assert found[0] == b"whole"
    file.write(b"next")
    assert os.listdir(tmp_path) == ["state"]


def test_if_it_cannot_be_written_the_former_is_gone_too(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(b"former")
    with full_disk(), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        file.write(b"newer")
    assert os.listdir(tmp_path) == []
    file.write(b"newest")
    assert file.read() is not None


def test_a_directory_that_cannot_be_read_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(IsADirectoryError):
        StateFile(tmp_path).read()


def test_on_a_disk_that_can_only_be_read_nothing_stays_if_nothing_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    # Such a disk refuses to remove even what is not there.
    monkeypatch.setattr(os, "unlink", refuse)
    with full_disk(), pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as refused:
        StateFile(tmp_path).write(b"newer")
    assert not isinstance(refused.value, FormerStaysError)
    (tmp_path / "state").write_bytes(b"former")
    with full_disk(), pytest.raises(FormerStaysError):
        StateFile(tmp_path).write(b"newer")


def test_what_may_be_gone_after_a_loss_of_power_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former state would be back."""
    file = StateFile(tmp_path)
    file.write(b"former")
    sync = os.fsync

    def refuse_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_directories)
    with pytest.raises(FormerStaysError):
        file.write(b"newer")
