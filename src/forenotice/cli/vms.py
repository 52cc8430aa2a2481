"""`forenotice vm`: the VMs, and what their users ask for."""

from dataclasses import fields
from functools import partial
from typing import Any

import click
import msgspec

from forenotice import views
from forenotice.cli import commands, groups, operations
from forenotice.cli.commands import Operator, UsageError, operator, option, switch
from forenotice.cli.output import warn
from forenotice.core.fleet import MAX_AMOUNT, Facts
from forenotice.core.operations import Kind

app = commands.Group()

FACTS = tuple(field.name for field in fields(Facts) if field.name != "tags")
TITLES = {"size": "vmSize"}
"""Facts that would be taken for something else by their names."""
_HOST = partial(option, "--host", "HOST", "The host it runs on.", shell_complete=commands.names("hosts"))
HOST = _HOST()
GROUP = option("--group", "GROUP", "The group it belongs to.", shell_complete=commands.names("groups"))
SPOT = switch("--spot/--no-spot", "Whether it may be evicted.")
SPEC = (
    option("--update-domain", "N", "Its update domain.", type=int),
    option("--fault-domain", "N", "Its fault domain.", type=int),
    SPOT,
    option("--address addresses", "IP", "An address it calls from; may be repeated.", multiple=True),
    option("--vm-id", "GUID", "Its vmId; made up if left out."),
    option("--fact facts", "NAME=VALUE", f"One of {', '.join(FACTS)}; may be repeated.", multiple=True),
    option("--tag tags", "NAME=VALUE", "A tag; may be repeated.", multiple=True),
    option(
        "--size",
        "N",
        "How much of its host's capacity it takes, 1 if left out. What guests see as vmSize is --fact size=NAME.",
        type=click.FloatRange(0, MAX_AMOUNT),
    ),
)


@operator(app, "add", commands.VM, _HOST(required=True), GROUP, *SPEC, changes=True)
def add(ctx: Operator, vm: str, **spec: Any) -> None:
    """Add a VM."""
    added = ctx.api.post(
        views.fleet.AddedVm, "vms", body=views.fleet.NewVm(name=vm, **_given(views.fleet.Facts, **spec))
    )
    show(ctx, added)
    warn(added)


@operator(
    app,
    "set",
    commands.VM,
    HOST,
    GROUP,
    switch("--no-group", "Take it out of its group."),
    *SPEC,
    switch("--no-addresses", "Remove its addresses."),
    switch("--no-tags", "Remove its tags."),
    switch("--no-size", "Remove its size: it counts as 1."),
    changes=True,
)
def set_(ctx: Operator, vm: str, **spec: Any) -> None:
    """Change a VM: what is given replaces what was."""
    cleared = commands.cleared(spec, group=None, addresses=[], tags={}, size=None)
    asked = _given(views.fleet.FactsChange, **spec)
    if "tags" in cleared:
        facts = asked.get("facts", views.fleet.FactsChange())
        asked["facts"] = msgspec.structs.replace(facts, tags=cleared.pop("tags"))
    asked |= cleared
    if not asked:
        raise commands.nothing_to_change("vm")
    show(ctx, ctx.api.patch(views.fleet.Vm, "vms", vm, body=views.fleet.VmChange(**asked)))


def _given(
    kind: "type[views.fleet.Facts | views.fleet.FactsChange]",
    facts: tuple[str, ...],
    tags: tuple[str, ...],
    **spec: object,
) -> dict[str, Any]:
    """What was given, as the API takes it."""
    described: dict[str, Any] = {**commands.pairs("--fact", facts, "zone=1")}
    for name in described:
        if name not in FACTS:
            raise UsageError(f"{name!r} is no fact of a VM: give one of {', '.join(FACTS)}")
    if tags:
        described["tags"] = commands.pairs("--tag", tags, "team=shop")
    return commands.given(**spec, facts=kind(**described) if described else None)


@operator(app, "list", commands.PATTERN, HOST, GROUP, SPOT)
def list_(ctx: Operator, **filters: Any) -> None:
    """List the VMs."""
    ctx.out.list(
        ctx.api.items(views.fleet.Vm, "vms", **filters),
        ("vm", "host", "group", "update domain", "fault domain", "spot", "listening", "addresses"),
        lambda vm: (vm.name, vm.host, vm.group, vm.update_domain, vm.fault_domain, vm.spot, vm.listening, vm.addresses),
        none="There are no VMs; add one with `forenotice vm add`.",
    )


@operator(app, "show", commands.VM)
def show_(ctx: Operator, vm: str) -> None:
    """Show a VM."""
    show(ctx, ctx.api.get(views.fleet.Vm, "vms", vm))


@operator(app, "remove", commands.VM, commands.YES, changes=True)
def remove(ctx: Operator, vm: str, yes: bool) -> None:
    """Remove a VM from the records; `delete` deletes the VM itself."""
    commands.confirm(f"Remove VM {vm} from the records?", yes=yes)
    ctx.out.result(ctx.api.delete(views.base.Removed, "vms", vm), f"VM {vm} is removed from the records.")


@operator(app, "policy", commands.VM, *groups.POLICY_OF_VM, changes=True)
def policy(ctx: Operator, vm: str, **asked: Any) -> None:
    """Show or change the policy of a standalone VM."""
    groups.show_or_change_policy(ctx, "vms", vm, asked)


operations.verb(app, "restart", Kind.RESTART, "Restart VMs after notice.")
operations.verb(app, "redeploy", Kind.REDEPLOY, "Move VMs to other hosts after notice.")
operations.verb(
    app, "evict", Kind.EVICTION, "Evict spot VMs: removed half a minute after they are told.", question="Evict {}?"
)
operations.verb(
    app,
    "delete",
    Kind.DELETION,
    "Delete VMs; they get notice where their group's terminate notification is on.",
    question="Delete {}?",
    notice="",
)


def show(ctx: Operator, vm: "views.fleet.Vm") -> None:
    described = {TITLES.get(name, name): value for name, value in msgspec.structs.asdict(vm.facts).items()}
    planned = None if ctx.out.json else operations.planned(ctx, vm.host)
    policy = groups.policy_facts(vm.policy) if vm.policy else {"policy": None, "listening": None}
    ctx.out.view(vm, scope=None, facts=None, listening_now=vm.listening, planned=planned, **described, **policy)
