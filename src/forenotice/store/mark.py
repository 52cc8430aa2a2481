"""The file beside a SQLite database that records that it is in use and how far its journal has come."""

import contextlib
import os
from pathlib import Path

import msgspec

from forenotice.core import errors
from forenotice.store.errors import brief


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int = 0
    position: int = 0
    """Of the newest journal entry."""


def beside(database: Path) -> Path:
    return database.with_name(f"{database.name}.mark")


def read(database: Path) -> Mark | None:
    """None: this database was never served, or not by a version that leaves a mark."""
    try:
        return msgspec.json.decode(beside(database).read_bytes(), type=Mark)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        # An unreadable mark still says that the database was in use.
        return Mark()
    except OSError as error:
        raise errors.UnsoundError(f"{beside(database)} cannot be read: {error.strerror}") from None


def write(database: Path, mark: Mark) -> None:
    """Whole or not at all."""
    new = beside(database).with_suffix(".mark-new")
    try:
        with new.open("wb") as file:
            file.write(msgspec.json.encode(mark))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, beside(database))
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise errors.UnavailableError(f"{beside(database)} cannot be written ({brief(error)}); try again") from None


def expect_epoch(database: Path) -> None:
    """The next who looks finds the database older than its mark, and begins an epoch."""
    last = read(database) or Mark()
    write(database, Mark(epoch=last.epoch + 1, position=last.position))
