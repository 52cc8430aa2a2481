"""`forenotice event`: what guests are told, why it waits, and an operator's approval or cancellation."""

from typing import Any

from forenotice import views
from forenotice.cli import commands, operations, times, wait
from forenotice.cli.commands import Operator, operator, option

app = commands.Group()


@operator(
    app,
    "list",
    commands.ALL,
    option("--group", "GROUP", "Only those of a group.", shell_complete=commands.names("groups")),
    option("--vm", "VM", "Only those that name a VM.", shell_complete=commands.names("vms")),
)
def list_(ctx: Operator, everything: bool, **filters: Any) -> None:
    """List the events."""
    ctx.out.list(
        ctx.api.items(views.maintenance.Event, "events", live=None if everything else True, **filters),
        ("event", "type", "status", "resources", "not before", "approved"),
        lambda event: (
            event.id,
            event.type,
            event.status,
            event.resources,
            times.relative(event.not_before, ctx.out.now) if event.status == "Scheduled" else "",
            _approval(event),
        ),
        none="There are no events." if everything else "There are no live events; --all shows those that have ended.",
    )


@operator(app, "show", commands.EVENT)
def show(ctx: Operator, event: str) -> None:
    """Show an event."""
    view = ctx.api.get(views.maintenance.Event, "events", event)
    seconds = view.duration_seconds
    hidden = dict.fromkeys(("kind", "host", "group", "duration_seconds", "approved_at", "approved_by", "implied"))
    ctx.out.view(
        view,
        **hidden,
        operation=f"{view.operation} ({view.kind})",
        duration="unknown" if seconds < 0 else f"{seconds} s",
        approved=_approval(view),
    )


@operator(app, "explain", commands.EVENT)
def explain(ctx: Operator, event: str) -> None:
    """Explain why an event waits: for whom, for what, until when."""
    ctx.out.explanation(ctx.api.get(views.maintenance.EventExplanation, "events", event, "explanation"))


@operator(app, "approve", commands.EVENT, *wait.OPTIONS, changes=True)
def approve(ctx: Operator, event: str, **waiting: Any) -> None:
    """Approve an event in place of its guests."""
    limit = wait.limit(**waiting)
    view = ctx.api.post(views.maintenance.Event, "events", event, "approve")
    if limit is not None:
        operations.follow(ctx, [ctx.api.get(views.maintenance.Operation, "operations", view.operation)], limit)
    elif ctx.out.json:
        ctx.out.data(view)
    elif view.ended_at or not view.approved_at:
        operations.show_event(ctx.out, view)
    else:
        what = f"{view.type} of {', '.join(view.resources)}"
        explanation = ctx.api.get(views.maintenance.EventExplanation, "events", event, "explanation")
        waits = f". {explanation.sentence}" if explanation.waiting_for else " may start now."
        ctx.out.line(f"Approved: {what}{waits}")


@operator(app, "cancel", commands.EVENT, changes=True)
def cancel(ctx: Operator, event: str) -> None:
    """Cancel the whole operation of an event, while it is Scheduled."""
    operations.show_all(ctx.out, [ctx.api.post(views.maintenance.Operation, "events", event, "cancel")])


def _approval(event: "views.maintenance.Event") -> str:
    if not event.approved_at:
        return "no"
    return "implied by silence" if event.implied else f"by {event.approved_by}"
