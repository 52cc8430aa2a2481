"""`forenotice history`: what happened, from the journal."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from forenotice import views
from forenotice.cli import commands, output
from forenotice.cli.commands import Operator, Read, UsageError, operator, option, switch
from forenotice.cli.output import progress
from forenotice.clock import SystemClock

SHOWN = 50
FORMATS = ("jsonl", "csv")
REMOVED = ("entries", "operations", "events", "rollouts")
MOMENT = Read(lambda text: output.past(text, SystemClock().now()))
COLUMNS = ("at", "action", "about", "what happened", "by", "from", "why")


@operator(
    None,
    "history",
    option("--limit", "N", f"How many of the newest entries; {SHOWN} if left out.", type=click.IntRange(1)),
    option("--action", "SLUG", "Only an action, such as event.approved."),
    option("--vm", "VM", "Only about a VM."),
    option("--host", "HOST", "Only about a host."),
    option("--group", "GROUP", "Only about a group."),
    option("--event", "EVENT", "Only about an event."),
    option("--operation", "ID", "Only about an operation."),
    option("--rollout", "ID", "Only about a rollout."),
    option("--by", "WHO", "Only what this operator or VM did."),
    option("--since", "TIME", "From this moment on, or from so long ago: 2h.", type=MOMENT),
    option("--until", "TIME", "Before this moment, or before so long ago.", type=MOMENT),
    option("--format form", "jsonl|csv", "Export all matching entries in this format, oldest first."),
    option("--output -o", "FILE", "Where --format writes; - is standard output.", default="-"),
)
def history(ctx: Operator, limit: int | None, form: str | None, output: str, group: str | None, **filters: Any) -> None:
    filters["scope"] = None if group is None else f"group:{group}"
    if subcommand := click.get_current_context().invoked_subcommand:
        if any(value is not None for value in (*filters.values(), limit, form)) or output != "-":
            raise UsageError(f"options of {subcommand} come after its name")
        return
    if form is not None or output != "-":
        if form not in FORMATS:
            raise UsageError("give --format jsonl or --format csv")
        if limit is not None or ctx.out.json:
            raise UsageError("--format exports all matching entries in that format: leave --limit and --json out")
        _export(ctx, form, output, filters)
        return
    newest = ctx.api.items(views.history.Entry, "history", limit=limit or SHOWN, newest_first=True, **filters)
    ctx.out.list([*newest][::-1], COLUMNS, row, none="No matching entries.")


app = commands.Group(
    callback=history.callback, params=history.params, invoke_without_command=True, no_args_is_help=False
)


def _export(ctx: Operator, form: str, output: str, filters: Mapping[str, Any]) -> None:
    # Finds the right token, and reports what is wrong with a filter.
    ctx.api.get(views.base.Page[views.history.Entry], "history", limit=1, **filters)
    with _opened(output) as file, progress("Exporting") as bar:
        written = 0
        for piece in ctx.api.pieces("history", "export", format=form, **filters):
            file.write(piece)
            written += len(piece)
            bar.doing(f"Exporting: {written / 1e6:,.1f} MB")
    if output != "-":
        ctx.out.line(f"The history is in {output}.")


@contextmanager
def _opened(output: str) -> Iterator[BinaryIO]:
    """A file that appears when it is complete, and stays as it was when anything goes wrong."""
    if output == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        with commands.using(output, "written"):
            with unfinished.open("xb") as file:
                yield file
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@operator(
    app,
    "prune",
    option(
        "--before",
        "TIME",
        "Delete what is older than this moment, or than so long ago: 90d.",
        required=True,
        type=MOMENT,
    ),
    switch("--dry-run", "Only show how much would be deleted."),
    commands.YES,
    changes=True,
)
def prune(ctx: Operator, before: datetime, dry_run: bool, yes: bool) -> None:
    """Delete older entries, except of what is live or not yet delivered to a subscription."""

    def send(**how: bool) -> views.history.Pruned:
        return ctx.api.post(views.history.Pruned, "history", "prune", body=views.history.Prune(before=before, **how))

    shown, preview = output.utc(before), send(dry_run=True)
    if dry_run:
        _show_pruned(ctx, preview, f"Would be deleted from before {shown}")
        return
    commands.confirm(f"Delete {_counted(preview)} from before {shown}?", yes=yes)
    with progress("Pruning", total=preview.entries) as bar:
        pruned = last = send()
        while not last.complete:
            bar.done(pruned.entries)
            again = send()
            if again == last:
                # The stored response to a key of the caller's own.
                break
            sums = {name: getattr(pruned, name) + getattr(again, name) for name in REMOVED}
            pruned, last = msgspec.structs.replace(again, **sums), again
    _show_pruned(ctx, pruned, f"Deleted from before {shown}")


def _show_pruned(ctx: Operator, pruned: "views.history.Pruned", what: str) -> None:
    ctx.out.result(pruned, f"{what}: {_counted(pruned)}.")
    if pruned.kept and not ctx.out.json:
        why = "they belong to what is live, or a subscription has not received them yet"
        ctx.out.line(f"{pruned.kept:,} older entries stay: {why}.")
    if not (pruned.complete or pruned.dry_run or ctx.out.json):
        ctx.out.line("There is more: run it again with another key.")


def _counted(pruned: "views.history.Pruned") -> str:
    return ", ".join(f"{getattr(pruned, name):,} {name}" for name in REMOVED)


# An entry of the journal as people read it


def row(entry: "views.history.Entry") -> tuple[object, ...]:
    from forenotice.views import wording

    data = entry.data
    return (
        output.utc(entry.at),
        entry.action,
        _about(entry),
        wording.sentence(entry),
        entry.by or data.get("approved_by"),
        entry.origin,
        entry.reason or data.get("reason"),
    )


def _about(entry: "views.history.Entry") -> str:
    about = [
        f"{kind} {name}" for kind in ("vm", "host", "event", "operation", "rollout") if (name := getattr(entry, kind))
    ]
    if entry.scope and not entry.vm:
        about.insert(0, entry.scope.replace(":", " ", 1))
    return ", ".join(about)
