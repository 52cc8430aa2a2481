"""The state on disk: an edge that restarts answers from it before it has reached anybody."""

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

NAME = "state"


class FormerStaysError(OSError):
    """A state was not written, and the former one could not be removed."""


class StateFile:
    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._new = directory / f"{NAME}.new"

    def read(self) -> tuple[bytes, datetime] | None:
        """And when it was written; None: there is none."""
        try:
            return self._path.read_bytes(), datetime.fromtimestamp(self._path.stat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    def write(self, data: bytes) -> None:
        """Durable when it returns. OSError: it was not written, and the former one is gone, too.

        FormerStaysError: not even that. A restart would show the former one to guests that have seen a newer.
        """
        try:
            with open(self._new, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._new, self._path)
            self._sync_directory()
        except OSError as error:
            try:
                if self._path.exists():
                    self._path.unlink()
                self._sync_directory()
            except OSError:
                raise FormerStaysError(error.errno, error.strerror) from None
            with suppress(OSError):
                self._new.unlink(missing_ok=True)
            raise

    def _sync_directory(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
