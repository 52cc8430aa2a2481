"""The control plane's socket in the data directory."""

import os
import stat
from pathlib import Path

import pytest

from forenotice import control_socket
from forenotice.core import errors


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir(mode=0o700)
    return made


def test_it_is_for_its_owner_alone(directory: Path) -> None:
    before = os.umask(0)
    try:
        with control_socket.listen(directory) as listening:
            listening.listen()
            mode = (directory / control_socket.NAME).stat().st_mode
            assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["short", "long" * 50])
def test_a_path_of_any_length_can_be_connected_to(directory: Path, name: str) -> None:
    place = directory / name
    place.mkdir()
    with control_socket.listen(place) as listening:
        listening.listen()
        with control_socket.connect(place, 5) as client:
            client.sendall(b"x")
            served, _ = listening.accept()
            with served:
                assert served.recv(1) == b"x"
        assert control_socket.is_in(place)
        assert control_socket.answers(place)


def test_one_that_a_crash_left_behind_is_replaced(directory: Path) -> None:
    assert not control_socket.is_in(directory)
    control_socket.listen(directory).close()
    assert control_socket.is_in(directory)
    assert not control_socket.answers(directory)
    with control_socket.listen(directory) as listening:
        listening.listen()
        assert control_socket.answers(directory)


def test_what_is_no_socket_is_refused(directory: Path) -> None:
    (directory / control_socket.NAME).write_text("")
    with pytest.raises(errors.RefusedError, match="does not belong to the service"):
        control_socket.is_in(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root alone")
def test_a_socket_of_somebody_else_is_refused_unless_the_directory_is_theirs(directory: Path) -> None:
    with control_socket.listen(directory):
        os.chown(directory / control_socket.NAME, 65534, 65534)
        with pytest.raises(errors.RefusedError, match="must be a socket of the user who owns"):
            control_socket.is_in(directory)
        os.chown(directory, 65534, 65534)
        assert control_socket.is_in(directory)
