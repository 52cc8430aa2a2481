"""Opens a store: looks at the database first, and refuses what it must not touch."""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import sqlalchemy.exc
from sqlalchemy import URL, Connection, inspect, make_url, text
from sqlalchemy.schema import CreateIndex, CreateTable

from forenotice.core import errors
from forenotice.store import postgresql, schema, sqlite
from forenotice.store.database import Store, brief, translate

_MIGRATIONS = Path(__file__).parent / "migrations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revisions:
    """The revisions of the schema, known without importing Alembic, which is slow."""

    names: tuple[str, ...]
    """Oldest first; the first is the oldest that can be upgraded."""
    locations: tuple[Path, ...] = (_MIGRATIONS / "versions",)
    """Folders with the migrations."""

    @property
    def newest(self) -> str:
        return self.names[-1]


OURS = Revisions(names=tuple(sorted(path.name.partition("_")[0] for path in _MIGRATIONS.glob("versions/[0-9]*.py"))))

_VERSION = "version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)"
"""As Alembic would declare it, which a new database is made without."""

_CHECKED_BYTES = 1 << 28
"""A larger file is not checked at every start; damage in it shows when a statement meets it."""


_MISTAKEN = re.compile("FATAL: +(.*(authentication failed|does not exist|not permitted)|no pg_hba|permission denied)")
"""PostgreSQL's message when the URL is wrong; its error codes do not distinguish that from an outage."""


def open_store(url: str, *, migrate: bool, known: Revisions = OURS) -> Store:
    """Open `sqlite:///PATH` or `postgresql://...`. `migrate` upgrades an older schema and creates PostgreSQL's tables;
    a missing SQLite file is created in any case."""
    try:
        parsed = make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise _unknown_url() from None
    match parsed.drivername:
        case "sqlite" if parsed.database and parsed.database != ":memory:":
            return _open_sqlite(parsed, Path(parsed.database), known, migrate=migrate)
        case "postgresql" | "postgres" if parsed.database:
            return _open_postgresql(parsed, known, migrate=migrate)
        case _:
            raise _unknown_url()


def _unknown_url() -> errors.RefusedError:
    return errors.RefusedError(
        "this is not the URL of a database: give sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/NAME"
    )


def _open_sqlite(url: URL, path: Path, known: Revisions, *, migrate: bool) -> Store:
    if not path.parent.is_dir():
        raise errors.RefusedError(f"there is no directory {path.parent} for the database: make it, or name another")
    with _refusing(str(path)):
        found = _inspect_sqlite(path)
        _require_known(found, known, str(path))
        if found is None and sqlite.read_mark(path):
            raise errors.UnsoundError(
                f"the database {path} is missing or empty, though it was in use before: put it back, or run "
                f"`forenotice restore` with a backup; to begin with nothing, remove {sqlite.mark_beside(path)}"
            )
        if found is not None and not sqlite.has_log(path):
            # A copy, so an operator has restored a backup.
            sqlite.expect_epoch(path)
        file = sqlite.File(path)
        engine = sqlite.engine(url, file)
        with _closing_on_error(engine.dispose, file.close):
            if found != known.newest:
                if found is not None:
                    if not migrate:
                        raise errors.UnsoundError(
                            f"{path} is at the older revision {found}: run `forenotice serve` or `forenotice migrate`"
                        )
                    sqlite.copy(path, free_name(path.with_name(f"{path.name}.before-{known.newest}")))
                with engine.begin() as migrating:
                    _migrate(migrating, known)
    return sqlite.SqliteStore(engine, file)


def replace(path: Path, backup: Path, known: Revisions = OURS) -> Path | None:
    """Replace a database that is not in use by a copy of a backup; gives where the old one is kept."""
    if backup.exists() and path.exists() and backup.samefile(path):
        raise errors.RefusedError(f"{backup} is the database itself: name the file of a backup")
    with _refusing(str(backup)):
        found = _inspect_sqlite(backup)
        if found is None:
            raise errors.RefusedError(f"{backup} is missing or empty: name the file of a backup")
        _require_known(found, known, str(backup))
    copy = path.with_name(f"{path.name}.restoring")
    sqlite.copy(backup, copy)
    sqlite.bring_in_log(path)
    kept = free_name(path.with_name(f"{path.name}.replaced"))
    # If we die before the epoch is raised, the next start raises it.
    sqlite.expect_epoch(path)
    # With the log of one that is damaged, which belongs to no other file.
    for suffix in ("", "-wal", "-shm"):
        former = path.with_name(path.name + suffix)
        if former.exists():
            former.rename(kept.with_name(kept.name + suffix))
    copy.rename(path)
    return kept if kept.exists() else None


