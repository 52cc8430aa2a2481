"""Commands whose options come from the table of settings."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar

import typer

from forenotice.settings.table import Setting

C = TypeVar("C")

Pattern = Annotated[
    str | None, typer.Option("--name", metavar="PATTERN", help="Only those that fit, such as 'rack1-*,!rack1-07'.")
]
HostPattern = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="SELECTOR", help="Only those that fit, such as 'rack1-*,!rack1-07' or label:rack=r1."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
JSON = Parameter("json", Parameter.KEYWORD_ONLY, annotation=Json, default=False)


def register(
    app: typer.Typer,
    name: str | None,
    function: Callable[..., object],
    *,
    rows: Sequence[Setting],
    shared: Sequence[Parameter] = (JSON,),
    without: Collection[str] = (),
    context: Callable[[Mapping[str, object], dict[str, Any]], C],
) -> None:
    """Make a function a command; its first argument is made of the settings given and the shared options.

    Without a name it is what the app itself does when no command of it is named.
    """
    _, *rest = signature(function, eval_str=True).parameters.values()
    own = [parameter for parameter in rest if parameter.name not in without]

    def run(**values: Any) -> object:
        flags = {row.name: values.pop(row.attribute) for row in rows}
        common = {parameter.name: values.pop(parameter.name) for parameter in shared}
        return function(context(flags, common), **values)

    run.__doc__ = function.__doc__
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [*(parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own), *shared, *parameters(rows)]
    )
    make = app.callback(invoke_without_command=True) if name is None else app.command(name)
    make(run)


def parameters(rows: Iterable[Setting]) -> list[Parameter]:
    """One keyword for each setting. Its value stays text: the settings read it, so that all ways to give one agree."""
    return [
        Parameter(row.attribute, Parameter.KEYWORD_ONLY, default=_absent(row), annotation=_annotation(row))
        for row in rows
    ]


def _absent(row: Setting) -> object:
    if row.is_switch:
        return False
    return [] if row.repeatable else None


def _annotation(row: Setting) -> object:
    option = typer.Option(row.flag, metavar=row.metavar or None, help=row.described, show_default=False)
    if row.is_switch:
        return Annotated[bool, option]
    return Annotated[list[str], option] if row.repeatable else Annotated[str | None, option]
