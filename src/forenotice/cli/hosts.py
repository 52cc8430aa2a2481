"""`forenotice host`: the hosts, and maintenance on them."""

from typing import Annotated

import typer

from forenotice.cli import completing, maintenance, options
from forenotice.cli.api import View
from forenotice.cli.maintenance import Verb
from forenotice.cli.session import Session, Yes, command
from forenotice.core.operations import Kind

app = typer.Typer(help="Hosts: add, cordon, update, reboot, migrate.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="HOST", show_default=False, autocompletion=completing.HOSTS)]


@command(app, "add", changes=True)
def add(
    session: Session,
    name: Name,
    cordoned: Annotated[bool, typer.Option("--cordoned", help="It takes no VMs for now.")] = False,
) -> None:
    """Add a host."""
    show(session, session.api.post("hosts", body={"name": name, "cordoned": cordoned}))


@command(app, "set", changes=True)
def set_(
    session: Session,
    name: Name,
    cordoned: Annotated[
        bool, typer.Option("--cordoned/--no-cordoned", help="Whether it takes no VMs.", show_default=False)
    ],
) -> None:
    """Change a host."""
    show(session, session.api.patch("hosts", name, body={"cordoned": cordoned}))


@command(app, "list")
def list_(
    session: Session,
    name: options.Pattern = None,
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
        ("host", "state", "VMs"),
        ((host["name"], _state(host), host["vms"]) for host in items),
        none="There are no hosts; add one with `forenotice host add`.",
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
    if session.out.json:
        session.out.data(host)
    else:
        planned = maintenance.planned(session, host["name"])
        session.out.facts({"host": host["name"], "state": _state(host), "VMs": host["vms"], "planned": planned})


def _state(host: View) -> str:
    return "cordoned" if host["cordoned"] else "open"
