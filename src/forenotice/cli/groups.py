"""`forenotice group`: availability sets, placement groups and cloud services; and the policy of a scope."""

from collections.abc import Mapping
from typing import Any

import click

from forenotice import views
from forenotice.cli import commands
from forenotice.cli.commands import Operator, Read, operator, option, switch
from forenotice.cli.output import warn
from forenotice.core import errors
from forenotice.core.fleet import Listening, ScopeKind

app = commands.Group()

KINDS = [kind.value for kind in ScopeKind if kind is not ScopeKind.STANDALONE]


def _number(text: str) -> list[int | None]:
    if text.lower() == "off":
        return [None]
    if text.isascii() and text.isdigit() and len(text) < 10:
        return [int(text)]
    raise ValueError(f"{text!r} is not a number: give one such as 5, or off")


NUMBER = Read(_number)
_POLICY = {
    "listening": option(
        "--listening",
        None,
        "Whether a guest is expected to approve; auto decides by who polls.",
        type=click.Choice([each.value for each in Listening]),
    ),
    "restart": switch("--auto-approve-restart/--no-auto-approve-restart", "Approve users' own restarts at once."),
    "redeploy": switch("--auto-approve-redeploy/--no-auto-approve-redeploy", "Approve users' own redeploys at once."),
    "terminate": option(
        "--terminate-notice terminate_notice_minutes",
        "MINUTES",
        "Announce deletions this long ahead, 5 to 15, or off. Groups only.",
        type=NUMBER,
    ),
    "operations": option(
        "--max-user-operations", "N", "How many users' operations may be live there at once, or off.", type=NUMBER
    ),
    "unavailable": option(
        "--max-unavailable",
        "N|P%",
        "How many VMs planned maintenance may have down at once, such as 2 or 25%, or off. Groups only.",
        type=Read(lambda text: [text] if text.endswith("%") else _number(text)),
    ),
    "available": option(
        "--min-available", "N", "How many VMs planned maintenance must leave up, or off. Groups only.", type=NUMBER
    ),
    "window": option(
        "--window windows",
        "WINDOW",
        "When planned maintenance may start, such as 'mon-fri 22:00-04:00 Europe/Berlin'; may be repeated.",
        multiple=True,
    ),
    "no_windows": switch("--no-windows", "Let planned maintenance start at any time."),
}
POLICY_OF_GROUP = tuple(_POLICY.values())
POLICY_OF_VM = tuple(each for name, each in _POLICY.items() if name not in ("terminate", "unavailable", "available"))


@operator(
    app,
    "add",
    commands.GROUP,
    option(
        "--kind",
        "KIND",
        f"One of {', '.join(KINDS)}.",
        type=click.Choice(KINDS),
        default=ScopeKind.AVAILABILITY_SET.value,
    ),
    *POLICY_OF_GROUP,
    changes=True,
)
def add(ctx: Operator, group: str, kind: str, **policy: Any) -> None:
    """Add a group."""
    added = ctx.api.post(
        views.fleet.AddedGroup,
        "groups",
        body=views.fleet.NewGroup(name=group, kind=ScopeKind(kind), policy=_changes(policy)),
    )
    show(ctx, added)
    warn(added)


@operator(app, "set", commands.GROUP, *POLICY_OF_GROUP, changes=True)
def set_(ctx: Operator, group: str, **policy: Any) -> None:
    """Change a group: what is given replaces what was."""
    asked = _changes(policy)
    if not asked.given():
        raise commands.nothing_to_change("group")
    show(ctx, ctx.api.patch(views.fleet.Group, "groups", group, body=views.fleet.GroupChange(policy=asked)))


@operator(app, "list", commands.PATTERN)
def list_(ctx: Operator, name: str | None) -> None:
    """List the groups."""
    ctx.out.list(
        ctx.api.items(views.fleet.Group, "groups", name=name),
        ("group", "kind", "VMs", "listening", "last polled", "incarnation"),
        lambda group: (
            group.name,
            group.kind,
            group.vms,
            group.listening,
            ctx.out.moment(group.last_heard),
            group.incarnation,
        ),
        none="There are no groups; add one with `forenotice group add`.",
    )


@operator(app, "show", commands.GROUP)
def show_(ctx: Operator, group: str) -> None:
    """Show a group."""
    show(ctx, ctx.api.get(views.fleet.Group, "groups", group))


@operator(app, "remove", commands.GROUP, commands.YES, changes=True)
def remove(ctx: Operator, group: str, yes: bool) -> None:
    """Remove a group that has no VMs."""
    commands.confirm(f"Remove group {group}?", yes=yes)
    ctx.out.result(ctx.api.delete(views.base.Removed, "groups", group), f"Group {group} is removed.")


@operator(app, "policy", commands.GROUP, *POLICY_OF_GROUP, changes=True)
def policy(ctx: Operator, group: str, **asked: Any) -> None:
    """Show or change the policy of a group."""
    show_or_change_policy(ctx, "groups", group, asked)


def show(ctx: Operator, group: "views.fleet.Group") -> None:
    ctx.out.view(group, listening_now=group.listening, **policy_facts(group.policy))


def show_or_change_policy(ctx: Operator, noun: str, name: str, given: Mapping[str, Any]) -> None:
    asked = _changes(given)
    if asked.given():
        found = ctx.api.patch(views.fleet.Policy, noun, name, "policy", body=asked)
    elif noun == "groups":
        found = ctx.api.get(views.fleet.Group, noun, name).policy
    else:
        vm = ctx.api.get(views.fleet.Vm, noun, name)
        if vm.policy is None:
            raise errors.ConflictError(f"{name} has its group's policy: see `forenotice group policy {vm.group}`")
        found = vm.policy
    ctx.out.view(found, **policy_facts(found))


def _changes(given: Mapping[str, Any]) -> "views.fleet.PolicyChange":
    """What the options ask for, as the API takes it; a change of nothing when none was given."""
    options = dict(given)
    windows, no_windows = options.pop("windows"), options.pop("no_windows")
    commands.exclude(windows and no_windows)
    # A list holds the value of an option that may also be off, which is null.
    asked = {name: value[0] if isinstance(value, list) else value for name, value in commands.given(**options).items()}
    if windows or no_windows:
        asked["windows"] = list(windows)
    return views.fleet.PolicyChange(**asked)


def policy_facts(policy: "views.fleet.Policy") -> dict[str, object]:
    notice = policy.terminate_notice_minutes
    numbers = {name: getattr(policy, name) for name in ("max_user_operations", "max_unavailable", "min_available")}
    return {
        "policy": None,
        "listening": policy.listening,
        "auto_approve_restart": policy.auto_approve_restart,
        "auto_approve_redeploy": policy.auto_approve_redeploy,
        "terminate_notice_minutes": None,
        "terminate_notice": "off" if notice is None else f"{notice:g} min",
        **{name: "off" if number is None else number for name, number in numbers.items()},
        "windows": policy.windows or "at any time",
    }
