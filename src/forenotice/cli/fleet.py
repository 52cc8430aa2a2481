"""`forenotice fleet`: the whole fleet as a file."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from forenotice.cli import progress, toml
from forenotice.cli.api import View
from forenotice.cli.output import cell, warn
from forenotice.cli.session import Session, Yes, command
from forenotice.cli.usage import UsageError
from forenotice.core import errors

app = typer.Typer(help="The whole fleet as a file: apply, export.", no_args_is_help=True)

FORMATS = {"toml": "application/toml", "json": "application/json"}

Format = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help="toml or json; by the file's name if left out.")
]


@command(app, "apply", changes=True)
def apply(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="TOML or JSON; - reads stdin.", show_default=False)],
    prune: Annotated[bool, typer.Option("--prune", help="Remove what the file does not name.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the difference.")] = False,
    form: Format = None,
    yes: Yes = False,
) -> None:
    """Make the fleet as a file says: adds, changes, and with --prune removes, all or nothing."""
    kind = _format(file, form)
    data = _read(file)
    if prune and not dry_run and file != "-":
        session.confirm(f"Remove everything that {file} does not name?", yes=yes)
    result = _send(session, data, FORMATS[kind], prune=prune, dry_run=dry_run)
    warn(result)
    if session.out.json:
        session.out.data(result)
        return
    session.out.table(
        ("action", "what", "name", "fields"),
        ((each["action"], each["noun"], each["name"], _differing(each["fields"])) for each in result["changes"]),
        none="The fleet is as the file says.",
    )
    if result["changes"]:
        count = len(result["changes"])
        changes = f"{count} change{'' if count == 1 else 's'}"
        session.out.line(f"Applied {changes}." if result["applied"] else f"{changes}, not applied.")


@command(app, "export")
def export(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="- or nothing writes to stdout.")] = "-",
    form: Format = None,
) -> None:
    """Write the fleet to a file that `apply` reads."""
    kind = "json" if session.out.json and form is None else _format(file, form or ("toml" if file == "-" else None))
    fleet = session.api.get("fleet")
    text = _rendered(fleet, kind)
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise errors.RefusedError(f"{file} cannot be written: {error.strerror}") from None
    if session.out.json:
        session.out.data({"file": file})
    else:
        session.out.line(f"The fleet is in {file}.")


def _send(session: Session, data: bytes, content_type: str, **how: bool) -> View:
    """A large fleet takes a while to send, and then to apply."""
    with progress.bar("sending", total=len(data)) as bar:

        def sent(so_far: int) -> None:
            bar.done(so_far)
            if so_far == len(data):
                bar.doing("comparing" if how["dry_run"] else "applying")

        return session.api.send("fleet", data=data, content_type=content_type, sent=sent, **how)


def _differing(fields: View) -> str:
    """What each field was and becomes."""
    return "; ".join(
        f"{field}: {cell(was['from']).plain or 'none'} → {cell(was['to']).plain or 'none'}"
        for field, was in fields.items()
    )


def _rendered(fleet: View, kind: str) -> str:
    return toml.dumps(fleet) if kind == "toml" else json.dumps(fleet, indent=2, ensure_ascii=False) + "\n"


def _format(file: str, given: str | None) -> str:
    kind = given or Path(file).suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise UsageError(f"cannot tell whether {file} is TOML or JSON: give --format toml or --format json")
    return kind


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise errors.RefusedError(f"{file} cannot be read: {error.strerror}") from None
