"""`forenotice operation`: what is done to machines, whether guests are told of it or not."""

from typing import Annotated

import typer

from forenotice.cli import completing, explaining, maintenance, narrating, times
from forenotice.cli.api import View
from forenotice.cli.session import Session, command
from forenotice.core.operations import Kind, Status

app = typer.Typer(help="Operations: list, explain, cancel.", no_args_is_help=True)

OperationId = Annotated[
    str, typer.Argument(metavar="OPERATION", show_default=False, autocompletion=completing.OPERATIONS)
]


@command(app, "list")
def list_(
    session: Session,
    everything: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    status: Annotated[Status | None, typer.Option("--status", case_sensitive=False, help="Only those.")] = None,
    kind: Annotated[Kind | None, typer.Option("--kind", help="Only those.")] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="HOST", help="Only those of a host.", autocompletion=completing.HOSTS),
    ] = None,
    rollout: Annotated[
        str | None,
        typer.Option("--rollout", metavar="ROLLOUT", help="Only its own.", autocompletion=completing.ROLLOUTS),
    ] = None,
) -> None:
    """List the operations."""
    live = None if everything or status else True
    items = session.api.items("operations", live=live, status=status, kind=kind, host=host, rollout=rollout)
    if session.out.json:
        session.out.data(list(items))
        return
    session.out.table(
        ("operation", "kind", "host", "VMs", "status", "not before", "by"),
        (
            (
                operation["id"],
                operation["kind"],
                operation["host"],
                operation["vms"],
                operation["status"],
                times.relative(times.read(operation["not_before"]), session.out.now)
                if operation["status"] in (Status.PLANNED, Status.SCHEDULED) and operation["not_before"]
                else "",
                operation["by"],
            )
            for operation in items
        ),
        none="There are no live operations that fit; --all shows those that have ended."
        if live
        else "There are no operations that fit.",
    )


@command(app, "show")
def show_(session: Session, operation_id: OperationId) -> None:
    """Show an operation."""
    show(session, session.api.get("operations", operation_id))


@command(app, "explain")
def explain(session: Session, operation_id: OperationId) -> None:
    """Say why an operation waits: for whom, for what, until when."""
    explaining.show(session.out, session.api.get("operations", operation_id, "explanation"))


@command(app, "cancel", changes=True)
def cancel(session: Session, operation_id: OperationId) -> None:
    """Cancel an operation, while it is Planned or Scheduled."""
    maintenance.show(session.out, {"operations": [session.api.post("operations", operation_id, "cancel")]})


def show(session: Session, operation: View) -> None:
    if session.out.json:
        session.out.data(operation)
        return
    out = session.out
    out.facts(
        {
            "operation": operation["id"],
            "kind": operation["kind"],
            "host": operation["host"],
            "VMs": operation["vms"],
            "status": operation["status"],
            "events": [f"{event['id']} ({event['status']})" for event in operation["events"]],
            "made": out.moment(operation["created_at"]),
            "guests are told": maintenance.told(out, operation) if operation["status"] == Status.PLANNED else "",
            "not before": out.moment(operation["not_before"]),
            "started": out.moment(operation["started_at"]),
            "ended": out.moment(operation["ended_at"]),
            "goes to": operation["targets"],
            "failed tries": operation["attempt"] or "",
            "failures": narrating.outcomes(operation["failures"]),
            "by": operation["by"],
            "reason": operation["reason"],
            "rollout": operation["rollout"],
        }
    )
