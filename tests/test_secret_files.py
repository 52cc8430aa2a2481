"""Files that others must not read or change."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forenotice import secret_files
from forenotice.core import errors

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root alone")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "key"
    made.write_bytes(b"secret\n")
    made.chmod(0o600)
    return made


def refused(path: Path, check: Callable[..., object] = secret_files.read, **how: Any) -> str:
    with pytest.raises(errors.RefusedError) as caught:
        check(path, "the key" if check is secret_files.read else "the directory", **how)
    return caught.value.message


def refused_directory(path: Path) -> str:
    return refused(path, secret_files.require_directory)


def test_what_others_can_read_or_change_is_refused(file: Path) -> None:
    for mode in (0o600, 0o400, 0o700):
        file.chmod(mode)
        assert secret_files.read(file, "the key") == b"secret\n"
    for mode, access in {0o644: "read", 0o604: "read", 0o620: "changed", 0o602: "changed", 0o666: "changed"}.items():
        file.chmod(mode)
        remedy = f"run `chmod go-rwx {file}`"
        assert refused(file) == f"the key {file} can be {access} by other users (mode {mode:04o}): {remedy}"
    file.chmod(0o644)
    assert secret_files.read(file, "the file", secret=False) == b"secret\n"
    file.chmod(0o646)
    sentence = f"the key {file} can be changed by other users (mode 0646): run `chmod go-w {file}`"
    assert refused(file, secret=False) == sentence


@AS_ROOT
def test_a_group_may_read_what_is_roots(file: Path) -> None:
    """So do systemd's LoadCredential= and Kubernetes hand secrets to a service of another user."""
    file.chmod(0o440)
    assert secret_files.read(file, "the key") == b"secret\n"


@AS_ROOT
def test_what_belongs_to_another_user_is_refused(file: Path) -> None:
    os.chown(file, NOBODY, NOBODY)
    assert f"the key {file} belongs to another user (uid {NOBODY})" in refused(file)
    os.chown(file, 0, 0)
    os.chown(file.parent, NOBODY, NOBODY)
    assert "belongs to another user" in refused_directory(file.parent)
    # With or without the sticky bit.
    for mode in (0o755, 0o1777):
        file.parent.chmod(mode)
        assert f"{file.parent}, which leads to {file}, belongs to another user" in refused(file)
    os.chown(file.parent, 0, 0)


def test_links_are_followed_only_where_they_may_be(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    assert refused(link) == f"the key {link} is a link: give the file that it leads to"
    assert secret_files.read(link, "the key", links=True) == b"secret\n"
    file.chmod(0o644)
    assert "by other users (mode 0644)" in refused(link, links=True)


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    pipe, missing = tmp_path / "pipe", tmp_path / "missing"
    os.mkfifo(pipe, 0o600)
    assert refused(pipe) == f"the key {pipe} cannot be read: it is not a file"
    assert refused(tmp_path) == f"the key {tmp_path} cannot be read: it is not a file"
    assert refused(missing) == f"the key {missing} cannot be read: no such file or directory"
    (tmp_path / "below").mkdir()
    assert refused_directory(tmp_path).endswith("pipe is neither a file nor a directory: remove it from the directory")


def test_a_directory_that_others_can_write_to_is_refused(file: Path) -> None:
    directory = file.parent
    for mode in (0o700, 0o755):
        directory.chmod(mode)
        secret_files.require_directory(directory, "the directory")
    for mode in (0o702, 0o777, 0o1777):
        directory.chmod(mode)
        sentence = f"{directory} can be changed by other users (mode {mode:04o}): run `chmod go-w"
        assert sentence in refused_directory(directory)
    assert "is not a directory" in refused_directory(file)


def test_what_is_in_a_directory_is_checked_too(file: Path) -> None:
    """It may have been put there while everybody could."""
    secret_files.require_directory(file.parent, "the directory")
    file.chmod(0o646)
    assert f"{file} can be changed by other users" in refused_directory(file.parent)
    file.unlink()
    file.symlink_to("elsewhere")
    assert refused_directory(file.parent) == f"{file} is a link, which the directory must not hold: remove it"


def test_nothing_is_made_where_others_can_change_it(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b"
    tmp_path.chmod(0o777)
    sentence = f"{tmp_path}, which leads to {made}, can be changed by other users"
    assert refused(made, secret_files.make_directory).startswith(sentence)
    assert not list(tmp_path.iterdir())
    tmp_path.chmod(0o700)
    for _ in range(2):
        secret_files.make_directory(made, "the directory")
    assert made.stat().st_mode & 0o777 == 0o700


def test_no_other_user_can_change_what_leads_there(file: Path) -> None:
    file.parent.chmod(0o777)
    sentence = f"{file.parent}, which leads to {file}, can be changed by other users (mode 0777): run `chmod go-w"
    assert refused(file) == f"{sentence} {file.parent}`"
    below = file.parent / "below"
    below.mkdir()
    assert f"{file.parent}, which leads to {below}, can be changed" in refused_directory(below)
    # As in /tmp, only its owner can replace the file.
    file.parent.chmod(0o1777)
    assert secret_files.read(file, "the key") == b"secret\n"
    secret_files.require_directory(below, "the directory")


def test_links_that_lead_there_are_followed_and_checked(file: Path, tmp_path: Path) -> None:
    everybodys, relative, absolute = tmp_path / "everybodys", tmp_path / "relative", tmp_path / "absolute"
    everybodys.mkdir()
    relative.symlink_to("everybodys/..")
    absolute.symlink_to(relative)
    assert secret_files.read(absolute / "key", "the key") == b"secret\n"
    (everybodys / "link").symlink_to("..")
    absolute.unlink()
    absolute.symlink_to("everybodys/link")
    everybodys.chmod(0o777)
    assert f"{everybodys}, which leads to {absolute / 'key'}, can be changed" in refused(absolute / "key")
    absolute.unlink()
    absolute.symlink_to("absolute")
    with pytest.raises(OSError, match="symbolic links"):
        secret_files.require_directory(absolute / "below", "the directory")


@AS_ROOT
def test_a_users_own_group_may_change_what_is_its_users(file: Path) -> None:
    """As files are made with a umask of 002; the group of root is none of these."""
    file.chmod(0o664)
    assert "can be changed by other users" in refused(file, secret=False)
    with tempfile.TemporaryDirectory() as directory:
        mine = Path(directory, "mine")
        mine.write_bytes(b"secret\n")
        mine.chmod(0o664)
        for path in (directory, mine):
            os.chown(path, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            assert secret_files.read(mine, "the file", secret=False) == b"secret\n"
        finally:
            os.seteuid(0)
