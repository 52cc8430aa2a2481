"""Names that a shell completes from the server: quickly, or not at all."""

import os
from collections.abc import Callable, Sequence

import typer

from forenotice import settings
from forenotice.cli.api import Api
from forenotice.core import errors
from forenotice.settings import table

SECONDS = 0.5
MOST = 100

Completer = Callable[..., Sequence[str]]


def names(noun: str) -> Completer:
    """Of what the API lists by name."""

    def complete(ctx: typer.Context, incomplete: str) -> Sequence[str]:
        return _asked(ctx, noun, "name", name=f"{incomplete}*")

    return complete


def selector(noun: str) -> Completer:
    """The last name of several with commas between them, or after `!`."""

    def complete(ctx: typer.Context, incomplete: str) -> Sequence[str]:
        start = max(incomplete.rfind(","), incomplete.rfind("!")) + 1
        found = _asked(ctx, noun, "name", name=f"{incomplete[start:]}*")
        return [incomplete[:start] + name for name in found]

    return complete


def ids(noun: str) -> Completer:
    """Of what has none; those that are live, as nobody types the id of what is over."""

    def complete(ctx: typer.Context) -> Sequence[str]:
        return _asked(ctx, noun, "id", live=True)

    return complete


VMS, HOSTS, GROUPS = names("vms"), names("hosts"), names("groups")
EVENTS, OPERATIONS, ROLLOUTS = ids("events"), ids("operations"), ids("rollouts")


def _asked(ctx: typer.Context, noun: str, key: str, **query: object) -> Sequence[str]:
    flags = {row.name: ctx.params.get(row.attribute) for row in table.OPERATOR}
    try:
        api = Api(settings.load_operator(flags, os.environ), timeout=SECONDS)
        return [each[key] for each in api.get(noun, limit=MOST, **query)["items"]]
    except errors.ForenoticeError:
        # Whoever presses Tab wants names, not a reason why there are none.
        return []
