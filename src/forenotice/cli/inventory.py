"""`forenotice vm`, `host` and `group`: what there is, the policy of a scope, and maintenance on it."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import click
import msgspec

from forenotice import views
from forenotice.cli import commands, operations, output
from forenotice.cli.commands import Operator, Read, UsageError, operator, option, request, switch
from forenotice.cli.output import cell, warn
from forenotice.core import errors
from forenotice.core.fleet import INVENTORIES, MAX_AMOUNT, Facts, Listening, ScopeKind
from forenotice.core.operations import Kind

vm, host, group = commands.Group(), commands.Group(), commands.Group()

AMOUNT = click.FloatRange(0, MAX_AMOUNT)
WINDOW = "such as 'mon-fri 22:00-04:00 Europe/Berlin'; may be repeated."

# Policies


def _number(text: str) -> object:
    if text.lower() == "off":
        return commands.NOTHING
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise ValueError(f"{text!r} is not a number: give one such as 5, or off")


NUMBER = Read(_number)
PART = Read(lambda text: text if text.endswith("%") else _number(text))
POLICY_OF_VM = (
    option(
        "--listening",
        None,
        "Whether a guest is expected to approve; auto decides by who polls.",
        type=click.Choice([each.value for each in Listening]),
    ),
    switch("--auto-approve-restart/--no-auto-approve-restart", "Approve users' own restarts at once."),
    switch("--auto-approve-redeploy/--no-auto-approve-redeploy", "Approve users' own redeploys at once."),
    option("--max-user-operations", "N", "How many users' operations may be live there at once, or off.", type=NUMBER),
    option(
        "--shutdown-timeout shutdown_timeout_seconds",
        "SECONDS",
        "How long drivers let a VM shut down before they power it off, such as 90 or 5m; 0: at once.",
        type=Read(output.seconds),
    ),
    option("--window windows", "WINDOW", f"When planned maintenance may start, {WINDOW}", multiple=True),
    switch("--no-windows", "Let planned maintenance start at any time."),
)
POLICY_OF_GROUP = (
    *POLICY_OF_VM,
    option(
        "--terminate-notice terminate_notice_minutes",
        "MINUTES",
        "Announce deletions this long ahead, 5 to 15, or off.",
        type=NUMBER,
    ),
    option(
        "--max-unavailable",
        "N|P%",
        "How many VMs planned maintenance may have down at once, such as 2 or 25%, or off.",
        type=PART,
    ),
    option("--min-available", "N", "How many VMs planned maintenance must leave up, or off.", type=NUMBER),
)


def _policy_change(options: Mapping[str, object]) -> "views.fleet.PolicyChange":
    return request(views.fleet.PolicyChange, {"windows": []}, **options)


@operator(group, "policy", commands.GROUP, *POLICY_OF_GROUP, changes=True)
def policy_of_group(ctx: Operator, group: str, **options: Any) -> None:
    """Show or change the policy of a group."""
    _show_or_change_policy(ctx, views.fleet.Group, "group", group, options)


@operator(vm, "policy", commands.VM, *POLICY_OF_VM, changes=True)
def policy_of_vm(ctx: Operator, vm: str, **options: Any) -> None:
    """Show or change the policy of a standalone VM."""
    _show_or_change_policy(ctx, views.fleet.Vm, "vm", vm, options)


def _show_or_change_policy(
    ctx: Operator,
    kind: "type[views.fleet.Group | views.fleet.Vm]",
    noun: str,
    name: str,
    options: Mapping[str, object],
) -> None:
    body = _policy_change(options)
    if body.given():
        found = ctx.api.patch(views.fleet.Policy, f"{noun}s", name, "policy", body=body)
    else:
        owner = ctx.api.get(kind, f"{noun}s", name)
        if owner.policy is None:
            group = getattr(owner, "group", None)
            raise errors.ConflictError(f"{name} has its group's policy: see `forenotice group policy {group}`")
        found = owner.policy
    ctx.out.view(found, **_policy_facts(found))


def _policy_facts(policy: "views.fleet.Policy") -> dict[str, object]:
    facts = {"policy": None, **msgspec.structs.asdict(policy), "terminate_notice_minutes": None}
    facts |= {"shutdown_timeout_seconds": None, "shutdown_timeout": f"{policy.shutdown_timeout_seconds} s"}
    facts["windows"] = policy.windows or "at any time"
    notice = policy.terminate_notice_minutes
    facts["terminate_notice"] = None if notice is None else f"{notice:g} min"
    for name in ("max_user_operations", "max_unavailable", "min_available", "terminate_notice"):
        facts[name] = "off" if facts[name] is None else facts[name]
    return facts


# Groups

KINDS = [kind.value for kind in ScopeKind if kind is not ScopeKind.STANDALONE]
KIND = option(
    "--kind",
    "KIND",
    f"One of {', '.join(KINDS)}.",
    type=click.Choice(KINDS),
    default=ScopeKind.AVAILABILITY_SET.value,
)


@operator(group, "add", commands.GROUP, KIND, *POLICY_OF_GROUP, changes=True)
def add_group(ctx: Operator, group: str, kind: str, **policy: Any) -> None:
    """Add a group."""
    body = views.fleet.NewGroup(name=group, kind=ScopeKind(kind), policy=_policy_change(policy))
    added = ctx.api.post(views.fleet.AddedGroup, "groups", body=body)
    show_group(ctx, added)
    warn(added)


@operator(group, "set", commands.GROUP, *POLICY_OF_GROUP, changes=True)
def set_group(ctx: Operator, group: str, **policy: Any) -> None:
    """Change a group: what is given replaces what was."""
    body = views.fleet.GroupChange(policy=commands.change("group", _policy_change(policy)))
    show_group(ctx, ctx.api.patch(views.fleet.Group, "groups", group, body=body))


@operator(group, "list", commands.PATTERN)
def list_groups(ctx: Operator, name: str | None) -> None:
    """List the groups."""
    ctx.out.list(
        ctx.api.items(views.fleet.Group, "groups", name=name),
        ("group", "kind", "VMs", "listening", "last polled", "incarnation"),
        lambda each: (
            each.name,
            each.kind,
            each.vms,
            each.listening,
            ctx.out.moment(each.last_heard),
            each.incarnation,
        ),
        none="There are no groups; add one with `forenotice group add`.",
    )


@commands.showing(group, commands.GROUP)
def show_group(ctx: Operator, found: "views.fleet.Group") -> None:
    """Show a group."""
    ctx.out.view(found, listening_now=found.listening, **_policy_facts(found.policy))


commands.removal(group, commands.GROUP, "group", "Remove a group that has no VMs.")


# Hosts

LABEL = option("--label labels", "KEY=VALUE", "A label, such as rack=r1; may be repeated.", multiple=True)
CAPACITY = option("--capacity", "N", "How much fits on it, in the unit of the VMs' --size.", type=AMOUNT)
ADDRESS = option("--address", "ADDRESS", "Where drivers reach it: a name, an IP address or a URI.")
INVENTORY = option(
    "--inventory",
    None,
    "Watch its VMs at its address, and let the fleet follow them.",
    type=click.Choice(INVENTORIES),
)
CORDONED = switch("--cordoned", "Let no VM move to it for now.")


@operator(host, "add", commands.HOST, CORDONED, LABEL, CAPACITY, ADDRESS, INVENTORY, changes=True)
def add_host(ctx: Operator, host: str, labels: tuple[str, ...], **spec: Any) -> None:
    """Add a host."""
    body = views.fleet.NewHost(name=host, labels=commands.pairs("--label", labels, "rack=r1"), **spec)
    show_host(ctx, ctx.api.post(views.fleet.Host, "hosts", body=body))


@operator(
    host,
    "set",
    commands.HOST,
    switch("--cordoned/--no-cordoned", "Whether VMs may not move to it."),
    LABEL,
    option("--no-label", "KEY", "Remove a label; may be repeated.", multiple=True),
    CAPACITY,
    switch("--no-capacity", "Let any number of VMs fit on it."),
    ADDRESS,
    switch("--no-address", "Remove its address."),
    INVENTORY,
    switch("--no-inventory", "Watch it no longer; its VMs stay as they are."),
    changes=True,
)
def set_host(ctx: Operator, host: str, labels: tuple[str, ...], no_label: tuple[str, ...], **spec: Any) -> None:
    """Change a host: what is not given stays."""
    given = commands.pairs("--label", labels, "rack=r1")
    if both := given.keys() & set(no_label):
        raise UsageError(f"label {min(both)} cannot be both set and removed: give --label or --no-label")
    changed = {**given, **dict.fromkeys(no_label)}
    clear = dict.fromkeys(("capacity", "address", "inventory"))
    body = request(views.fleet.HostChange, clear, **spec, labels=changed or None)
    show_host(ctx, ctx.api.patch(views.fleet.Host, "hosts", host, body=commands.change("host", body)))


@operator(
    host,
    "list",
    option("--name", "SELECTOR", "Only those that match, such as 'rack1-*,!rack1-07' or label:rack=r1."),
    switch("--cordoned/--no-cordoned", "Only cordoned hosts, or only the others."),
)
def list_hosts(ctx: Operator, **filters: Any) -> None:
    """List the hosts."""
    some = any(value is not None for value in filters.values())
    ctx.out.list(
        ctx.api.items(views.fleet.Host, "hosts", **filters),
        ("host", "state", "VMs", "used", "labels", "drift"),
        lambda each: (each.name, _state(each), each.vms, _used(each), each.labels, each.drift or None),
        none="There are no matching hosts." if some else "There are no hosts; add one with `forenotice host add`.",
    )


@commands.showing(host, commands.HOST)
def show_host(ctx: Operator, found: "views.fleet.Host") -> None:
    """Show a host."""
    planned = None if ctx.out.json else operations.planned(ctx, found.name)
    drift = None
    if found.drift and not ctx.out.json:
        drift = _drift(ctx.api.get(views.fleet.FoundDrift, "fleet", "drift", host=found.name).items)
    ctx.out.view(
        found, cordoned=None, state=_state(found), capacity=None, used=_used(found), planned=planned, drift=drift
    )


def _drift(found: "Sequence[views.fleet.Drift]") -> str:
    """Several hosts may say the same of a VM."""
    return "; ".join(dict.fromkeys(f"{each.name} is {each.kind}: {each.reason}" for each in found))


def _used(found: "views.fleet.Host") -> str | None:
    """Of its capacity, if it has one."""
    return None if found.capacity is None else f"{cell(found.used)} of {cell(found.capacity)}"


def _state(found: "views.fleet.Host") -> str:
    return ("cordoned" if found.cordoned else "open") + (", does not answer" if found.silent_since else "")


def _cordon(name: str, summary: str, *, cordoned: bool) -> None:
    @operator(host, name, commands.HOST, changes=True, summary=summary)
    def run(ctx: Operator, host: str) -> None:
        show_host(ctx, ctx.api.patch(views.fleet.Host, "hosts", host, body=views.fleet.HostChange(cordoned=cordoned)))


commands.removal(host, commands.HOST, "host", "Remove a host that has no VMs.")
_cordon("cordon", "Let no VM move to a host.", cordoned=True)
_cordon("uncordon", "Let VMs move to a host again.", cordoned=False)
operations.verb(
    host, "update", Kind.HOST_UPDATE, "Update hosts: their VMs freeze for some seconds.", operations.DURATION
)
operations.verb(host, "reboot", Kind.HOST_REBOOT, "Reboot hosts, and all VMs on them.")
operations.verb(host, "migrate", Kind.LIVE_MIGRATION, "Live-migrate all VMs off hosts.")
operations.verb(
    host,
    "degrade",
    Kind.DEGRADED_HARDWARE,
    "Report hardware that is expected to fail: redeploys all VMs of the hosts, after days of notice unless approved.",
    notice="7 days",
)
operations.verb(
    host,
    "fail",
    Kind.HARDWARE_FAILURE,
    "Report hosts as failed: redeploys all their VMs now, without notice.",
    question="Report {} as failed and redeploy {} VMs now, without notice?",
    notice="",
)


# VMs

FACTS = tuple(field.name for field in fields(Facts) if field.name != "tags")
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
        type=AMOUNT,
    ),
)


def _facts(facts: tuple[str, ...], tags: tuple[str, ...]) -> dict[str, object]:
    """Facts and tags that were given."""
    described: dict[str, object] = {**commands.pairs("--fact", facts, "zone=1")}
    if unknown := [name for name in described if name not in FACTS]:
        raise UsageError(f"{unknown[0]!r} is no fact of a VM: give one of {', '.join(FACTS)}")
    return described | ({"tags": commands.pairs("--tag", tags, "team=shop")} if tags else {})


@operator(vm, "add", commands.VM, _HOST(required=True), GROUP, *SPEC, changes=True)
def add_vm(ctx: Operator, vm: str, facts: tuple[str, ...], tags: tuple[str, ...], **spec: Any) -> None:
    """Add a VM."""
    described = request(views.fleet.Facts, **_facts(facts, tags))
    added = ctx.api.post(views.fleet.AddedVm, "vms", body=request(views.fleet.NewVm, name=vm, facts=described, **spec))
    show_vm(ctx, added)
    warn(added)


@operator(
    vm,
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
def set_vm(ctx: Operator, vm: str, facts: tuple[str, ...], tags: tuple[str, ...], no_tags: bool, **spec: Any) -> None:
    """Change a VM: what is given replaces what was."""
    described = request(views.fleet.FactsChange, {"tags": {}}, no_tags=no_tags, **_facts(facts, tags))
    clear: dict[str, object] = {"group": None, "addresses": [], "size": None}
    body = request(views.fleet.VmChange, clear, facts=described if described.given() else None, **spec)
    show_vm(ctx, ctx.api.patch(views.fleet.Vm, "vms", vm, body=commands.change("vm", body)))


@operator(vm, "list", commands.PATTERN, HOST, GROUP, SPOT)
def list_vms(ctx: Operator, **filters: Any) -> None:
    """List the VMs."""
    ctx.out.list(
        ctx.api.items(views.fleet.Vm, "vms", **filters),
        ("vm", "host", "group", "update domain", "fault domain", "spot", "listening", "addresses", "drift"),
        lambda vm: (
            vm.name,
            vm.host,
            vm.group,
            vm.update_domain,
            vm.fault_domain,
            vm.spot,
            vm.listening,
            vm.addresses,
            list(dict.fromkeys(each.kind for each in vm.drift)),
        ),
        none="There are no VMs; add one with `forenotice vm add`.",
    )


@commands.showing(vm, commands.VM)
def show_vm(ctx: Operator, found: "views.fleet.Vm") -> None:
    """Show a VM."""
    facts = msgspec.structs.asdict(found.facts)
    # The size is how much of its host it takes.
    facts["vmSize"] = facts.pop("size")
    planned = None if ctx.out.json else operations.planned(ctx, found.host)
    policy = _policy_facts(found.policy) if found.policy else {"policy": None, "listening": None}
    shown = {"scope": None, "facts": None, "listening_now": found.listening, "planned": planned}
    ctx.out.view(found, **shown, drift=_drift(found.drift), **facts, **policy)


commands.removal(
    vm, commands.VM, "VM", "Remove a VM from the records; `delete` deletes the VM itself.", where=" from the records"
)
operations.verb(vm, "restart", Kind.RESTART, "Restart VMs after notice.")
operations.verb(vm, "redeploy", Kind.REDEPLOY, "Move VMs to other hosts after notice.")
operations.verb(vm, "evict", Kind.EVICTION, "Evict spot VMs, 30 seconds after the announcement.", question="Evict {}?")
operations.verb(
    vm,
    "delete",
    Kind.DELETION,
    "Delete VMs; they get notice where their group's terminate notification is on.",
    question="Delete {}?",
    notice="",
)
