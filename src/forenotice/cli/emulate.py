"""`forenotice emulate`, for its help; the program itself starts it without this (see `__main__`)."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from forenotice.cli import options
from forenotice.emulator import command
from forenotice.settings import table


def register(app: typer.Typer) -> None:
    options.register(app, "emulate", emulate, rows=table.EMULATE, context=_asked)


def emulate(
    asked: tuple[Mapping[str, object], bool],
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help=command.SCENARIO, show_default=False)
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help=command.LIST)] = False,
    shown: Annotated[str | None, typer.Option("--show", metavar="NAME", help=command.SHOW)] = None,
) -> int:
    flags, as_json = asked
    return command.emulate(flags, scenario=scenario, listed=listed, shown=shown, as_json=as_json)


emulate.__doc__ = command.ABOUT


def _asked(flags: Mapping[str, object], common: Mapping[str, Any]) -> tuple[Mapping[str, object], bool]:
    return flags, common["json"]
