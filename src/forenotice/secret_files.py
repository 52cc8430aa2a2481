"""Files that other users must not read or change: keys, secrets, and files that name programs to run as root."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from forenotice.core import errors

LARGEST = 1024 * 1024
_MOST_LINKS = 40
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read(path: Path, noun: str, *, secret: bool = True, links: bool = False) -> bytes:
    """The content of a file that is ours or root's, that no other user can write, nor read if it is a `secret`.

    `noun` begins the refusal. With `links` a symbolic link is followed and its target checked, because certbot and
    Kubernetes install keys as links. Without, links are refused and every directory on the path is checked as well.
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
        if not links:
            require_path(path.parent, path)
        content = os.read(file, LARGEST + 1)
        if len(content) > LARGEST:
            raise errors.RefusedError(f"{what} cannot be read: it has more than {LARGEST} bytes")
        return content
    finally:
        os.close(file)


def require_directory(path: Path, noun: str) -> None:
    """Ours or root's, and no other user can change it or owns anything in it. OSError if it does not exist."""
    found = os.stat(path)
    what = f"{noun} {path}"
    if not stat.S_ISDIR(found.st_mode):
        raise errors.RefusedError(f"{what} is not a directory: give one")
    _require_ours(found, what)
    _require_closed(found, what, path, secret=False)
    require_path(path, path)
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(found.st_mode):
                raise errors.RefusedError(f"{entry.path} is a link, which {noun} must not hold: remove it")
            if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                # Opening a pipe would block.
                raise errors.RefusedError(f"{entry.path} is neither a file nor a directory: remove it from {noun}")
            _require_ours(found, entry.path)
            _require_closed(found, entry.path, Path(entry.path), secret=False)


def make_directory(path: Path, noun: str) -> None:
    """Make it and its parents if missing, unless other users could change the path; then `require_directory`."""
    if not path.exists():
        require_path(nearest_existing(path.parent), path)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_directory(path, noun)


def nearest_existing(path: Path) -> Path:
    """The path itself, or its closest parent that exists."""
    return next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))


def require_path(directory: Path, path: Path) -> None:
    """No other user can change the directory or any directory above it; the refusal names `path`."""
    for place, found in _ancestors(directory.absolute()):
        what = f"{place}, which leads to {path},"
        _require_ours(found, what)
        if not found.st_mode & stat.S_ISVTX:
            # In a directory with the sticky bit, such as /tmp, others cannot rename or remove our files.
            _require_closed(found, what, place, secret=False)


def _ancestors(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The directory and its parents, with symbolic links resolved and their parents included."""
    at, left, links = Path(directory.anchor), [*reversed(directory.parts[1:])], 0
    yield at, at.stat()
    while left:
        name = left.pop()
        if name == "..":
            at = at.parent
            continue
        found = (at / name).lstat()
        if not stat.S_ISLNK(found.st_mode):
            at /= name
            yield at, found
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(directory))
        target = Path(os.readlink(at / name))
        at = Path(target.anchor) if target.is_absolute() else at
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _require_ours(found: os.stat_result, what: str) -> None:
    who = getattr(os, "geteuid", lambda: found.st_uid)()
    # The owner of / can do anything; in a user namespace that need not be uid 0.
    if found.st_uid not in (0, who, os.stat("/").st_uid):
        raise errors.RefusedError(
            f"{what} belongs to another user (uid {found.st_uid}): it must be owned by root or by the user that "
            f"runs this (uid {who})"
        )


def _require_closed(found: os.stat_result, what: str, path: Path, *, secret: bool) -> None:
    if os.name != "posix":
        return
    # A group may read root's: systemd, Kubernetes and Debian give keys to services that way.
    unreadable_for = 0o027 if found.st_uid == 0 else 0o077
    # A group with the same number as its user is private to that user; such systems make files group-writable.
    unwritable_for = 0o002 if found.st_gid == found.st_uid != 0 else 0o022
    wrong = found.st_mode & (unreadable_for if secret else unwritable_for)
    if wrong:
        access = "changed" if wrong & 0o022 else "read"
        remedy = f"chmod {'go-rwx' if secret else 'go-w'} {path}"
        mode = stat.S_IMODE(found.st_mode)
        raise errors.RefusedError(f"{what} can be {access} by other users (mode {mode:04o}): run `{remedy}`")
