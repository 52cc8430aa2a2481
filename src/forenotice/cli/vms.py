"""`forenotice vm`: the VMs, and what their users ask for."""

from typing import Annotated

import typer

from forenotice.cli import completing, facts, maintenance, options, policies
from forenotice.cli.api import View
from forenotice.cli.maintenance import Verb
from forenotice.cli.output import warn
from forenotice.cli.session import Session, Yes, command
from forenotice.cli.usage import UsageError
from forenotice.core.fleet import MAX_AMOUNT
from forenotice.core.operations import Kind

app = typer.Typer(help="VMs: add, change, restart, redeploy, evict, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="VM", show_default=False, autocompletion=completing.VMS)]
Host = Annotated[
    str | None,
    typer.Option("--host", metavar="HOST", help="The host it runs on.", autocompletion=completing.HOSTS),
]
Group = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="The group it belongs to.", autocompletion=completing.GROUPS),
]
UpdateDomain = Annotated[int | None, typer.Option("--update-domain", metavar="N", help="Its update domain.")]
FaultDomain = Annotated[int | None, typer.Option("--fault-domain", metavar="N", help="Its fault domain.")]
Spot = Annotated[bool | None, typer.Option("--spot/--no-spot", help="Whether it may be evicted.")]
Addresses = Annotated[
    list[str] | None, typer.Option("--address", metavar="IP", help="An address it calls from; may be repeated.")
]
VmId = Annotated[str | None, typer.Option("--vm-id", metavar="GUID", help="Its vmId; made up if left out.")]
FactOptions = Annotated[
    list[str] | None,
    typer.Option("--fact", metavar="NAME=VALUE", help=f"One of {', '.join(facts.NAMES)}; may be repeated."),
]
Size = Annotated[
    float | None,
    typer.Option(
        "--size",
        metavar="N",
        min=0,
        max=MAX_AMOUNT,
        help="How much of its host's capacity it takes, 1 if left out. What guests see as vmSize is --fact size=NAME.",
    ),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="NAME=VALUE", help="A tag; may be repeated.")]


@command(app, "add", changes=True)
def add(
    session: Session,
    name: Name,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="HOST",
            help="The host it runs on.",
            show_default=False,
            autocompletion=completing.HOSTS,
        ),
    ],
    group: Group = None,
    update_domain: UpdateDomain = None,
    fault_domain: FaultDomain = None,
    spot: Spot = None,
    address: Addresses = None,
    vm_id: VmId = None,
    fact: FactOptions = None,
    tag: Tags = None,
    size: Size = None,
) -> None:
    """Add a VM."""
    body = _asked(host, group, update_domain, fault_domain, spot, address, vm_id, size)
    if described := facts.read(fact or [], tag or []):
        body["facts"] = described
    added = session.api.post("vms", body={"name": name, **body})
    show(session, added)
    warn(added)


@command(app, "set", changes=True)
def set_(
    session: Session,
    name: Name,
    host: Host = None,
    group: Group = None,
    no_group: Annotated[bool, typer.Option("--no-group", help="Take it out of its group.")] = False,
    update_domain: UpdateDomain = None,
    fault_domain: FaultDomain = None,
    spot: Spot = None,
    address: Addresses = None,
    no_addresses: Annotated[bool, typer.Option("--no-addresses", help="Forget its addresses.")] = False,
    vm_id: VmId = None,
    fact: FactOptions = None,
    tag: Tags = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Forget its tags.")] = False,
    size: Size = None,
    no_size: Annotated[bool, typer.Option("--no-size", help="Forget its size: it counts as 1.")] = False,
) -> None:
    """Change a VM: what is given replaces what was."""
    if (group and no_group) or (address and no_addresses) or (tag and no_tags) or (size is not None and no_size):
        raise UsageError("an option and its --no- form exclude each other: give one of them")
    body = _asked(host, group, update_domain, fault_domain, spot, address, vm_id, size)
    if no_size:
        body["size"] = None
    if no_group:
        body["group"] = None
    if no_addresses:
        body["addresses"] = []
    described: dict[str, object] = facts.read(fact or [], tag or [])
    if no_tags:
        described["tags"] = {}
    if described:
        body["facts"] = described
    if not body:
        raise UsageError("nothing to change: give at least one option, see `forenotice vm set -h`")
    show(session, session.api.patch("vms", name, body=body))


