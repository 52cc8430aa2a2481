"""`forenotice guest`: inside a VM."""

import os
from collections.abc import Mapping
from datetime import timedelta

from forenotice import settings
from forenotice.cli import commands, doctor, times
from forenotice.cli.commands import command, several, switch
from forenotice.cli.output import Output
from forenotice.client import Client
from forenotice.settings import table

app = commands.Group()


class Guest:
    """What a command inside a VM works with."""

    def __init__(self, flags: Mapping[str, object], *, json: bool) -> None:
        found = settings.load_guest(flags, os.environ)
        self.client = Client(found.endpoint, name=found.name)
        self.out = Output(json=json)


@command(app, "events", switch("--mine", "Only those that name this VM."), make=Guest, rows=table.GUEST)
def events(ctx: Guest, mine: bool) -> None:
    """List the events of this VM and of those that share its document."""
    with ctx.client as client:
        document = client.document()
        me = client.me if mine and document.events else ""
    listed = [event for event in document.events if not me or event.names(me)]
    out = ctx.out
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
                # What cannot be read as a time may still mean something to people.
                times.told(event.deadline, now) if event.deadline else event.not_before_text,
                event.source,
                _duration(event.duration_seconds),
                event.description,
            )
            for event in listed
        ),
        none=f"Nothing is announced{' to this VM' if mine else ''} (incarnation {document.incarnation}).",
    )


@command(app, "approve", several("event"), make=Guest, rows=table.GUEST)
def approve(ctx: Guest, event: tuple[str, ...]) -> None:
    """Approve events: this VM, and all that share them, are ready."""
    with ctx.client as client:
        client.approve(*event)
    if ctx.out.json:
        ctx.out.data({"approved": event})
        return
    for each in event:
        ctx.out.line(f"Approved {each}.")


@command(app, "doctor", make=Guest, rows=table.GUEST)
def examine(ctx: Guest) -> int:
    """Find what keeps this VM from receiving its events, and what to do about it."""
    with ctx.client as client:
        checks = list(doctor.Doctor(client, os.environ).checks())
    if ctx.out.json:
        ctx.out.data(doctor.report(checks))
    else:
        doctor.show(checks, ctx.out)
    return doctor.exit_code(checks)


def _duration(seconds: int | None) -> str:
    if seconds is None:
        return ""
    return "unknown" if seconds < 0 else f"{seconds} s"
