"""`forenotice group`: availability sets, placement groups and cloud services."""

from typing import Annotated

import typer

from forenotice.cli import completing, options, policies
from forenotice.cli.api import View
from forenotice.cli.output import warn
from forenotice.cli.session import Session, Yes, command
from forenotice.cli.usage import UsageError
from forenotice.core.fleet import ScopeKind

app = typer.Typer(help="Groups: VMs that share a document, and their policy.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP", show_default=False, autocompletion=completing.GROUPS)]
KINDS = tuple(kind.value for kind in ScopeKind if kind is not ScopeKind.STANDALONE)


@command(app, "add", changes=True)
@policies.taking(policies.OF_GROUP)
def add(
    session: Session,
    name: Name,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help=f"One of {', '.join(KINDS)}.")
    ] = ScopeKind.AVAILABILITY_SET.value,
    *,
    asked: dict[str, object],
) -> None:
    """Add a group."""
    if kind not in KINDS:
        raise UsageError(f"{kind!r} is no kind of group: give one of {', '.join(KINDS)}")
    added = session.api.post("groups", body={"name": name, "kind": kind, "policy": asked})
    show(session, added)
    warn(added)


@command(app, "set", changes=True)
@policies.taking(policies.OF_GROUP)
def set_(session: Session, name: Name, asked: dict[str, object]) -> None:
    """Change a group: what is given replaces what was."""
    if not asked:
        raise UsageError("nothing to change: give at least one option, see `forenotice group set -h`")
    show(session, session.api.patch("groups", name, body={"policy": asked}))


@command(app, "list")
def list_(session: Session, name: options.Pattern = None) -> None:
    """List the groups."""
    items = session.api.items("groups", name=name)
    if session.out.json:
        session.out.data(list(items))
        return
    session.out.table(
        ("group", "kind", "VMs", "listening", "last heard", "incarnation"),
        (
            (
                group["name"],
                group["kind"],
                group["vms"],
                group["listening"],
                session.out.moment(group["last_heard"]),
                group["incarnation"],
            )
            for group in items
        ),
        none="There are no groups; add one with `forenotice group add`.",
    )


@command(app, "show")
def show_(session: Session, name: Name) -> None:
    """Show a group."""
    show(session, session.api.get("groups", name))


@command(app, "remove", changes=True)
def remove(session: Session, name: Name, yes: Yes = False) -> None:
    """Forget a group that has no VMs."""
    session.confirm(f"Forget group {name}?", yes=yes)
    removed = session.api.delete("groups", name)
    if session.out.json:
        session.out.data(removed)
    else:
        session.out.line(f"Group {name} is forgotten.")


@command(app, "policy", changes=True)
@policies.taking(policies.OF_GROUP)
def policy(session: Session, name: Name, asked: dict[str, object]) -> None:
    """Show or change the policy of a group."""
    policies.run(session, "groups", name, asked)


def show(session: Session, group: View) -> None:
    if session.out.json:
        session.out.data(group)
        return
    session.out.facts(
        {
            "group": group["name"],
            "kind": group["kind"],
            "VMs": group["vms"],
            "listens now": group["listening"],
            "last heard": session.out.moment(group["last_heard"]),
            "incarnation": group["incarnation"],
            **policies.lines(group["policy"]),
        }
    )
