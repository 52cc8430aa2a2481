"""Files that others must not read or change: keys, secrets, and what a program of root's is told to run."""

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
    """What is in a file that is ours or root's, and that nobody else can write, nor read where it is a `secret`.

    `noun` begins the sentence that refuses. With `links`, what a link leads to is judged: keys of certbot and of
    Kubernetes are links. What runs as root follows none, and nobody else can change a directory that leads there.
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
            require_way(path.parent, path)
        content = os.read(file, LARGEST + 1)
        if len(content) > LARGEST:
            raise errors.RefusedError(f"{what} cannot be read: it has more than {LARGEST} bytes")
        return content
    finally:
        os.close(file)


def require_directory(path: Path, noun: str) -> None:
    """One of ours or root's, in which nobody else can put, replace or has put anything. OSError when there is none."""
    found = os.stat(path)
    what = f"{noun} {path}"
    if not stat.S_ISDIR(found.st_mode):
        raise errors.RefusedError(f"{what} is not a directory: give one")
    _require_ours(found, what)
    _require_closed(found, what, path, secret=False)
    require_way(path, path)
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(found.st_mode):
                raise errors.RefusedError(f"{entry.path} is a link, which {noun} must not hold: remove it")
            if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                # Whoever opens a pipe waits for its other end.
                raise errors.RefusedError(f"{entry.path} is neither a file nor a directory: remove it from {noun}")
            _require_ours(found, entry.path)
            _require_closed(found, entry.path, Path(entry.path), secret=False)


def make_directory(path: Path, noun: str) -> None:
    """As `require_directory`, if need be with those above it; not where others could change what leads to it."""
    if not path.exists():
        require_way(nearest(path.parent), path)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_directory(path, noun)


def nearest(path: Path) -> Path:
    """The path itself, or what there is of those above it."""
    return next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))


def require_way(directory: Path, path: Path) -> None:
    """Nobody else can change the directory, or one that leads there, on the way to the path."""
    for place, found in _way(directory.absolute()):
        what = f"{place}, which leads to {path},"
        _require_ours(found, what)
        if not found.st_mode & stat.S_ISVTX:
            # Nobody can rename or remove what is ours in a directory with the sticky bit, such as /tmp.
            _require_closed(found, what, place, secret=False)


def _way(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """It and all above it, and the same of every link on the way."""
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
    # Whoever has the root directory can do anything; in a user namespace that need not be 0.
    if found.st_uid not in (0, who, os.stat("/").st_uid):
        raise errors.RefusedError(
            f"{what} belongs to another user (uid {found.st_uid}): it must be owned by root or by the user that "
            f"runs this (uid {who})"
        )


def _require_closed(found: os.stat_result, what: str, path: Path, *, secret: bool) -> None:
    if os.name != "posix":
        return
    # Root's may be read by a group: so systemd and Kubernetes hand credentials to a service, and Debian its keys.
    kept_from = 0o027 if found.st_uid == 0 else 0o077
    # A group with the number of its user is that user's own: with it, files are made writable for the group.
    changed_by = 0o002 if found.st_gid == found.st_uid != 0 else 0o022
    wrong = found.st_mode & (kept_from if secret else changed_by)
    if wrong:
        deed = "changed" if wrong & 0o022 else "read"
        remedy = f"chmod {'go-rwx' if secret else 'go-w'} {path}"
        mode = stat.S_IMODE(found.st_mode)
        raise errors.RefusedError(f"{what} can be {deed} by other users (mode {mode:04o}): run `{remedy}`")
