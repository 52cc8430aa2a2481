"""The directory of a service."""

import os
from pathlib import Path

import pytest

from forenotice import data_directory
from forenotice.core import errors


def test_one_service_at_a_time(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    with data_directory.held(directory), pytest.raises(errors.ConflictError, match="another `forenotice serve`"):
        data_directory.held(directory).__enter__()
    with data_directory.held(directory):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_the_lock_holds_though_its_file_is_deleted(tmp_path: Path) -> None:
    with data_directory.held(tmp_path):
        (tmp_path / "lock").unlink()
        with pytest.raises(errors.ConflictError, match="another `forenotice serve`"):
            data_directory.held(tmp_path).__enter__()
    with data_directory.held(tmp_path):
        pass


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.RefusedError, match="give another with --data"):
        data_directory.held(tmp_path / "file").__enter__()


def test_a_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    (tmp_path / "admin.token.new").write_text("left behind by a crash")
    for secret in ("first", "second"):
        data_directory.write_secret(path, secret)
        assert path.read_text() == f"{secret}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["admin.token"]
