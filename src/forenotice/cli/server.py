"""`forenotice serve`, and what works on the database itself. Server packages are imported only here, and late."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from forenotice import settings, views
from forenotice.cli import commands
from forenotice.cli.commands import Operator, argument, command
from forenotice.core import errors
from forenotice.settings import Settings, table
from forenotice.settings.spans import Span, lasting
from forenotice.views.history import AcceptedClock

if TYPE_CHECKING:
    from forenotice.service.service import Service
    from forenotice.store.database import Store

WHERE = (table.DATA, table.DATABASE, table.OF_DEMO, table.CONFIG)
ACTOR = "offline"
SQLITE = "sqlite:///"


class Restored(msgspec.Struct):
    file: str | None
    kept: str | None
    """The previous database."""
    epoch: int


@contextmanager
def server_packages() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "forenotice":
            raise
        raise errors.RefusedError(
            f"this needs the server's packages, but {error.name} is not installed: pip install 'forenotice[server]'"
        ) from None


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
def _service(flags: Mapping[str, object]) -> "Iterator[Service]":
    found = settings.load(flags, os.environ)
    with opened(found, migrate=False) as store:
        from forenotice.service import housekeeping

        service = _on(store)
        service.token_file = found.token_file
        housekeeping.require_sane_clock(service)
        housekeeping.notice_restored_backup(service)
        yield service


def _on(store: "Store") -> "Service":
    from forenotice.core.timing import Timing
    from forenotice.publication import NullPublisher
    from forenotice.runtime import Runtime
    from forenotice.service.service import Service

    return Service(store=store, runtime=Runtime(), timing=Timing(), publisher=NullPublisher())


def create_token(
    flags: Mapping[str, object], body: "views.tokens.NewToken", reason: str
) -> "views.tokens.CreatedToken":
    """As the API does it, with the same body."""
    asked = _with_durations(body)
    with _service(flags) as service:
        from forenotice.service import calls, tokens

        return tokens.create(service, calls.Call(actor=ACTOR, reason=reason), **asked)


def rotate_token(
    flags: Mapping[str, object], token_id: str, body: "views.tokens.TokenRotation", reason: str
) -> "views.tokens.CreatedToken":
    asked = _with_durations(body)
    with _service(flags) as service:
        from forenotice.service import calls, tokens

        return tokens.rotate(service, calls.Call(actor=ACTOR, reason=reason), token_id, **asked)


def _with_durations(body: "views.base.Request") -> dict[str, Any]:
    reading = {"expires_in": lasting, "overlap": Span.read}
    try:
        return {
            name: reading[name](value) if name in reading else value
            for name, value in body.given().items()
            if value is not None
        }
    except ValueError as error:
        raise errors.RefusedError(str(error)) from None


def list_tokens(flags: Mapping[str, object]) -> list["views.tokens.Token"]:
    with _service(flags) as service:
        from forenotice.service import tokens

        return tokens.list_all(service).items


def revoke_token(flags: Mapping[str, object], token_id: str, reason: str) -> "views.tokens.Token":
    with _service(flags) as service:
        from forenotice.service import calls, tokens

        return tokens.revoke(service, calls.Call(actor=ACTOR, reason=reason), token_id)


def restore_database(found: Settings, file: Path | None) -> Restored:
    """Replace the database by a backup, and start a new epoch; on PostgreSQL, after pg_restore, only the latter."""
    with server_packages():
        from forenotice import data_directory
        from forenotice.service import calls, housekeeping
        from forenotice.store import opener
    kept = None
    with _private(), data_directory.held(found.directory, found.database_file):
        if found.database_file is None:
            if file is not None:
                raise errors.RefusedError(
                    "restore PostgreSQL with pg_restore while no service runs, then run this without a file"
                )
        elif file is None:
            raise errors.RefusedError("name the file of the backup: forenotice restore FILE")
        else:
            kept = opener.replace(found.database_file, file)
        with opened(found, migrate=found.database_file is not None) as store:
            epoch = housekeeping.begin_epoch(_on(store), calls.Call(actor=ACTOR))
            store.checkpoint()
    return Restored(file=None if file is None else str(file), kept=None if kept is None else str(kept), epoch=epoch)


def accept_clock(flags: Mapping[str, object], reason: str) -> AcceptedClock:
    """On SQLite the lock shows whether a service runs; on PostgreSQL nothing does."""
    with server_packages():
        from forenotice import data_directory
        from forenotice.service import calls, housekeeping
    found = settings.load(flags, os.environ)
    with ExitStack() as stack:
        if found.database_file is not None:
            stack.enter_context(data_directory.held(found.directory, found.database_file))
        store = stack.enter_context(opened(found, migrate=False))
        return housekeeping.accept_clock(_on(store), calls.Call(actor=ACTOR, reason=reason))


# The commands


class Database:
    """What a command on the database works with."""

    def __init__(self, flags: Mapping[str, object], *, json: bool) -> None:
        from forenotice.cli.output import Output

        self.settings = settings.load(flags, os.environ)
        self.out = Output(json=json)


def _settings(flags: Mapping[str, object]) -> Settings:
    return settings.load(flags, os.environ)


@command(None, "serve", make=_settings, rows=table.SERVE, shared=())
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
    done = restore_database(ctx.settings, Path(file) if file else None)
    ctx.out.result(done, f"The database is restored{f' from {file}' if file else ''}.")
    if done.kept and not ctx.out.json:
        ctx.out.line(f"The previous database is kept as {done.kept}.")


@command(None, "migrate", make=Database, rows=WHERE)
def migrate(ctx: Database) -> None:
    with opened(ctx.settings, migrate=True):
        pass
    ctx.out.result({"migrated": True}, "The database is up to date.")


clock = commands.Group()


@command(clock, "accept", commands.YES, make=Operator, rows=WHERE, shared=(commands.JSON, commands.REASON))
def accept(ctx: Operator, yes: bool) -> None:
    """Continue from the clock's time, though the journal is ahead of it. Stop the service first."""
    commands.confirm("Is the clock right, and is every server on this database stopped?", yes=yes)
    accepted = accept_clock(ctx.flags, ctx.reason)
    ctx.out.result(
        accepted,
        f"Time continues from {accepted.now:%Y-%m-%d %H:%M:%S} UTC; the journal was at "
        f"{accepted.journal:%Y-%m-%d %H:%M:%S} UTC. "
        "Announced events keep the notice that they had left.",
    )
