"""Driver errors, told apart by who must act."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy.exc

from forenotice.core import errors

_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY = 0xFF
"""Extended result codes of SQLite keep the primary one in the low byte."""

_CORRUPT_POSTGRESQL = (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted)
# Not OperationalErrors, yet they pass: a failover leaves us on a standby for a while, a stalled session is ended.
_PASSING_POSTGRESQL = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
)


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
        translation = translate(error)
        if translation is None:
            raise
        raise translation from error


def translate(error: BaseException) -> errors.ForenoticeError | None:
    """None: a defect of ours, to be seen as it is."""
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        return translate(error.orig)
    match error:
        case sqlite3.OperationalError() if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            return overdue()
        case psycopg.errors.QueryCanceled():
            return overdue()
        case sqlite3.DatabaseError() if getattr(error, "sqlite_errorcode", 0) & _PRIMARY in _CORRUPT:
            return unsound(error)
        case sqlite3.OperationalError() if getattr(error, "sqlite_errorcode", 0) & _PRIMARY != sqlite3.SQLITE_ERROR:
            return unavailable(error)
        case psycopg.Error() if isinstance(error, _CORRUPT_POSTGRESQL):
            return unsound(error)
        case psycopg.Error() if isinstance(error, _PASSING_POSTGRESQL):
            return unavailable(error)
        case sqlalchemy.exc.TimeoutError():
            return errors.UnavailableError("all connections to the database are in use; try again")
        case _:
            return None


def overdue() -> errors.OverdueError:
    return errors.OverdueError(
        "a statement took too long and the database stopped it: ask for less at once, or try again"
    )


def unavailable(error: BaseException) -> errors.UnavailableError:
    return errors.UnavailableError(f"the database cannot be used just now ({brief(error)}); try again")


def unsound(error: BaseException) -> errors.UnsoundError:
    return errors.UnsoundError(f"the database is damaged ({brief(error)}): stop, and restore it from a backup")


def brief(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
