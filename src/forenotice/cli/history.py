"""`forenotice history`: what happened, from the journal."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from forenotice.cli import narrating, progress, times
from forenotice.cli.api import View
from forenotice.cli.session import Session, Yes, command
from forenotice.cli.usage import UsageError
from forenotice.core import errors

SHOWN = 50
FORMATS = ("jsonl", "csv")
REMOVED = ("entries", "operations", "events", "rollouts")

app = typer.Typer(help="Show what happened, the newest last.")


@command(app, None)
def history(
    session: Session,
    context: typer.Context,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help=f"How many entries, the newest; {SHOWN}.")
    ] = None,
    action: Annotated[str | None, typer.Option("--action", metavar="SLUG", help="Such as event.approved.")] = None,
    vm: Annotated[str | None, typer.Option("--vm", metavar="VM", help="Only about a VM.")] = None,
    host: Annotated[str | None, typer.Option("--host", metavar="HOST", help="Only about a host.")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only about a group.")] = None,
    event: Annotated[str | None, typer.Option("--event", metavar="EVENT", help="Only about an event.")] = None,
    operation: Annotated[str | None, typer.Option("--operation", metavar="ID", help="Only about an operation.")] = None,
    rollout: Annotated[str | None, typer.Option("--rollout", metavar="ID", help="Only about a rollout.")] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="WHO", help="Only what somebody did.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From this moment on, or from so long ago: 2h.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Before this moment, or so long ago.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="jsonl|csv", help="All that fits, oldest first, as a file.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where --format writes; - is standard output.")
    ] = "-",
) -> None:
    """Show what happened, the newest last."""
    filters = {
        "action": action,
        "vm": vm,
        "host": host,
        "scope": None if group is None else f"group:{group}",
        "event": event,
        "operation": operation,
        "rollout": rollout,
        "by": by,
        "since": None if since is None else times.past(since, session.out.now),
        "until": None if until is None else times.past(until, session.out.now),
    }
    if context.invoked_subcommand is not None:
        if any(value is not None for value in (*filters.values(), limit, form)) or output != "-":
            raise UsageError(f"options of {context.invoked_subcommand} come after its name")
        return
    if form is not None or output != "-":
        if form not in FORMATS:
            raise UsageError("give --format jsonl or --format csv")
        if limit is not None or session.out.json:
            raise UsageError("--format writes all that fits, in that format: leave --limit and --json out")
        _export(session, form, output, filters)
        return
    found = session.api.items("history", limit=limit or SHOWN, newest_first=True, **filters)
    entries = list(found)[::-1]
    if session.out.json:
        session.out.data(entries)
        return
    session.out.table(
        narrating.COLUMNS, (narrating.row(entry) for entry in entries), none="Nothing has happened that fits."
    )


def _export(session: Session, form: str, output: str, filters: View) -> None:
    # Finds the right token, and says what is wrong with a filter.
    session.api.get("history", limit=1, **filters)
    with _opened(output) as file, progress.bar("Exporting") as bar:
        written = 0
        for piece in session.api.pieces("history", "export", format=form, **filters):
            file.write(piece)
            written += len(piece)
            bar.doing(f"Exporting: {written / 1e6:,.1f} MB")
    if output != "-":
        session.out.line(f"The history is in {output}.")


@contextmanager
def _opened(output: str) -> Iterator[BinaryIO]:
    """A file is there when all of it is, and as it was before when anything goes wrong."""
    if output == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("xb") as file:
            yield file
        unfinished.replace(path)
    except OSError as error:
        raise errors.RefusedError(f"{output} cannot be written: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)


@command(app, "prune", changes=True)
def prune(
    session: Session,
    before: Annotated[
        str,
        typer.Option(
            "--before", metavar="TIME", help="What is older: a moment, or so long ago: 90d.", show_default=False
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how much it would be.")] = False,
    yes: Yes = False,
) -> None:
    """Forget what is older, but nothing live and nothing that a subscription is still to be told."""
    moment = times.past(before, session.out.now)
    shown = times.utc(times.read(moment))
    foretold = session.api.post("history", "prune", body={"before": moment, "dry_run": True})
    if dry_run:
        _tell(session, foretold, f"Would be removed from before {shown}")
        return
    session.confirm(f"Remove {_counted(foretold)} from before {shown}?", yes=yes)
    with progress.bar("Pruning", total=foretold["entries"]) as bar:
        pruned = asked = session.api.post("history", "prune", body={"before": moment})
        while not asked["complete"]:
            bar.done(pruned["entries"])
            again = session.api.post("history", "prune", body={"before": moment})
            if again == asked:
                # The answer to a key of the caller's own, which stands.
                break
            pruned = {**again, **{name: pruned[name] + again[name] for name in REMOVED}}
            asked = again
    _tell(session, pruned, f"Removed from before {shown}")


def _tell(session: Session, pruned: View, what: str) -> None:
    if session.out.json:
        session.out.data(pruned)
        return
    session.out.line(f"{what}: {_counted(pruned)}.")
    if pruned["kept"]:
        why = "they are of what is live, or a subscription is still to be told of them"
        session.out.line(f"{pruned['kept']:,} older entries stay: {why}.")
    if not pruned["complete"] and not pruned["dry_run"]:
        session.out.line("There is more: run it again under another key.")


def _counted(pruned: View) -> str:
    return ", ".join(f"{pruned[name]:,} {name}" for name in REMOVED)
