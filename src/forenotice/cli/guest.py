"""`forenotice guest`: inside a VM."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

import typer

from forenotice import settings
from forenotice.cli import doctor, options, times
from forenotice.cli.output import Output
from forenotice.client import Client
from forenotice.settings import table

app = typer.Typer(help="Inside a VM: what is going to happen to it, and its approval.", no_args_is_help=True)


class Inside:
    """A command's view from inside a VM."""

    def __init__(self, flags: Mapping[str, object], common: Mapping[str, Any]) -> None:
        found = settings.load_guest(flags, os.environ)
        self.client = Client(found.endpoint, name=found.name)
        self.out = Output(json=common["json"])


def events(
    inside: Inside,
    mine: Annotated[bool, typer.Option("--mine", help="Only what is about this VM.")] = False,
) -> None:
    """Show what is announced to this VM and to those that share its document."""
    with inside.client as client:
        document = client.document()
        me = client.me if mine and document.events else ""
    listed = [event for event in document.events if not me or event.names(me)]
    out = inside.out
    if out.json:
        out.data({"DocumentIncarnation": document.incarnation, "Events": [event.as_listed() for event in listed]})
        return
    now = out.now + timedelta(seconds=client.ahead)
    out.table(
        ("event", "type", "status", "resources", "not before", "source", "duration", "description"),
        (
            (
                event.id,
                event.type,
                event.status,
                event.resources,
                # What cannot be read as a time may still tell something to people.
                times.told(event.deadline.isoformat(), now) if event.deadline else event.not_before_text,
                event.source,
                _duration(event.duration_seconds),
                event.description,
            )
            for event in listed
        ),
        none=f"Nothing is announced{' to this VM' if mine else ''} (incarnation {document.incarnation}).",
    )


def approve(
    inside: Inside, event_ids: Annotated[list[str], typer.Argument(metavar="EVENT", show_default=False)]
) -> None:
    """Approve events: this VM, and all that share them, are ready."""
    with inside.client as client:
        client.approve(*event_ids)
    if inside.out.json:
        inside.out.data({"approved": event_ids})
        return
    for event_id in event_ids:
        inside.out.line(f"Approved {event_id}.")


def examine(inside: Inside) -> int:
    """Look for what keeps this VM from hearing of its events, and say what to do about it."""
    with inside.client as client:
        checks = list(doctor.Doctor(client, os.environ).checks())
    if inside.out.json:
        inside.out.data(doctor.report(checks))
    else:
        doctor.show(checks, inside.out)
    return doctor.exit_code(checks)


def _duration(seconds: int | None) -> str:
    if seconds is None:
        return ""
    return "unknown" if seconds < 0 else f"{seconds} s"


options.register(app, "events", events, rows=table.GUEST, context=Inside)
options.register(app, "approve", approve, rows=table.GUEST, context=Inside)
options.register(app, "doctor", examine, rows=table.GUEST, context=Inside)
