"""`notbefore guest`: inside a VM."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer

from notbefore import settings
from notbefore.cli import options, times
from notbefore.cli.output import Output
from notbefore.client.guest import Guest
from notbefore.settings import table

app = typer.Typer(help="Inside a VM: what is going to happen to it, and its approval.", no_args_is_help=True)


class Inside:
    """A command's view from inside a VM."""

    def __init__(self, flags: Mapping[str, object], common: Mapping[str, Any]) -> None:
        self.guest = Guest(settings.load_guest(flags, os.environ).endpoint)
        self.out = Output(json=common["json"])


def events(inside: Inside) -> None:
    """Show what is announced to this VM and to those that share its document."""
    document = inside.guest.events()
    out = inside.out
    if out.json:
        out.data(msgspec.to_builtins(document))
        return
    out.table(
        ("event", "type", "status", "resources", "not before", "source", "duration", "description"),
        (
            (
                event.id,
                event.type,
                event.status,
                event.resources,
                times.told(event.not_before.isoformat() if event.not_before else None, out.now),
                event.source,
                "unknown" if event.duration_seconds < 0 else f"{event.duration_seconds} s",
                event.description,
            )
            for event in document.events
        ),
        none=f"Nothing is announced (incarnation {document.incarnation}).",
    )


def approve(
    inside: Inside, event_ids: Annotated[list[str], typer.Argument(metavar="EVENT", show_default=False)]
) -> None:
    """Approve events: this VM, and all that share them, are ready."""
    inside.guest.approve(event_ids)
    if inside.out.json:
        inside.out.data({"approved": event_ids})
        return
    for event_id in event_ids:
        inside.out.line(f"Approved {event_id}.")


options.register(app, "events", events, rows=table.GUEST, context=Inside)
options.register(app, "approve", approve, rows=table.GUEST, context=Inside)
