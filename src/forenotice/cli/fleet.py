"""`forenotice fleet`: the whole fleet as a file."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from forenotice import views
from forenotice.cli import commands
from forenotice.cli.commands import Operator, UsageError, argument, complain, operator, option, several, switch
from forenotice.cli.output import cell, counted, progress, warn
from forenotice.core import errors

app = commands.Group()

T = TypeVar("T")

ALIKE, DIFFERS, UNKNOWN = 0, 1, 2
"""Exit codes of `fleet diff`, as those of diff(1)."""
SAME = "The fleet is as the file says."
BECOMES, DIFFERS_BY = "{}: {} → {}", "{}: {} (the file says {})"
ONLY_IN = {"add": "only in the file", "remove": "only in the service"}
FORMATS = {"toml": "application/toml", "json": "application/json"}
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key of TOML that needs no quotes."""
FORMAT = option("--format form", "FORMAT", "toml or json; by the file's name if left out.")
FILE = argument("file", "TOML or JSON; - reads stdin.")


@operator(
    app,
    "apply",
    FILE,
    switch("--prune", "Remove what the file does not name."),
    switch("--move", "Record that VMs run where the file says; no driver moves them."),
    switch("--dry-run", "Only show the difference."),
    FORMAT,
    commands.YES,
    changes=True,
)
def apply(ctx: Operator, file: str, form: str | None, yes: bool, **how: bool) -> None:
    """Make the fleet as a file says: adds, changes, and with --prune removes, all or nothing.

    Existing VMs stay on their hosts, unless --move is given.
    """
    data, kind = _read(file, form)
    if how["prune"] and not how["dry_run"] and file != "-":
        commands.confirm(f"Remove everything that {file} does not name?", yes=yes)
    doing = "comparing" if how["dry_run"] else "applying"
    result = _send(ctx, views.fleet.Applied, "fleet", data=data, content_type=kind, doing=doing, **how)
    warn(result)
    if ctx.out.json:
        ctx.out.data(result)
        return
    changes, kept = result.changes, result.kept
    ctx.out.table(
        ("action", "what", "name", "fields"),
        (
            *((each.action, each.noun, each.name, _fields(each, BECOMES)) for each in changes),
            *(("keep", each.noun, each.name, _fields(each, DIFFERS_BY)) for each in kept),
        ),
        none=SAME,
    )
    if changes:
        total = counted(len(changes), "change")
        ctx.out.line(f"Applied {total}." if result.applied else f"{total}, not applied.")
    if kept:
        ctx.out.line(
            f"On another host than the file says: {counted(len(kept), 'VM')}. `forenotice fleet export` writes the "
            "hosts as they are; --move records those of the file, if you moved the VMs yourself."
        )


@operator(app, "diff", FILE, FORMAT)
def diff(ctx: Operator, file: str, form: str | None) -> int:
    """Compare the fleet with a file. Exit code: 0 no difference, 1 differences, 2 it could not compare."""
    try:
        data, kind = _read(file, form)
        result = _send(ctx, views.fleet.Compared, "fleet", "diff", data=data, content_type=kind, doing="comparing")
    except errors.ForenoticeError as error:
        complain(error.message)
        return UNKNOWN
    differences = result.differences
    if ctx.out.json:
        ctx.out.data(result)
    else:
        ctx.out.table(
            ("what", "name", "difference"),
            ((each.noun, each.name, ONLY_IN.get(each.action) or _fields(each, DIFFERS_BY)) for each in differences),
            none=SAME,
        )
        if differences:
            ctx.out.line(f"{counted(len(differences), 'difference')}.")
    return DIFFERS if differences else ALIKE


@operator(app, "drift", option("--host", "HOST", "Only of this host.", shell_complete=commands.names("hosts")))
def drift(ctx: Operator, host: str | None) -> int:
    """List how watched hosts differ from the fleet. Exit code: 0 no difference, 1 some."""
    found = ctx.api.get(views.fleet.FoundDrift, "fleet", "drift", host=host)
    if ctx.out.json:
        ctx.out.data(found)
    else:
        ctx.out.table(
            ("host", "name", "drift", "since", "reason"),
            ((each.host, each.name, each.kind, ctx.out.moment(each.since), each.reason) for each in found.items),
            none="No watched host differs from the fleet.",
        )
        if found.more:
            ctx.out.line("There is more: --host HOST lists it for one host.")
    return DIFFERS if found.items else ALIKE


