"""`forenotice operation` and `forenotice event`, and the commands of VMs and hosts that schedule an operation."""

from collections.abc import Sequence
from typing import Any

import click

from forenotice import views
from forenotice.cli import commands, output, wait
from forenotice.cli.commands import Operator, Read, operator, option
from forenotice.core.fleet import NAME
from forenotice.core.operations import Kind, Status

app, events = commands.Group(), commands.Group()

DURATION = option(
    "--duration duration_seconds",
    "SECONDS",
    "How long an update freezes the VMs, as guests are told, such as 2s or 1m; 9s if left out.",
    type=Read(output.seconds),
)

UNKNOWN = "not known yet"
"""The announcement of a Planned operation while a blocker has no known end."""


@operator(
    app,
    "list",
    commands.ALL,
    option("--status", None, "Only this status.", type=click.Choice([each.value for each in Status], False)),
    option("--kind", None, "Only this kind.", type=click.Choice([each.value for each in Kind])),
    option("--host", "HOST", "Only those on a host.", shell_complete=commands.names("hosts")),
    option("--rollout", "ROLLOUT", "Only those of a rollout.", shell_complete=commands.ids("rollouts")),
)
def list_operations(ctx: Operator, everything: bool, status: str | None, **filters: Any) -> None:
    """List the operations."""
    live = None if everything or status else True
    ctx.out.list(
        ctx.api.items(views.maintenance.Operation, "operations", live=live, status=status, **filters),
        ("operation", "kind", "host", "VMs", "status", "not before", "by"),
        lambda operation: (
            operation.id,
            operation.kind,
            operation.host,
            operation.vms,
            operation.status,
            output.relative(operation.not_before, ctx.out.now)
            if operation.status in (Status.PLANNED, Status.SCHEDULED) and operation.not_before
            else "",
            operation.by,
        ),
        none="There are no matching live operations; --all shows those that have ended."
        if live
        else "There are no matching operations.",
    )


@commands.showing(app, commands.OPERATION)
def show_operation(ctx: Operator, operation: "views.maintenance.Operation") -> None:
    """Show an operation."""
    ctx.out.view(
        operation,
        events=[f"{event.id} ({event.status})" for event in operation.events],
        announce_at=None,
        announced=_announced(ctx, operation) if operation.status == Status.PLANNED else None,
        duration_seconds=None,
        duration=_duration(operation.duration_seconds),
        attempt=None,
        failed_attempts=operation.attempt or None,
        failures=wait.outcomes(operation.failures),
        waiting=wait.outcomes(operation.waiting),
    )


def _duration(seconds: int) -> str:
    return "unknown" if seconds < 0 else f"{seconds} s"


def _announced(ctx: Operator, operation: "views.maintenance.Operation") -> str:
    return ctx.out.moment(operation.announce_at) or UNKNOWN


def planned(ctx: Operator, host: str) -> list[str]:
    """What is planned for a host, and when it is announced to guests."""
    found = ctx.api.items(views.maintenance.Operation, "operations", status=Status.PLANNED, host=host)
    return [f"{each.kind}, guests will be told: {_announced(ctx, each)}" for each in found]


@operator(app, "explain", commands.OPERATION)
def explain_operation(ctx: Operator, operation: str) -> None:
    """Explain why an operation waits: for whom, for what, until when."""
    ctx.out.explanation(ctx.api.get(views.maintenance.OperationExplanation, "operations", operation, "explanation"))


@operator(app, "cancel", commands.OPERATION, changes=True)
def cancel_operation(ctx: Operator, operation: str) -> None:
    """Cancel an operation while it is Planned or Scheduled."""
    show_all(ctx, [ctx.api.post(views.maintenance.Operation, "operations", operation, "cancel")])


def verb(
    group: click.Group,
    name: str,
    kind: Kind,
    summary: str,
    *options: click.Option,
    question: str = "",
    notice: str = "the minimum",
) -> None:
    """A command that schedules an operation for VMs or hosts.

    `options` are those that only this one has. `question` is confirmed first, where it cannot be undone. `notice` is
    given when none is asked for; empty where it cannot be chosen.
    """
    of_host = kind.traits.of_host
    selectors = "Names, patterns such as 'rack1-*', or labels such as label:rack=r1."
    names = (
        commands.several("host", selectors, shell_complete=commands.host_selector)
        if of_host
        else commands.several("vm", shell_complete=commands.names("vms"))
    )
    default = f"Time until NotBefore, such as 20, 2h or 7d; {notice} if left out."
    chosen = [option("--notice notice_minutes", "MINUTES", default, type=Read(output.minutes))] if notice else []
    confirmed = [commands.YES] if question else []

    @operator(group, name, names, *chosen, *options, *confirmed, *wait.OPTIONS, changes=True, summary=summary)
    def run(
        ctx: Operator,
        *,
        vm: Sequence[str] = (),
        host: Sequence[str] = (),
        notice_minutes: float | None = None,
        duration_seconds: int | None = None,
        yes: bool = False,
        **waiting: Any,
    ) -> None:
        named = [*vm, *(part.strip() for text in host for part in text.split(",") if part.strip())]
        if question:
            named = _selected(ctx, named) if of_host else named
            commands.confirm(question.format(", ".join(named), "its" if len(named) == 1 else "their"), yes=yes)
        body = views.maintenance.NewOperation(
            kind=kind,
            names=named,
            notice_minutes=notice_minutes,
            duration_seconds=duration_seconds,
            reason=ctx.reason,
        )
        limit = wait.limit(**waiting)
        scheduled = ctx.api.post(views.maintenance.Operations, "operations", body=body).operations
        if limit is None or not ctx.out.json:
            show_all(ctx, scheduled)
        if limit is not None:
            _follow(ctx, scheduled, limit)