def _inspect_sqlite(path: Path) -> str | None:
    """The revision; None: nothing is in it yet. Neither the file nor its log is touched: they may be a newer one's."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    log = sqlite.log_of(path)
    logged = log.exists() and log.stat().st_size > 0
    if logged and not sqlite.has_log(path):
        raise errors.UnsoundError(
            f"{log} is not of {path}, which is a backup, but of the database that was there before: move it away"
        )
    # Even a read-only connection makes a log if there is none, unless told that the file is immutable.
    with closing(sqlite.connect(path, "ro" if logged else "ro&immutable=1")) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return None
        if path.stat().st_size <= _CHECKED_BYTES:
            [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise errors.UnsoundError(f"{path} is damaged ({brief(found)}): restore it from a backup")
        if "alembic_version" not in tables:
            raise errors.UnsoundError(f"{path} belongs to another program: name another file")
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return row[0] if row else None


def free_name(wanted: Path) -> Path:
    names = (wanted.with_name(f"{wanted.name}.{number}") for number in count(2))
    return wanted if not wanted.exists() else next(path for path in names if not path.exists())


def _open_postgresql(url: URL, known: Revisions, *, migrate: bool) -> Store:
    watch = postgresql.Watchdog(lambda: postgresql.connect(url))
    engine = postgresql.engine(url, watch)
    shown = url.render_as_string()
    with _refusing(shown), _closing_on_error(engine.dispose), engine.begin() as connection:
        found = _revision(connection)
        _require_known(found, known, shown)
        if found != known.newest:
            if not migrate:
                state = "has no tables yet" if found is None else f"is at the older revision {found}"
                raise errors.UnsoundError(f"the database {shown} {state}: run `forenotice migrate --database {shown}`")
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": postgresql.WRITER_LOCK})
            _migrate(connection, known)
    return postgresql.PostgresqlStore(engine, url, watch)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _require_known(found: str | None, known: Revisions, where: str) -> None:
    if found is None or found in known.names:
        return
    if found < known.names[0]:
        raise errors.UnsoundError(
            f"the database {where} is at revision {found}, and this forenotice upgrades from revision {known.names[0]} "
            "on: upgrade it with an earlier version of forenotice first"
        )
    raise errors.UnsoundError(
        f"the database {where} was made by a newer forenotice (its revision is {found}, this one knows "
        f"{known.newest}): use that version of forenotice, or a backup from before"
    )


def _migrate(connection: Connection, known: Revisions) -> None:
    """To the newest revision, within the transaction of the connection: all of it or nothing."""
    # Read under the lock: another process may have migrated while this one waited for it.
    found = _revision(connection)
    if found is None:
        for table in schema.metadata.tables.values():
            connection.execute(CreateTable(table))
        for index in schema.indexes:
            connection.execute(CreateIndex(index))
        connection.execute(text(f"CREATE TABLE alembic_version ({_VERSION})"))
        connection.execute(text("INSERT INTO alembic_version VALUES (:newest)"), {"newest": OURS.newest})
    if (found or OURS.newest) == known.newest:
        return
    # Alembic takes longer to import than everything else to start.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(map(str, known.locations)))
    config.attributes["connection"] = connection
    command.upgrade(config, known.newest)


@contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Turns driver errors while opening into one sentence."""
    try:
        yield
    except (sqlite3.Error, psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
        cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig else error
        match translate(error):
            case errors.UnsoundError():
                message = f"{where} is damaged or no database ({brief(cause)}): restore a backup, or name another"
                raise errors.UnsoundError(message) from error
            case errors.UnavailableError() if _MISTAKEN.search(str(cause)):
                raise errors.UnsoundError(f"PostgreSQL refuses {where}: {brief(cause)}") from error
            case errors.UnavailableError():
                raise errors.UnavailableError(f"cannot open the database {where}: {brief(cause)}") from error
            case _:
                raise errors.UnsoundError(f"cannot use the database {where}: {brief(cause)}") from error


@contextmanager
def _closing_on_error(*closes: Callable[[], None]) -> Iterator[None]:
    """Closes everything if opening fails."""
    try:
        yield
    except BaseException:
        for close in closes:
            close()
        raise
