"""Work on the database itself, without a running service. Server packages are imported only here, and late."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forenotice import settings
from forenotice.cli.api import View
from forenotice.core import errors
from forenotice.settings import Settings
from forenotice.settings.spans import Span

if TYPE_CHECKING:
    from forenotice.service.context import Service
    from forenotice.store.contract import Store

ACTOR = "offline"
SQLITE = "sqlite:///"


class Nobody:
    """Answers no guests: a running service learns of changes from the store."""

    def documents(self, documents: Sequence[object]) -> None: ...

    def members(self, members: Sequence[object]) -> None: ...

    def everything(self, members: Sequence[object]) -> None: ...


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
        from forenotice.store.opening import open_store
    file = found.database_url.removeprefix(SQLITE)
    if not migrate and file != found.database_url and not Path(file).exists():
        raise errors.NotFoundError(f"there is no database {file}: name it with --data or --database")
    # A database and its copies are their owner's alone.
    mask = os.umask(0o077)
    try:
        store = open_store(found.database_url, migrate=migrate)
        try:
            yield store
        finally:
            store.close()
    finally:
        os.umask(mask)


@contextmanager
def _service(flags: Mapping[str, object]) -> "Iterator[Service]":
    with opened(settings.load(flags, os.environ), migrate=False) as store:
        from forenotice.clock import SystemClock
        from forenotice.core.timing import Timing
        from forenotice.service.context import Service

        service = Service(store=store, clock=SystemClock(), timing=Timing(), publisher=Nobody())
        service.require_sane_clock()
        yield service


def create_token(flags: Mapping[str, object], body: Mapping[str, str | None], reason: str) -> View:
    """As the API does it, with the same body."""
    try:
        expires_in = Span.read(body["expires_in"]) if body["expires_in"] else None
    except ValueError as error:
        raise errors.RefusedError(str(error)) from None
    with _service(flags) as service:
        from forenotice.service import calls, tokens

        return tokens.create(
            service,
            calls.Call(actor=ACTOR, reason=reason),
            name=body["name"] or "",
            role=body["role"] or "",
            scopes=body["scopes"],
            expires_in=expires_in,
        )


def list_tokens(flags: Mapping[str, object]) -> list[View]:
    with _service(flags) as service:
        from forenotice.service import tokens

        return list(tokens.list_all(service)["items"])


def revoke_token(flags: Mapping[str, object], token_id: str, reason: str) -> View:
    with _service(flags) as service:
        from forenotice.service import calls, tokens

        return tokens.revoke(service, calls.Call(actor=ACTOR, reason=reason), token_id)
