"""`forenotice host`: the hosts, and maintenance on them."""

from typing import Any

import click

from forenotice import views
from forenotice.cli import commands, operations
from forenotice.cli.commands import Operator, UsageError, operator, option, switch
from forenotice.cli.output import cell
from forenotice.core.fleet import MAX_AMOUNT
from forenotice.core.operations import Kind

app = commands.Group()

LABEL = option("--label labels", "KEY=VALUE", "A label, such as rack=r1; may be repeated.", multiple=True)
CAPACITY = option(
    "--capacity", "N", "How much fits on it, in the unit of the VMs' --size.", type=click.FloatRange(0, MAX_AMOUNT)
)
ADDRESS = option("--address", "ADDRESS", "Where drivers reach it: a name, an IP address or a URI.")


@operator(
    app,
    "add",
    commands.HOST,
    switch("--cordoned", "Let no VM move to it for now."),
    LABEL,
    CAPACITY,
    ADDRESS,
    changes=True,
)
def add(ctx: Operator, host: str, labels: tuple[str, ...], **spec: Any) -> None:
    """Add a host."""
    body = views.fleet.NewHost(name=host, labels=commands.pairs("--label", labels, "rack=r1"), **spec)
    show(ctx, ctx.api.post(views.fleet.Host, "hosts", body=body))


@operator(
    app,
    "set",
    commands.HOST,
    switch("--cordoned/--no-cordoned", "Whether VMs may not move to it."),
    LABEL,
    option("--no-label", "KEY", "Remove a label; may be repeated.", multiple=True),
    CAPACITY,
    switch("--no-capacity", "Let any number of VMs fit on it."),
    ADDRESS,
    switch("--no-address", "Remove its address."),
    changes=True,
)
def set_(ctx: Operator, host: str, labels: tuple[str, ...], no_label: tuple[str, ...], **spec: Any) -> None:
    """Change a host: what is not given stays."""
    cleared = commands.cleared(spec, capacity=None, address=None)
    changed: dict[str, str | None] = {**commands.pairs("--label", labels, "rack=r1")}
    for key in no_label:
        if key in changed:
            raise UsageError(f"label {key} cannot be both set and removed: give --label or --no-label")
        changed[key] = None
    asked = commands.given(**spec, labels=changed or None) | cleared
    if not asked:
        raise commands.nothing_to_change("host")
    show(ctx, ctx.api.patch(views.fleet.Host, "hosts", host, body=views.fleet.HostChange(**asked)))


@operator(
    app,
    "list",
    option("--name", "SELECTOR", "Only those that match, such as 'rack1-*,!rack1-07' or label:rack=r1."),
    switch("--cordoned/--no-cordoned", "Only cordoned hosts, or only the others."),
)
def list_(ctx: Operator, **filters: Any) -> None:
    """List the hosts."""
    some = any(value is not None for value in filters.values())
    ctx.out.list(
        ctx.api.items(views.fleet.Host, "hosts", **filters),
        ("host", "state", "VMs", "used", "labels"),
        lambda host: (host.name, _state(host), host.vms, _used(host), host.labels),
        none="There are no matching hosts." if some else "There are no hosts; add one with `forenotice host add`.",
    )


@operator(app, "show", commands.HOST)
def show_(ctx: Operator, host: str) -> None:
    """Show a host."""
    show(ctx, ctx.api.get(views.fleet.Host, "hosts", host))


@operator(app, "remove", commands.HOST, commands.YES, changes=True)
def remove(ctx: Operator, host: str, yes: bool) -> None:
    """Remove a host that has no VMs."""
    commands.confirm(f"Remove host {host}?", yes=yes)
    ctx.out.result(ctx.api.delete(views.base.Removed, "hosts", host), f"Host {host} is removed.")


def _cordon(name: str, summary: str, *, cordoned: bool) -> None:
    @operator(app, name, commands.HOST, changes=True, summary=summary)
    def run(ctx: Operator, host: str) -> None:
        show(ctx, ctx.api.patch(views.fleet.Host, "hosts", host, body=views.fleet.HostChange(cordoned=cordoned)))


_cordon("cordon", "Let no VM move to a host.", cordoned=True)
_cordon("uncordon", "Let VMs move to a host again.", cordoned=False)
operations.verb(app, "update", Kind.HOST_UPDATE, "Update hosts: their VMs freeze for some seconds.")
operations.verb(app, "reboot", Kind.HOST_REBOOT, "Reboot hosts, and all VMs on them.")
operations.verb(app, "migrate", Kind.LIVE_MIGRATION, "Live-migrate all VMs off hosts.")
operations.verb(
    app,
    "degrade",
    Kind.DEGRADED_HARDWARE,
    "Report hardware that is expected to fail: redeploys all VMs of the hosts, after days of notice unless approved.",
    notice="7 days",
)
operations.verb(
    app,
    "fail",
    Kind.HARDWARE_FAILURE,
    "Report hosts as failed: redeploys all their VMs now, without notice.",
    question="Report {} as failed and redeploy {} VMs now, without notice?",
    notice="",
)


def show(ctx: Operator, host: "views.fleet.Host") -> None:
    planned = None if ctx.out.json else operations.planned(ctx, host.name)
    ctx.out.view(host, cordoned=None, state=_state(host), capacity=None, used=_used(host), planned=planned)


def _used(host: "views.fleet.Host") -> str | None:
    """Of its capacity, if it has one."""
    return None if host.capacity is None else f"{cell(host.used)} of {cell(host.capacity)}"


def _state(host: "views.fleet.Host") -> str:
    return "cordoned" if host.cordoned else "open"