@operator(app, "export", argument("file", "- or nothing writes to stdout.", default="-"), FORMAT)
def export(ctx: Operator, file: str, form: str | None) -> None:
    """Write the fleet to a file that `apply` reads."""
    kind = "json" if ctx.out.json and form is None else _format(file, form or ("toml" if file == "-" else None))
    fleet = msgspec.to_builtins(ctx.api.get(views.fleet.Fleet, "fleet"))
    _write(_text(fleet, kind), file)
    if file != "-":
        ctx.out.result({"file": file}, f"The fleet is in {file}.")


@commands.command(
    app,
    "discover",
    several("hosts", "Connection URIs such as qemu+ssh://rack1-01/system, or NAME=URI to name the host."),
    option("--rules", "FILE", "What the VMs are, by their names; see docs/inventory.md.", type=click.Path()),
    option("--output file", "FILE", "Write a fleet file that `apply` reads; - writes it to stdout."),
    FORMAT,
    make=Operator,
    rows=(),
)
def discover(ctx: Operator, hosts: tuple[str, ...], rules: str | None, file: str | None, form: str | None) -> None:
    """List the VMs that libvirt has on hosts, and describe them as a fleet. No service is asked."""
    from forenotice.cli import discovery

    kind = None if file is None else _format(file, form or ("toml" if file == "-" else None))
    found = discovery.discover(hosts, Path(rules) if rules else None)
    if file != "-":
        ctx.out.list(
            found.domains,
            ("host", "domain", "state", "group", "update domain", "fault domain", "addresses", "left out because"),
            lambda each: (
                each.host,
                each.name,
                each.state,
                each.group,
                each.update_domain,
                each.fault_domain,
                each.addresses,
                each.reason,
            ),
            none="These hosts have no domains.",
        )
    if file is not None and kind is not None:
        _write(_text(discovery.brief(found.fleet), kind), file)
        if file != "-" and not ctx.out.json:
            ctx.out.line(f"The fleet is in {file}; `forenotice fleet apply {file}` applies it.")


def _text(fleet: Mapping[str, object], kind: str) -> str:
    return dumps(fleet) if kind == "toml" else json.dumps(fleet, indent=2, ensure_ascii=False) + "\n"


def _write(text: str, file: str) -> None:
    if file == "-":
        sys.stdout.write(text)
        return
    with commands.using(file, "written"):
        Path(file).write_text(text, encoding="utf-8")


def _send(ctx: Operator, kind: type[T], *path: str, data: bytes, content_type: str, doing: str, **how: bool) -> T:
    """A large fleet takes a while to send, and then to compare or apply."""
    with progress("sending", total=len(data)) as bar:

        def sent(so_far: int) -> None:
            bar.done(so_far)
            if so_far == len(data):
                bar.doing(doing)

        return ctx.api.send(kind, *path, data=data, content_type=content_type, sent=sent, **how)


def _fields(each: "views.fleet.Difference", form: str) -> str:
    """What each field is, and what it is in the file."""
    return "; ".join(
        form.format(field, cell(values.now).plain or "none", cell(values.to).plain or "none")
        for field, values in each.fields.items()
    )


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
    with commands.using(file):
        return Path(file).read_bytes(), kind


# TOML as `fleet export` writes it: tables of plain values


def dumps(document: Mapping[str, object]) -> str:
    """Values of a table first, then its tables; None is left out, as TOML has no word for it."""
    return "\n".join(_table((), document)).lstrip("\n") + "\n"


def _table(path: tuple[str, ...], table: Mapping[str, object]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if value is not None and not isinstance(value, Mapping)}
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (plain or not tables):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, inner in tables.items():
        yield from _table((*path, key), inner)


def _key(key: str) -> str:
    return key if BARE.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string(value)
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"{type(value).__name__} has no place in a fleet file")


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
