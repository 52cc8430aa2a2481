"""`forenotice fleet`: the whole fleet as a file."""

import json
import sys
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Annotated

import typer

from forenotice.cli import progress, toml
from forenotice.cli.api import View
from forenotice.cli.output import cell, complain, warn
from forenotice.cli.session import Session, Yes, command
from forenotice.cli.usage import UsageError
from forenotice.core import errors

app = typer.Typer(help="The whole fleet as a file: apply, compare, export.", no_args_is_help=True)

ALIKE, DIFFERS, UNKNOWN = 0, 1, 2
"""Exit codes of `fleet diff`, as those of diff(1)."""
SAME = "The fleet is as the file says."
ONLY_IN = {"add": "only in the file", "remove": "only in the service"}

FORMATS = {"toml": "application/toml", "json": "application/json"}

Format = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help="toml or json; by the file's name if left out.")
]
File = Annotated[str, typer.Argument(metavar="FILE", help="TOML or JSON; - reads stdin.", show_default=False)]


@command(app, "apply", changes=True)
def apply(
    session: Session,
    file: File,
    prune: Annotated[bool, typer.Option("--prune", help="Remove what the file does not name.")] = False,
    move: Annotated[
        bool, typer.Option("--move", help="Record that VMs run where the file says; no driver moves them.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the difference.")] = False,
    form: Format = None,
    yes: Yes = False,
) -> None:
    """Make the fleet as a file says: adds, changes, and with --prune removes, all or nothing.

    VMs that exist stay on their hosts, unless --move is given.
    """
    data, kind = _read(file, form)
    if prune and not dry_run and file != "-":
        session.confirm(f"Remove everything that {file} does not name?", yes=yes)
    doing = "comparing" if dry_run else "applying"
    result = _send(session, "fleet", data=data, content_type=kind, doing=doing, prune=prune, move=move, dry_run=dry_run)
    warn(result)
    if session.out.json:
        session.out.data(result)
        return
    session.out.table(
        ("action", "what", "name", "fields"),
        (
            *((each["action"], each["noun"], each["name"], _becoming(each)) for each in result["changes"]),
            *(("keep", each["noun"], each["name"], _differing(each)) for each in result["kept"]),
        ),
        none=SAME,
    )
    if result["changes"]:
        changes = _count(result["changes"], "change")
        session.out.line(f"Applied {changes}." if result["applied"] else f"{changes}, not applied.")
    if result["kept"]:
        session.out.line(
            f"On another host than the file says: {_count(result['kept'], 'VM')}. `forenotice fleet export` writes the "
            "hosts as they are; --move records those of the file, if you moved the VMs yourself."
        )


@command(app, "diff")
def diff(session: Session, file: File, form: Format = None) -> int:
    """Show how the fleet differs from a file. Exit code: 0 it does not, 1 it does, 2 it cannot be told."""
    try:
        data, kind = _read(file, form)
        result = _send(session, "fleet", "diff", data=data, content_type=kind, doing="comparing")
    except errors.ForenoticeError as error:
        complain(error.message)
        return UNKNOWN
    differences = result["differences"]
    if session.out.json:
        session.out.data(result)
    else:
        session.out.table(
            ("what", "name", "difference"),
            ((each["noun"], each["name"], ONLY_IN.get(each["action"]) or _differing(each)) for each in differences),
            none=SAME,
        )
        if differences:
            session.out.line(f"{_count(differences, 'difference')}.")
    return DIFFERS if differences else ALIKE


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


def _send(session: Session, *path: str, data: bytes, content_type: str, doing: str, **how: bool) -> View:
    """A large fleet takes a while to send, and then to compare or apply."""
    with progress.bar("sending", total=len(data)) as bar:

        def sent(so_far: int) -> None:
            bar.done(so_far)
            if so_far == len(data):
                bar.doing(doing)

        return session.api.send(*path, data=data, content_type=content_type, sent=sent, **how)


def _becoming(each: View) -> str:
    """What each field was and becomes."""
    return "; ".join(f"{field}: {was} → {becomes}" for field, was, becomes in _fields(each))


def _differing(each: View) -> str:
    """What each field is, and what the file says."""
    return "; ".join(f"{field}: {known} (the file says {said})" for field, known, said in _fields(each))


def _fields(each: View) -> Iterator[tuple[str, str, str]]:
    for field, values in each["fields"].items():
        yield field, cell(values["from"]).plain or "none", cell(values["to"]).plain or "none"


def _count(things: Sized, noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _rendered(fleet: View, kind: str) -> str:
    return toml.dumps(fleet) if kind == "toml" else json.dumps(fleet, indent=2, ensure_ascii=False) + "\n"


def _format(file: str, given: str | None) -> str:
    kind = given or Path(file).suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise UsageError(f"cannot tell whether {file} is TOML or JSON: give --format toml or --format json")
    return kind


def _read(file: str, form: str | None) -> tuple[bytes, str]:
    """A file, and its content type."""
    kind = FORMATS[_format(file, form)]
    if file == "-":
        return sys.stdin.buffer.read(), kind
    try:
        return Path(file).read_bytes(), kind
    except OSError as error:
        raise errors.RefusedError(f"{file} cannot be read: {error.strerror}") from None
