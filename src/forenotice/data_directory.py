"""The data directory: one service at a time, and the administrator's first token."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forenotice.core import errors


@contextmanager
def held(directory: Path, database: Path | None = None, *, by: str = "serve") -> Iterator[None]:
    """Make the directory and lock it against others until the process ends; `by` is the command that does."""
    with ExitStack() as stack:
        stack.enter_context(_held(directory, by))
        elsewhere = database and database.resolve().parent
        if elsewhere and elsewhere.is_dir() and elsewhere != directory.resolve():
            # Perhaps another service's directory: on SQLite, two services would not see each other's changes.
            stack.enter_context(_held(elsewhere, by))
        yield


@contextmanager
def _held(directory: Path, by: str) -> Iterator[None]:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise errors.RefusedError(
            f"the data directory {directory} cannot be used ({error.strerror}): give another with --data"
        ) from None
    # Lock the directory too, in case somebody deletes the lock file.
    both = (lock, os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        if not all(_lock(one) for one in both):
            raise errors.ConflictError(
                f"another `forenotice {by}` uses the data directory {directory}: stop it, or give another with --data"
            )
        yield
    finally:
        for one in both:
            os.close(one)


def _lock(descriptor: int) -> bool:
    """False: another process has locked it. Network file systems may not support locks on directories."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    return True


def write_secret(path: Path, secret: str) -> None:
    """Atomic, readable by its owner alone, and durable."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, secret.encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(new, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