def _selected(ctx: Operator, names: list[str]) -> list[str]:
    """The hosts that a selector stands for, so that exactly those are confirmed."""
    if all(map(NAME.fullmatch, names)):
        return names
    found = {host.name: host.vms for host in ctx.api.items(views.fleet.Host, "hosts", name=",".join(names))}
    for name in names:
        if NAME.fullmatch(name) and name not in found:
            # Refused if there is no such host; else the selector excludes it.
            ctx.api.get(views.fleet.Host, "hosts", name)
    return [name for name, vms in found.items() if vms or name in names] or names


def _follow(ctx: Operator, operations: Sequence["views.maintenance.Operation"], limit: float) -> None:
    awaited = [wait.AwaitedOperation(ctx.api, each) for each in operations]
    wait.follow(ctx, awaited, limit, lambda: {"operations": [each.view for each in awaited]})


def show_all(ctx: Operator, operations: Sequence["views.maintenance.Operation"]) -> None:
    out = ctx.out
    if out.json:
        out.data({"operations": operations})
        return
    for operation in operations:
        names = ", ".join(operation.vms)
        kind = operation.kind.capitalize()
        if operation.status == Status.PLANNED:
            known = out.moment(operation.not_before) or UNKNOWN
            out.line(f"{kind} of {operation.host} ({names}) is Planned, not before: {known}")
            out.line(f"  guests will be told: {_announced(ctx, operation)}")
            out.line(f"  why it waits: forenotice operation explain {operation.id}", style="dim")
        elif not operation.events:
            out.line(f"{kind} of {names or operation.host} is {operation.status}; it announces no event.")
            if not operation.ended_at:
                out.line(f"  what it does: forenotice operation explain {operation.id}", style="dim")
        for event in operation.events:
            _show_announced(ctx, event)


# Events


@operator(
    events,
    "list",
    commands.ALL,
    option("--group", "GROUP", "Only those of a group.", shell_complete=commands.names("groups")),
    option("--vm", "VM", "Only those that name a VM.", shell_complete=commands.names("vms")),
)
def list_events(ctx: Operator, everything: bool, **filters: Any) -> None:
    """List the events."""
    ctx.out.list(
        ctx.api.items(views.maintenance.Event, "events", live=None if everything else True, **filters),
        ("event", "type", "status", "resources", "not before", "approved"),
        lambda event: (
            event.id,
            event.type,
            event.status,
            event.resources,
            output.relative(event.not_before, ctx.out.now) if event.status == "Scheduled" else "",
            _approval(event),
        ),
        none="There are no events." if everything else "There are no live events; --all shows those that have ended.",
    )


@commands.showing(events, commands.EVENT)
def show_event(ctx: Operator, event: "views.maintenance.Event") -> None:
    """Show an event."""
    ctx.out.view(
        event,
        **dict.fromkeys(("kind", "host", "group", "duration_seconds", "approved_at", "approved_by", "implied")),
        operation=f"{event.operation} ({event.kind})",
        duration=_duration(event.duration_seconds),
        approved=_approval(event),
    )


def _show_announced(ctx: Operator, event: "views.maintenance.Event") -> None:
    what, scheduled = f"{event.type} of {', '.join(event.resources)} is {event.status}", event.status == "Scheduled"
    hints = {"Scheduled": "why it waits", "Started": "what it does"}
    ctx.out.line(f"{what}, not before: {ctx.out.moment(event.not_before)}" if scheduled else f"{what}.")
    ctx.out.line(f"  event {event.id}")
    if hint := hints.get(event.status):
        ctx.out.line(f"  {hint}: forenotice event explain {event.id}", style="dim")


@operator(events, "approve", commands.EVENT, *wait.OPTIONS, changes=True)
def approve(ctx: Operator, event: str, **waiting: Any) -> None:
    """Approve an event in place of its guests."""
    limit = wait.limit(**waiting)
    view = ctx.api.post(views.maintenance.Event, "events", event, "approve")
    if limit is not None:
        operation = ctx.api.get(views.maintenance.Operation, "operations", view.operation)
        if not ctx.out.json:
            show_all(ctx, [operation])
        _follow(ctx, [operation], limit)
    elif ctx.out.json:
        ctx.out.data(view)
    elif view.ended_at or not view.approved_at:
        _show_announced(ctx, view)
    else:
        explanation = ctx.api.get(views.maintenance.EventExplanation, "events", event, "explanation")
        waits = f". {explanation.sentence}" if explanation.waiting_for else " may start now."
        ctx.out.line(f"Approved: {view.type} of {', '.join(view.resources)}{waits}")


def _approval(event: "views.maintenance.Event") -> str:
    if not event.approved_at:
        return "no"
    return "implied by silence" if event.implied else f"by {event.approved_by}"


@operator(events, "explain", commands.EVENT)
def explain_event(ctx: Operator, event: str) -> None:
    """Explain why an event waits: for whom, for what, until when."""
    ctx.out.explanation(ctx.api.get(views.maintenance.EventExplanation, "events", event, "explanation"))


@operator(events, "cancel", commands.EVENT, changes=True)
def cancel_event(ctx: Operator, event: str) -> None:
    """Cancel the whole operation of an event, while it is Scheduled."""
    show_all(ctx, [ctx.api.post(views.maintenance.Operation, "events", event, "cancel")])
