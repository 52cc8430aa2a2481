"""The control plane's unix socket in the data directory: only the service's own user, and root, can connect to it.

Any program can take the port of a service that has ended, but no other user can put a socket into the data directory.
"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forenotice.core import errors

NAME = "control.sock"
LONGEST = 107
"""Bytes that fit into a socket's address (unix(7))."""


def listen(directory: Path) -> socket.socket:
    """Only for the service that holds the directory's lock: a socket that exists was left behind by a crash."""
    path = directory / NAME
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(directory) as address:
            made.bind(address)
        path.chmod(0o600)
    except BaseException:
        made.close()
        raise
    return made


def connect(directory: Path, seconds: float | None = None) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(seconds)
        with _address(directory) as address:
            made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def is_in(directory: Path) -> bool:
    """Whether there is a socket to which a token may be sent; perhaps no service listens any more."""
    path = directory / NAME
    try:
        found, inside = path.lstat(), directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in (0, os.geteuid(), inside.st_uid):
        raise errors.RefusedError(
            f"{path} does not belong to the service: it must be a socket of the user who owns {directory}; remove it, "
            "and start `forenotice serve` again"
        )
    return True


def answers(directory: Path) -> bool:
    try:
        connect(directory).close()
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


@contextmanager
def _address(directory: Path) -> Iterator[str]:
    path = str(directory / NAME)
    if len(os.fsencode(path)) <= LONGEST:
        yield path
        return
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{NAME}"
    finally:
        os.close(opened)
