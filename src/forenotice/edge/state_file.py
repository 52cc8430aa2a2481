"""The state on disk: an edge that restarts answers from it before it has reached anybody."""

import os
from datetime import UTC, datetime
from pathlib import Path

NAME = "state"


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

        Guests may have seen a newer state by then, and must not be shown the former one again.
        """
        try:
            with open(self._new, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._new, self._path)
        except OSError:
            self._path.unlink(missing_ok=True)
            self._new.unlink(missing_ok=True)
            raise
        finally:
            self._sync_directory()

    def _sync_directory(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
