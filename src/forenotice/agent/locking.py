"""One agent at a time for a state directory."""

import os
import sqlite3
from pathlib import Path

from forenotice import secretfiles
from forenotice.agent.journal import NOUN, JournalError, is_passing, is_still, make_file
from forenotice.core import errors

FILE = "lock"
LOOKED_AT = 1.0
"""Seconds that an agent waits for those who only look whether one runs."""


class Lock:
    """Gone with the process, however that ends."""

    def __init__(self, directory: Path) -> None:
        """JournalError when it cannot be had, ConflictError when another agent has it.

        RefusedError: other users can change what is in the directory.
        """
        path = directory / FILE
        try:
            secretfiles.make_directory(directory, NOUN)
            try:
                self._connection = _lock(path, LOOKED_AT)
            except sqlite3.Error as error:
                if is_passing(error):
                    raise
                # There is nothing in it that could be lost.
                path.unlink()
                self._connection = _lock(path, LOOKED_AT)
            self._path, self._file = path, path.stat()
        except (OSError, sqlite3.Error) as error:
            if "locked" in str(error):
                raise errors.ConflictError(f"another agent runs on the state directory {directory}") from None
            raise JournalError(f"the state directory {directory} cannot be used: {error}") from None

    def is_there(self) -> bool:
        """Whether it keeps others out: not when somebody has removed it."""
        return is_still(self._path, self._file)

    def release(self) -> None:
        self._connection.close()


def is_running(directory: Path) -> bool | None:
    """Whether an agent has the directory; None when that cannot be told."""
    try:
        if not (directory / FILE).exists():
            # An agent that may not write here runs without one.
            return None
        _lock(directory / FILE, 0).close()
    except sqlite3.Error as error:
        if "locked" in str(error):
            return True
        return None if is_passing(error) else False
    except OSError:
        return None
    return False


def _lock(path: Path, patience: float) -> sqlite3.Connection:
    make_file(path)
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        if not os.access(path, os.W_OK):
            # SQLite is content with reading then, which keeps nobody out.
            raise PermissionError(f"{path} cannot be written")
    except BaseException:
        connection.close()
        raise
    return connection
