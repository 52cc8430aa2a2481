"""Files that others must not read or change."""

import os
import tempfile
from pathlib import Path

import pytest

from forenotice import secret_files
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
        secret_files.read(path, "the key", secret=secret, links=links)
    return refused.value.message


def test_what_is_for_its_owner_alone_is_read(file: Path) -> None:
    for mode in (0o600, 0o400, 0o700):
        file.chmod(mode)
        assert secret_files.read(file, "the key") == b"secret\n"


@pytest.mark.parametrize(
    ("mode", "deed"), [(0o644, "read"), (0o604, "read"), (0o620, "changed"), (0o602, "changed"), (0o666, "changed")]
)
def test_what_others_can_read_or_change_is_refused(file: Path, mode: int, deed: str) -> None:
    file.chmod(mode)
    said = f"the key {file} can be {deed} by other users (mode {mode:04o}): run `chmod go-rwx {file}`"
    assert _refused(file) == said


def test_what_is_no_secret_may_be_read_but_not_changed(file: Path) -> None:
    file.chmod(0o644)
    assert secret_files.read(file, "the file", secret=False) == b"secret\n"
    file.chmod(0o646)
    said = f"the key {file} can be changed by other users (mode 0646): run `chmod go-w {file}`"
    assert _refused(file, secret=False) == said


@pytest.mark.skipif(not ROOT, reason="files are given away by root alone")
def test_a_group_may_read_what_is_roots(file: Path) -> None:
    """So do systemd's LoadCredential= and Kubernetes hand secrets to a service of another user."""
    file.chmod(0o440)
    assert secret_files.read(file, "the key") == b"secret\n"


@pytest.mark.skipif(not ROOT, reason="files are given away by root alone")
def test_what_belongs_to_somebody_else_is_refused(file: Path) -> None:
    os.chown(file, NOBODY, NOBODY)
    assert f"the key {file} belongs to another user (uid {NOBODY})" in _refused(file)
    os.chown(file.parent, NOBODY, NOBODY)
    with pytest.raises(errors.RefusedError, match="belongs to another user"):
        secret_files.require_directory(file.parent, "the directory")
    os.chown(file.parent, 0, 0)


def test_links_are_followed_only_where_they_may_be(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    assert _refused(link) == f"the key {link} is a link: give the file that it leads to"
    assert secret_files.read(link, "the key", links=True) == b"secret\n"
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
        secret_files.require_directory(directory, "the directory")
    for mode in (0o702, 0o777, 0o1777):
        directory.chmod(mode)
        with pytest.raises(errors.RefusedError) as refused:
            secret_files.require_directory(directory, "the directory")
        assert f"{directory} can be changed by other users (mode {mode:04o}): run `chmod go-w" in refused.value.message
    with pytest.raises(errors.RefusedError, match="is not a directory"):
        secret_files.require_directory(file, "the directory")


def test_what_is_in_a_directory_is_looked_at_too(file: Path) -> None:
    """It may have been put there while everybody could."""
    directory = file.parent
    secret_files.require_directory(directory, "the directory")
    file.chmod(0o646)
    with pytest.raises(errors.RefusedError, match=f"{file} can be changed by other users"):
        secret_files.require_directory(directory, "the directory")
    file.unlink()
    file.symlink_to("elsewhere")
    with pytest.raises(errors.RefusedError, match=f"{file} is a link, which the directory must not hold: remove it"):
        secret_files.require_directory(directory, "the directory")


def test_a_pipe_in_a_directory_is_refused_without_waiting_for_it(file: Path) -> None:
    (file.parent / "below").mkdir()
    os.mkfifo(file.parent / "pipe", 0o600)
    with pytest.raises(
        errors.RefusedError, match="pipe is neither a file nor a directory: remove it from the directory"
    ):
        secret_files.require_directory(file.parent, "the directory")


def test_nothing_is_made_where_others_can_change_it(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b"
    tmp_path.chmod(0o777)
    with pytest.raises(errors.RefusedError, match=f"^{tmp_path}, which leads to {made}, can be changed by other users"):
        secret_files.make_directory(made, "the directory")
    assert not list(tmp_path.iterdir())
    tmp_path.chmod(0o700)
    secret_files.make_directory(made, "the directory")
    assert made.stat().st_mode & 0o777 == 0o700
    secret_files.make_directory(made, "the directory")


def test_nobody_else_can_change_what_leads_there(file: Path) -> None:
    file.parent.chmod(0o777)
    said = f"{file.parent}, which leads to {file}, can be changed by other users (mode 0777): run `chmod go-w"
    assert _refused(file) == f"{said} {file.parent}`"
    below = file.parent / "below"
    below.mkdir()
    with pytest.raises(errors.RefusedError, match=f"{file.parent}, which leads to {below}, can be changed"):
        secret_files.require_directory(below, "the directory")
    # As in /tmp, only its owner can replace the file.
    file.parent.chmod(0o1777)
    assert secret_files.read(file, "the key") == b"secret\n"
    secret_files.require_directory(below, "the directory")


@pytest.mark.skipif(not ROOT, reason="files are given away by root alone")
def test_a_directory_that_leads_there_belongs_to_nobody_else(file: Path) -> None:
    for mode in (0o755, 0o1777):
        file.parent.chmod(mode)
        os.chown(file.parent, NOBODY, NOBODY)
        assert f"{file.parent}, which leads to {file}, belongs to another user" in _refused(file)
        os.chown(file.parent, 0, 0)


def test_links_that_lead_there_are_followed_and_looked_at(file: Path, tmp_path: Path) -> None:
    everybodys, relative, absolute = tmp_path / "everybodys", tmp_path / "relative", tmp_path / "absolute"
    everybodys.mkdir()
    relative.symlink_to("everybodys/..")
    absolute.symlink_to(relative)
    assert secret_files.read(absolute / "key", "the key") == b"secret\n"
    (everybodys / "link").symlink_to("..")
    absolute.unlink()
    absolute.symlink_to("everybodys/link")
    everybodys.chmod(0o777)
    assert f"{everybodys}, which leads to {absolute / 'key'}, can be changed" in _refused(absolute / "key")
    absolute.unlink()
    absolute.symlink_to("absolute")
    with pytest.raises(OSError, match="symbolic links"):
        secret_files.require_directory(absolute / "below", "the directory")


@pytest.mark.skipif(not ROOT, reason="files are given away by root alone")
def test_the_group_of_a_user_alone_may_change_what_is_its_users(file: Path) -> None:
    """As files are made with a umask of 002; the group of root is none of these."""
    file.chmod(0o664)
    assert "can be changed by other users" in _refused(file, secret=False)
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