@command(app, "list")
def list_(
    session: Session, name: options.Pattern = None, host: Host = None, group: Group = None, spot: Spot = None
) -> None:
    """List the VMs."""
    items = session.api.items("vms", name=name, host=host, group=group, spot=spot)
    if session.out.json:
        session.out.data(list(items))
        return
    session.out.table(
        ("vm", "host", "group", "update domain", "fault domain", "spot", "listening", "addresses"),
        (
            (
                vm["name"],
                vm["host"],
                vm["group"],
                vm["update_domain"],
                vm["fault_domain"],
                vm["spot"],
                vm["listening"],
                vm["addresses"],
            )
            for vm in items
        ),
        none="There are no VMs; add one with `forenotice vm add`.",
    )


@command(app, "show")
def show_(session: Session, name: Name) -> None:
    """Show a VM."""
    show(session, session.api.get("vms", name))


@command(app, "remove", changes=True)
def remove(session: Session, name: Name, yes: Yes = False) -> None:
    """Forget a VM; `delete` is what removes it for real."""
    session.confirm(f"Forget VM {name}?", yes=yes)
    removed = session.api.delete("vms", name)
    if session.out.json:
        session.out.data(removed)
    else:
        session.out.line(f"VM {name} is forgotten.")


@command(app, "policy", changes=True)
@policies.taking(policies.OF_VM)
def policy(session: Session, name: Name, asked: dict[str, object]) -> None:
    """Show or change the policy of a standalone VM."""
    policies.run(session, "vms", name, asked)


for verb in (
    Verb(name="restart", kind=Kind.RESTART, help="Restart VMs, after they were told."),
    Verb(name="redeploy", kind=Kind.REDEPLOY, help="Move VMs to other hosts, after they were told."),
    Verb(
        name="evict",
        kind=Kind.EVICTION,
        help="Evict spot VMs: they are told, and removed half a minute later.",
        question="Evict",
    ),
    Verb(
        name="delete",
        kind=Kind.DELETION,
        help="Delete VMs; they are told first where their group's terminate notification is on.",
        question="Delete",
        notice="",
    ),
):
    maintenance.register(app, verb)


def show(session: Session, vm: View) -> None:
    if session.out.json:
        session.out.data(vm)
        return
    session.out.facts(
        {
            "vm": vm["name"],
            "vmId": vm["vm_id"],
            "host": vm["host"],
            "group": vm["group"],
            "update domain": vm["update_domain"],
            "fault domain": vm["fault_domain"],
            "spot": vm["spot"],
            "addresses": vm["addresses"],
            "size": vm.get("size"),
            "listens now": vm["listening"],
            "last heard": session.out.moment(vm["last_heard"]),
            "incarnation": vm["incarnation"],
            "planned": maintenance.planned(session, vm["host"]),
            **{facts.TITLES.get(name, name.replace("_", " ")): value for name, value in vm["facts"].items()},
            **(policies.lines(vm["policy"]) if vm["policy"] else {}),
        }
    )


def _asked(
    host: str | None,
    group: str | None,
    update_domain: int | None,
    fault_domain: int | None,
    spot: bool | None,
    addresses: list[str] | None,
    vm_id: str | None,
    size: float | None,
) -> dict[str, object]:
    asked: dict[str, object] = {
        "host": host,
        "group": group,
        "update_domain": update_domain,
        "fault_domain": fault_domain,
        "spot": spot,
        "addresses": addresses or None,
        "vm_id": vm_id,
        "size": size,
    }
    return {field: value for field, value in asked.items() if value is not None}
