"""`notbefore history`: what happened, from the journal."""

from typing import Annotated

import typer

from notbefore.cli import times
from notbefore.cli.api import View
from notbefore.cli.session import Session, command

SHOWN = 50

Word = Annotated[str | None, typer.Option(metavar="WORD")]


def register(app: typer.Typer) -> None:
    command(app, "history")(history)


def history(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many entries, the newest.")] = SHOWN,
    action: Annotated[str | None, typer.Option("--action", metavar="SLUG", help="Such as event.approved.")] = None,
    vm: Annotated[str | None, typer.Option("--vm", metavar="VM", help="Only about a VM.")] = None,
    host: Annotated[str | None, typer.Option("--host", metavar="HOST", help="Only about a host.")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only about a group.")] = None,
    event: Annotated[str | None, typer.Option("--event", metavar="EVENT", help="Only about an event.")] = None,
    operation: Annotated[str | None, typer.Option("--operation", metavar="ID", help="Only about an operation.")] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="WHO", help="Only what somebody did.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="From this moment on.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before this moment.")] = None,
) -> None:
    """Show what happened, the newest last."""
    items = session.api.items(
        "history",
        limit=limit,
        newest_first=True,
        action=action,
        vm=vm,
        host=host,
        scope=None if group is None else f"group:{group}",
        event=event,
        operation=operation,
        by=by,
        since=None if since is None else times.moment(since),
        until=None if until is None else times.moment(until),
    )
    entries = list(items)[::-1]
    if session.out.json:
        session.out.data(entries)
        return
    session.out.table(
        ("at", "action", "by", "about", "details"),
        (
            (times.utc(times.read(entry["at"])), entry["action"], entry["by"], _about(entry), entry["data"])
            for entry in entries
        ),
        none="Nothing has happened that fits.",
    )


def _about(entry: View) -> str:
    named = {kind: entry[kind] for kind in ("vm", "host", "event", "operation") if entry[kind]}
    about = [f"{kind} {name}" for kind, name in named.items()]
    if entry["scope"] and "vm" not in named:
        about.insert(0, entry["scope"].replace(":", " ", 1))
    return ", ".join(about)
