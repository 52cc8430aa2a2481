"""Files that others must not read or change."""

import os
from pathlib import Path

import pytest

from forenotice import secretfiles
from forenotice.core import errors

ROOT = os.geteuid() == 0
NOBODY = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "key"
    made.write_bytes(b"secret\n")
    made.chmod(0o600)
    return made


def _refused(path: Path, *, secret: bool = True, links: bool = False) -> str:
    with pytest.raises(errors.RefusedError) as refused:
        secretfiles.read(path, "the key", secret=secret, links=links)
    return refused.value.message


def test_what_is_for_its_owner_alone_is_read(file: Path) -> None:
    for mode in (0o600, 0o400, 0o700):
        file.chmod(mode)
        assert secretfiles.read(file, "the key") == b"secret\n"


@pytest.mark.parametrize(
    ("mode", "deed"), [(0o644, "read"), (0o604, "read"), (0o620, "changed"), (0o602, "changed"), (0o666, "changed")]
)
def test_what_others_can_read_or_change_is_refused(file: Path, mode: int, deed: str) -> None:
    file.chmod(mode)
    said = f"the key {file} can be {deed} by other users (mode {mode:04o}): run `chmod go-rwx {file}`"
    assert _refused(file) == said


def test_what_is_no_secret_may_be_read_but_not_changed(file: Path) -> None:
    file.chmod(0o644)
    assert secretfiles.read(file, "the file", secret=False) == b"secret\n"
    file.chmod(0o664)
    said = f"the key {file} can be changed by other users (mode 0664): run `chmod go-w {file}`"
    assert _refused(file, secret=False) == said


@pytest.mark.skipif(not ROOT, reason="files are given away by root alone")
def test_a_group_may_read_what_is_roots(file: Path) -> None:
    """So do systemd's LoadCredential= and Kubernetes hand secrets to a service of another user."""
    file.chmod(0o440)
    assert secretfiles.read(file, "the key") == b"secret\n"


@pytest.mark.skipif(not ROOT, reason="files are given away by root alone")
def test_what_belongs_to_somebody_else_is_refused(file: Path) -> None:
    os.chown(file, NOBODY, NOBODY)
    assert f"the key {file} belongs to another user (uid {NOBODY})" in _refused(file)
    os.chown(file.parent, NOBODY, NOBODY)
    with pytest.raises(errors.RefusedError, match="belongs to another user"):
        secretfiles.require_directory(file.parent, "the directory")
    os.chown(file.parent, 0, 0)


def test_links_are_followed_only_where_they_may_be(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    assert _refused(link) == f"the key {link} is a link: give the file that it leads to"
    assert secretfiles.read(link, "the key", links=True) == b"secret\n"
    file.chmod(0o644)
    assert "by other users (mode 0644)" in _refused(link, links=True)


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    missing = tmp_path / "missing"
    assert _refused(pipe) == f"the key {pipe} cannot be read: it is not a file"
    assert _refused(tmp_path) == f"the key {tmp_path} cannot be read: it is not a file"
    assert _refused(missing) == f"the key {missing} cannot be read: no such file or directory"


def test_a_directory_that_others_can_write_to_is_refused(file: Path) -> None:
    directory = file.parent
    for mode in (0o700, 0o755):
        directory.chmod(mode)
        secretfiles.require_directory(directory, "the directory")
    for mode in (0o770, 0o777, 0o1777):
        directory.chmod(mode)
        with pytest.raises(errors.RefusedError) as refused:
            secretfiles.require_directory(directory, "the directory")
        assert f"{directory} can be changed by other users (mode {mode:04o}): run `chmod go-w" in refused.value.message
    directory.chmod(0o700)
    link = directory / "link"
    link.symlink_to(directory)
    for wrong in (file, link):
        with pytest.raises(errors.RefusedError, match="is not a directory"):
            secretfiles.require_directory(wrong, "the directory")
