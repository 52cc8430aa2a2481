"""What every operator's command shares: where to ask, as whom, and how to show the answer."""

import os
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from inspect import Parameter, signature
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from forenotice import settings
from forenotice.cli import options
from forenotice.cli.api import Api
from forenotice.cli.output import Output
from forenotice.core import errors
from forenotice.settings import table

P = ParamSpec("P")

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before doing it.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key", metavar="KEY", help="Repeat with the same key: it takes effect once in 24 hours."
    ),
]
KEY = Parameter("key", Parameter.KEYWORD_ONLY, annotation=Key, default=None)
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the history.")]
REASON = Parameter("reason", Parameter.KEYWORD_ONLY, annotation=Reason, default="")


class Session:
    def __init__(self, flags: Mapping[str, object], common: Mapping[str, Any]) -> None:
        self.flags = flags
        self.out = Output(json=common["json"])
        self.reason: str = common.get("reason", "")
        self._key: str | None = common.get("key")

    @cached_property
    def api(self) -> Api:
        return Api(settings.load_operator(self.flags, os.environ), key=self._key, reason=self.reason)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something that cannot be taken back; never when nobody can answer."""
        if yes or not sys.stdin.isatty():
            return
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise errors.RefusedError("nothing was done: it was not confirmed")


Command = Callable[Concatenate[Session, P], int | None]


def command(
    app: typer.Typer,
    name: str | None,
    *,
    changes: bool = False,
    extra: tuple[table.Setting, ...] = (),
    without: Collection[str] = (),
) -> Callable[[Command[P]], Command[P]]:
    """Make a function on a session a command, with the options that all of them have."""

    def register(function: Command[P]) -> Command[P]:
        shared: tuple[Parameter, ...] = (options.JSON, KEY) if changes else (options.JSON,)
        if changes and "reason" not in signature(function).parameters:
            shared += (REASON,)
        rows = table.OPERATOR + extra
        options.register(app, name, function, rows=rows, shared=shared, without=without, context=Session)
        return function

    return register
