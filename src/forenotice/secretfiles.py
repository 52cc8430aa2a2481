"""Files that others must not read or change: keys, secrets, and what a program of root's is told to run."""

import errno
import os
import stat
from pathlib import Path

from forenotice.core import errors

LARGEST = 1024 * 1024
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read(path: Path, noun: str, *, secret: bool = True, links: bool = False) -> bytes:
    """What is in a file that is ours or root's, and that nobody else can write, nor read where it is a `secret`.

    `noun` begins the sentence that refuses. With `links`, what a link leads to is judged: keys of certbot and of
    Kubernetes are links. What runs as root follows none.
    """
    what = f"{noun} {path}"
    try:
        file = os.open(path, _FLAGS | (0 if links else getattr(os, "O_NOFOLLOW", 0)))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise errors.RefusedError(f"{what} is a link: give the file that it leads to") from None
        raise errors.RefusedError(f"{what} cannot be read: {str(error.strerror).lower()}") from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise errors.RefusedError(f"{what} cannot be read: it is not a file")
        _require_ours(found, what)
        _require_closed(found, what, path, secret=secret)
        return os.read(file, LARGEST)
    finally:
        os.close(file)


def require_directory(path: Path, noun: str) -> None:
    """One of ours or root's, in which nobody else can put or replace anything; not a link."""
    found = os.stat(path, follow_symlinks=False)
    what = f"{noun} {path}"
    if not stat.S_ISDIR(found.st_mode):
        raise errors.RefusedError(f"{what} is not a directory: give one")
    _require_ours(found, what)
    _require_closed(found, what, path, secret=False)


def _require_ours(found: os.stat_result, what: str) -> None:
    who = getattr(os, "geteuid", lambda: found.st_uid)()
    if found.st_uid not in (0, who):
        raise errors.RefusedError(
            f"{what} belongs to another user (uid {found.st_uid}): it must be owned by root or by the user that "
            f"runs this (uid {who})"
        )


def _require_closed(found: os.stat_result, what: str, path: Path, *, secret: bool) -> None:
    if os.name != "posix":
        return
    # Root's may be read by a group: so systemd and Kubernetes hand credentials to a service, and Debian its keys.
    kept_from = 0o027 if found.st_uid == 0 else 0o077
    wrong = found.st_mode & (kept_from if secret else 0o022)
    if wrong:
        deed = "changed" if wrong & 0o022 else "read"
        remedy = f"chmod {'go-rwx' if secret else 'go-w'} {path}"
        mode = stat.S_IMODE(found.st_mode)
        raise errors.RefusedError(f"{what} can be {deed} by other users (mode {mode:04o}): run `{remedy}`")
