"""`forenotice operation`, and the commands of VMs and hosts that schedule one."""

from collections.abc import Sequence
from typing import Any

import click

from forenotice import views
from forenotice.cli import commands, times, wait
from forenotice.cli.commands import Operator, Read, operator, option
from forenotice.cli.output import Output
from forenotice.core.fleet import NAME
from forenotice.core.operations import Kind, Status

app = commands.Group()

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
def list_(ctx: Operator, everything: bool, status: str | None, **filters: Any) -> None:
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
            times.relative(operation.not_before, ctx.out.now)
            if operation.status in (Status.PLANNED, Status.SCHEDULED) and operation.not_before
            else "",
            operation.by,
        ),
        none="There are no matching live operations; --all shows those that have ended."
        if live
        else "There are no matching operations.",
    )


@operator(app, "show", commands.OPERATION)
def show_(ctx: Operator, operation: str) -> None:
    """Show an operation."""
    show(ctx, ctx.api.get(views.maintenance.Operation, "operations", operation))


@operator(app, "explain", commands.OPERATION)
def explain(ctx: Operator, operation: str) -> None:
    """Explain why an operation waits: for whom, for what, until when."""
    ctx.out.explanation(ctx.api.get(views.maintenance.OperationExplanation, "operations", operation, "explanation"))


@operator(app, "cancel", commands.OPERATION, changes=True)
def cancel(ctx: Operator, operation: str) -> None:
    """Cancel an operation while it is Planned or Scheduled."""
    show_all(ctx.out, [ctx.api.post(views.maintenance.Operation, "operations", operation, "cancel")])


def show(ctx: Operator, operation: "views.maintenance.Operation") -> None:
    told = ctx.out.moment(operation.announce_at) or UNKNOWN
    ctx.out.view(
        operation,
        events=[f"{event.id} ({event.status})" for event in operation.events],
        announce_at=None,
        announced=told if operation.status == Status.PLANNED else None,
        attempt=None,
        failed_attempts=operation.attempt or None,
        failures=wait.outcomes(operation.failures),
    )


def verb(
    group: click.Group, name: str, kind: Kind, summary: str, *, question: str = "", notice: str = "the minimum"
) -> None:
    """A command that schedules an operation for VMs or hosts.

    `question` is confirmed first, where it cannot be undone. `notice` is given when none is asked for; empty where it
    cannot be chosen.
    """
    of_host = kind.traits.of_host
    names = (
        commands.several(
            "host",
            "Names, patterns such as 'rack1-*', or labels such as label:rack=r1.",
            complete=commands.host_selector,
        )
        if of_host
        else commands.several("vm", complete=commands.names("vms"))
    )
    default = f"Time until NotBefore, such as 20, 2h or 7d; {notice} if left out."
    chosen = [option("--notice notice_minutes", "MINUTES", default, type=Read(times.minutes))] if notice else []
    confirmed = [commands.YES] if question else []

    @operator(group, name, names, *chosen, *confirmed, *wait.OPTIONS, changes=True, summary=summary)
    def run(
        ctx: Operator,
        vm: Sequence[str] = (),
        host: Sequence[str] = (),
        notice_minutes: float | None = None,
        yes: bool = False,
        **waiting: Any,
    ) -> None:
        named = [part.strip() for text in host for part in text.split(",") if part.strip()] if of_host else list(vm)
        if question:
            named = _selected(ctx, named) if of_host else named
            commands.confirm(question.format(", ".join(named), "its" if len(named) == 1 else "their"), yes=yes)
        body = views.maintenance.NewOperation(kind=kind, names=named, notice_minutes=notice_minutes, reason=ctx.reason)
        limit = wait.limit(**waiting)
        scheduled = ctx.api.post(views.maintenance.Operations, "operations", body=body)
        if limit is None:
            show_all(ctx.out, scheduled.operations)
        else:
            follow(ctx, scheduled.operations, limit)


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


def follow(ctx: Operator, operations: Sequence["views.maintenance.Operation"], limit: float) -> None:
    """Wait until all have ended; UnfinishedError unless all are Completed."""
    if not ctx.out.json:
        show_all(ctx.out, operations)
    ended = wait.until_over(
        [wait.operation(ctx.api, each) for each in operations],
        limit,
        lambda last: ctx.out.data({"operations": last}) if ctx.out.json else None,
    )
    wait.require_success(ended)
    if not ctx.out.json:
        for each in ended:
            ctx.out.line(f"{each.what} is {each.status}.")


def show_all(out: Output, operations: Sequence["views.maintenance.Operation"]) -> None:
    if out.json:
        out.data({"operations": operations})
        return
    for operation in operations:
        names = ", ".join(operation.vms)
        kind = operation.kind.capitalize()
        if operation.status == Status.PLANNED:
            known = out.moment(operation.not_before) or UNKNOWN
            out.line(f"{kind} of {operation.host} ({names}) is Planned, not before: {known}")
            out.line(f"  guests will be told: {out.moment(operation.announce_at) or UNKNOWN}")
            out.line(f"  why it waits: forenotice operation explain {operation.id}", style="dim")
        elif not operation.events:
            out.line(f"{kind} of {names or operation.host} is {operation.status}; it announces no event.")
            if not operation.ended_at:
                out.line(f"  what it does: forenotice operation explain {operation.id}", style="dim")
        for event in operation.events:
            show_event(out, event)


def show_event(out: Output, event: "views.maintenance.Event") -> None:
    what = f"{event.type} of {', '.join(event.resources)} is {event.status}"
    hints = {"Scheduled": "why it waits", "Started": "what it does"}
    out.line(f"{what}, not before: {out.moment(event.not_before)}" if event.status == "Scheduled" else f"{what}.")
    out.line(f"  event {event.id}")
    if hint := hints.get(event.status):
        out.line(f"  {hint}: forenotice event explain {event.id}", style="dim")


def planned(ctx: Operator, host: str) -> list[str]:
    """What is planned for a host, and when its guests are told."""
    found = ctx.api.items(views.maintenance.Operation, "operations", status=Status.PLANNED, host=host)
    return [f"{each.kind}, guests will be told: {ctx.out.moment(each.announce_at) or UNKNOWN}" for each in found]
