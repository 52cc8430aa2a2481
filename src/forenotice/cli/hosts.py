"""`forenotice host`: the hosts, and maintenance on them."""

from typing import Annotated

import typer

from forenotice.cli import completing, facts, maintenance, options
from forenotice.cli.api import View
from forenotice.cli.maintenance import Verb
from forenotice.cli.session import Session, Yes, command
from forenotice.cli.usage import UsageError
from forenotice.core.fleet import MAX_AMOUNT
from forenotice.core.operations import Kind

app = typer.Typer(help="Hosts: add, cordon, update, reboot, migrate.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="HOST", show_default=False, autocompletion=completing.HOSTS)]

Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label, such as rack=r1; may be repeated.")
]

Capacity = Annotated[
    float | None,
    typer.Option(
        "--capacity", metavar="N", min=0, max=MAX_AMOUNT, help="How much fits on it, in the unit of the VMs' --size."
    ),
]


@command(app, "add", changes=True)
def add(
    session: Session,
    name: Name,
    cordoned: Annotated[bool, typer.Option("--cordoned", help="It takes no VMs for now.")] = False,
    label: Labels = None,
    capacity: Capacity = None,
) -> None:
    """Add a host."""
    body: dict[str, object] = {"name": name, "cordoned": cordoned}
    if label:
        body["labels"] = facts.pairs("--label", label, "rack=r1")
    if capacity is not None:
        body["capacity"] = capacity
    show(session, session.api.post("hosts", body=body))


@command(app, "set", changes=True)
def set_(
    session: Session,
    name: Name,
    cordoned: Annotated[
        bool | None, typer.Option("--cordoned/--no-cordoned", help="Whether it takes no VMs.", show_default=False)
    ] = None,
    label: Labels = None,
    no_label: Annotated[
        list[str] | None, typer.Option("--no-label", metavar="KEY", help="Remove a label; may be repeated.")
    ] = None,
    capacity: Capacity = None,
    no_capacity: Annotated[bool, typer.Option("--no-capacity", help="Any number of VMs fits on it.")] = False,
) -> None:
    """Change a host: what is not given stays."""
    if capacity is not None and no_capacity:
        raise UsageError("an option and its --no- form exclude each other: give one of them")
    body: dict[str, object] = {} if cordoned is None else {"cordoned": cordoned}
    if capacity is not None or no_capacity:
        body["capacity"] = capacity
    labels: dict[str, str | None] = {**facts.pairs("--label", label or (), "rack=r1")}
    for key in no_label or ():
        if key in labels:
            raise UsageError(f"label {key} cannot be both set and removed: give --label or --no-label")
        labels[key] = None
    if labels:
        body["labels"] = labels
    if not body:
        raise UsageError("nothing to change: give at least one option, see `forenotice host set -h`")
    show(session, session.api.patch("hosts", name, body=body))


@command(app, "list")
def list_(
    session: Session,
    name: options.HostPattern = None,
    cordoned: Annotated[
        bool | None, typer.Option("--cordoned/--no-cordoned", help="Only those that take no VMs, or only the others.")
    ] = None,
) -> None:
    """List the hosts."""
    items = session.api.items("hosts", name=name, cordoned=cordoned)
    if session.out.json:
        session.out.data(list(items))
        return
    session.out.table(
        ("host", "state", "VMs", "used", "labels"),
        ((host["name"], _state(host), host["vms"], _used(host), host["labels"]) for host in items),
        none="There are no hosts; add one with `forenotice host add`."
        if name is None and cordoned is None
        else "There are no hosts that fit.",
    )


@command(app, "show")
def show_(session: Session, name: Name) -> None:
    """Show a host."""
    show(session, session.api.get("hosts", name))


@command(app, "remove", changes=True)
def remove(session: Session, name: Name, yes: Yes = False) -> None:
    """Forget a host that has no VMs."""
    session.confirm(f"Forget host {name}?", yes=yes)
    removed = session.api.delete("hosts", name)
    if session.out.json:
        session.out.data(removed)
    else:
        session.out.line(f"Host {name} is forgotten.")


@command(app, "cordon", changes=True)
def cordon(session: Session, name: Name) -> None:
    """Let no VM move to a host."""
    show(session, session.api.patch("hosts", name, body={"cordoned": True}))


@command(app, "uncordon", changes=True)
def uncordon(session: Session, name: Name) -> None:
    """Let VMs move to a host again."""
    show(session, session.api.patch("hosts", name, body={"cordoned": False}))


for verb in (
    Verb(name="update", kind=Kind.HOST_UPDATE, help="Update hosts: their VMs freeze for some seconds."),
    Verb(name="reboot", kind=Kind.HOST_REBOOT, help="Reboot hosts, and all VMs on them."),
    Verb(name="migrate", kind=Kind.LIVE_MIGRATION, help="Move all VMs off hosts, live."),
    Verb(
        name="degrade",
        kind=Kind.DEGRADED_HARDWARE,
        help="Hardware is expected to fail: redeploy all VMs of hosts elsewhere, in days unless approved.",
        notice="7 days",
    ),
    Verb(
        name="fail",
        kind=Kind.HARDWARE_FAILURE,
        help="Hardware has failed: redeploy all VMs of hosts elsewhere, at once.",
        question="Give up",
        notice="",
    ),
):
    maintenance.register(app, verb)


def show(session: Session, host: View) -> None:
    """An answer that is repeated under its key may lack what a newer release adds."""
    if session.out.json:
        session.out.data(host)
    else:
        planned = maintenance.planned(session, host["name"])
        session.out.facts(
            {
                "host": host["name"],
                "state": _state(host),
                "labels": host.get("labels"),
                "VMs": host["vms"],
                "used": _used(host),
                "planned": planned,
            }
        )


def _used(host: View) -> str | None:
    """Of its capacity, if it has one."""
    return None if host.get("capacity") is None else f"{host['used']} of {host['capacity']}"


def _state(host: View) -> str:
    return "cordoned" if host["cordoned"] else "open"
