"""`forenotice serve`, and what works on the database itself. Server packages are imported only here, and late."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forenotice import settings
from forenotice.cli import commands, output
from forenotice.cli.commands import argument, command
from forenotice.cli.output import Output
from forenotice.core import errors
from forenotice.settings import Settings, table

if TYPE_CHECKING:
    from forenotice.service.service import Service
    from forenotice.store.database import Store

WHERE = (table.DATA, table.DATABASE, table.OF_DEMO, table.CONFIG)
ACTOR = "offline"
SQLITE = "sqlite:///"


@contextmanager
def packages(extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "forenotice":
            raise
        raise errors.RefusedError(
            f"this needs {error.name}, which is not installed: pip install 'forenotice[{extra}]'"
        ) from None


server_packages = partial(packages, "server")


@contextmanager
def opened(found: Settings, *, migrate: bool) -> "Iterator[Store]":
    with server_packages():
        from forenotice.store.opener import open_store
    file = found.database_url.removeprefix(SQLITE)
    if not migrate and file != found.database_url and not Path(file).exists():
        raise errors.NotFoundError(f"there is no database {file}: name it with --data or --database")
    with _private(), closing(open_store(found.database_url, migrate=migrate)) as store:
        yield store


@contextmanager
def _private() -> Iterator[None]:
    """A database and its copies are their owner's alone."""
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)


@contextmanager
def service(flags: Mapping[str, object]) -> "Iterator[Service]":
    """The service on a database, for commands that do without a running one."""
    found = settings.load(flags, os.environ)
    with opened(found, migrate=False) as store:
        from forenotice.service import housekeeping

        made = _on(store, found.token_file)
        housekeeping.require_sane_clock(made)
        housekeeping.notice_restored_backup(made)
        yield made


def _on(store: "Store", token_file: Path | None = None) -> "Service":
    from forenotice.core.timing import Timing
    from forenotice.publication import NullPublisher
    from forenotice.runtime import Runtime
    from forenotice.service.service import Service

    return Service(store=store, runtime=Runtime(), timing=Timing(), publisher=NullPublisher(), token_file=token_file)


# The commands


class Database:
    """What a command on the database works with."""

    def __init__(self, flags: Mapping[str, object], *, json: bool, reason: str = "") -> None:
        self.settings = settings.load(flags, os.environ)
        self.reason = reason
        self.out = Output(json=json)


@command(None, "serve", make=lambda flags: settings.load(flags, os.environ), rows=table.SERVE, shared=())
def serve(found: Settings) -> int:
    with server_packages():
        from forenotice.serving import run
    return run(found)


@command(None, "backup", argument("file"), make=Database, rows=WHERE)
def backup(ctx: Database, file: str) -> None:
    target = Path(file)
    if target.exists():
        raise errors.ConflictError(f"{file} exists already: give the name of a new file")
    with opened(ctx.settings, migrate=False) as store:
        store.backup(target)
    ctx.out.result({"file": file}, f"The database is copied to {file}.")


@command(
    None,
    "restore",
    argument("file", "The backup; on PostgreSQL none, after pg_restore.", required=False),
    make=Database,
    rows=WHERE,
)
def restore(ctx: Database, file: str | None) -> None:
    """Replace the database by a backup, and start a new epoch; on PostgreSQL, after pg_restore, only the latter."""
    with server_packages():
        from forenotice import data_directory
        from forenotice.service import calls, housekeeping
        from forenotice.store import opener
    kept, database = None, ctx.settings.database_file
    with _private(), data_directory.held(ctx.settings.directory, database):
        if database is None and file is not None:
            raise errors.RefusedError(
                "restore PostgreSQL with pg_restore while no service runs, then run this without a file"
            )
        if database is not None:
            if file is None:
                raise errors.RefusedError("name the file of the backup: forenotice restore FILE")
            kept = str(opener.replace(database, Path(file)) or "") or None
        with opened(ctx.settings, migrate=database is not None) as store:
            epoch = housekeeping.begin_epoch(_on(store), calls.Call(actor=ACTOR))
            store.checkpoint()
    done = {"file": file, "kept": kept, "epoch": epoch}
    ctx.out.result(done, f"The database is restored{f' from {file}' if file else ''}.")
    if kept and not ctx.out.json:
        ctx.out.line(f"The previous database is kept as {kept}.")


@command(None, "migrate", make=Database, rows=WHERE)
def migrate(ctx: Database) -> None:
    with opened(ctx.settings, migrate=True):
        pass
    ctx.out.result({"migrated": True}, "The database is up to date.")


clock = commands.Group()


@command(clock, "accept", commands.YES, make=Database, rows=WHERE, shared=(commands.JSON, commands.REASON))
def accept(ctx: Database, yes: bool) -> None:
    """Continue from the clock's time, though the journal is ahead of it. Stop the service first."""
    commands.confirm("Is the clock right, and is every server on this database stopped?", yes=yes)
    with server_packages():
        from forenotice import data_directory
        from forenotice.service import calls, housekeeping
    with ExitStack() as stack:
        # On SQLite the lock shows whether a service runs; on PostgreSQL nothing does.
        if ctx.settings.database_file is not None:
            stack.enter_context(data_directory.held(ctx.settings.directory, ctx.settings.database_file))
        store = stack.enter_context(opened(ctx.settings, migrate=False))
        accepted = housekeeping.accept_clock(_on(store), calls.Call(actor=ACTOR, reason=ctx.reason))
    ctx.out.result(
        accepted,
        f"Time continues from {output.utc(accepted.now)}; the journal was at {output.utc(accepted.journal)}. "
        "Announced events keep the notice that they had left.",
    )
