"""`forenotice backup`, `restore` and `migrate`: the database itself."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from forenotice import settings
from forenotice.cli import offline, options
from forenotice.cli.output import Output
from forenotice.core import errors
from forenotice.settings import table

WHERE = (table.DATA, table.DATABASE, table.OF_DEMO, table.CONFIG)


class Database:
    def __init__(self, flags: Mapping[str, object], common: Mapping[str, Any]) -> None:
        self.settings = settings.load(flags, os.environ)
        self.out = Output(json=common["json"])


def register(app: typer.Typer) -> None:
    options.register(app, "backup", backup, rows=WHERE, context=Database)
    options.register(app, "restore", restore, rows=WHERE, context=Database)
    options.register(app, "migrate", migrate, rows=WHERE, context=Database)


def backup(database: Database, file: Annotated[str, typer.Argument(metavar="FILE", show_default=False)]) -> None:
    """Copy the database to a file, also while the service runs."""
    target = Path(file)
    if target.exists():
        raise errors.ConflictError(f"{file} exists already: give the name of a new file")
    with offline.opened(database.settings, migrate=False) as store:
        store.backup(target)
    if database.out.json:
        database.out.data({"file": file})
    else:
        database.out.line(f"The database is copied to {file}.")


def restore(
    database: Database,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="The backup; on PostgreSQL none, after pg_restore.", show_default=False),
    ] = None,
) -> None:
    """Restore the database from a backup, while the service is stopped."""
    done = offline.restore(database.settings, Path(file) if file else None)
    if database.out.json:
        database.out.data(done)
        return
    database.out.line(f"The database is restored{f' from {file}' if file else ''}.")
    if done["kept"]:
        database.out.line(f"The previous database is kept as {done['kept']}.")


def migrate(database: Database) -> None:
    """Bring the database to what this version needs; makes it when there is none."""
    with offline.opened(database.settings, migrate=True):
        pass
    if database.out.json:
        database.out.data({"migrated": True})
    else:
        database.out.line("The database is up to date.")
