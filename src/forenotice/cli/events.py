"""`forenotice event`: what guests are told, why it waits, and an operator's word on it."""

from typing import Annotated

import typer

from forenotice.cli import completing, explaining, maintenance, times, waiting
from forenotice.cli.api import View
from forenotice.cli.session import Session, command

app = typer.Typer(help="Events: list, explain, approve, cancel.", no_args_is_help=True)

EventId = Annotated[str, typer.Argument(metavar="EVENT", show_default=False, autocompletion=completing.EVENTS)]


@command(app, "list")
def list_(
    session: Session,
    everything: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="GROUP", help="Only those of a group.", autocompletion=completing.GROUPS),
    ] = None,
    vm: Annotated[
        str | None,
        typer.Option("--vm", metavar="VM", help="Only those that name a VM.", autocompletion=completing.VMS),
    ] = None,
) -> None:
    """List the events."""
    items = session.api.items("events", live=None if everything else True, group=group, vm=vm)
    if session.out.json:
        session.out.data(list(items))
        return
    session.out.table(
        ("event", "type", "status", "resources", "not before", "approved"),
        (
            (
                event["id"],
                event["type"],
                event["status"],
                event["resources"],
                times.relative(times.read(event["not_before"]), session.out.now)
                if event["status"] == "Scheduled"
                else "",
                _approval(event),
            )
            for event in items
        ),
        none="There are no events." if everything else "There are no live events; --all shows those that have ended.",
    )


@command(app, "show")
def show_(session: Session, event_id: EventId) -> None:
    """Show an event."""
    show(session, session.api.get("events", event_id))


@command(app, "explain")
def explain(session: Session, event_id: EventId) -> None:
    """Say why an event waits: for whom, for what, until when."""
    explaining.show(session.out, session.api.get("events", event_id, "explanation"))


@command(app, "approve", changes=True)
def approve(session: Session, event_id: EventId, wait: waiting.Wait = False, wait_limit: waiting.Limit = None) -> None:
    """Approve an event in place of its guests."""
    patience = waiting.asked(wait, wait_limit)
    event = session.api.post("events", event_id, "approve")
    if patience:
        maintenance.follow(session, [session.api.get("operations", event["operation"])], patience)
        return
    if session.out.json:
        session.out.data(event)
        return
    if event["ended_at"] or not event["approved_at"]:
        maintenance.announce(session.out, event)
        return
    what = f"{event['type']} of {', '.join(event['resources'])}"
    waits = session.api.get("events", event_id, "explanation")
    session.out.line(
        f"Approved: {what}. {waits['sentence']}" if waits["waiting_for"] else f"Approved: {what} may start now."
    )


@command(app, "cancel", changes=True)
def cancel(session: Session, event_id: EventId) -> None:
    """Cancel the whole operation of an event, while it is Scheduled."""
    operation = session.api.post("events", event_id, "cancel")
    maintenance.show(session.out, {"operations": [operation]})


def show(session: Session, event: View) -> None:
    if session.out.json:
        session.out.data(event)
        return
    seconds = event["duration_seconds"]
    session.out.facts(
        {
            "event": event["id"],
            "operation": f"{event['operation']} ({event['kind']})",
            "type": event["type"],
            "status": event["status"],
            "source": event["source"],
            "scope": event["scope"],
            "resources": event["resources"],
            "description": event["description"],
            "duration": "unknown" if seconds < 0 else f"{seconds} s",
            "made": session.out.moment(event["created_at"]),
            "not before": session.out.moment(event["not_before"]),
            "approved": _approval(event),
            "ended": session.out.moment(event["ended_at"]),
        }
    )


def _approval(event: View) -> str:
    if not event["approved_at"]:
        return "no"
    return "by silence" if event["implied"] else f"by {event['approved_by']}"
