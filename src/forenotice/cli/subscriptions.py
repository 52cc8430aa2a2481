"""`forenotice subscription`: who is told what happens, by webhook."""

from pathlib import Path
from typing import Annotated

import typer

from forenotice.cli import completing
from forenotice.cli.api import View
from forenotice.cli.output import complain
from forenotice.cli.session import Session, Yes, command
from forenotice.cli.usage import UsageError
from forenotice.core import errors, selectors

app = typer.Typer(help="Subscriptions: push what happens to webhooks.", no_args_is_help=True)

LARGEST_SECRET = 4096
MOST_LOOKED_UP = 10
"""Of the groups and VMs that a selector names."""

Name = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, autocompletion=completing.names("subscriptions"))
]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Such as event.started or event.*; may be repeated. Else all."),
]
Groups = Annotated[
    str | None,
    typer.Option("--groups", metavar="SELECTOR", help="Whose events, such as 'web-*,vm:db'. Else everybody's."),
]
Statuses = Annotated[
    list[str] | None,
    typer.Option("--status", metavar="STATUS", help="Only of events that are so; may be repeated. Else all."),
]
SecretFile = Annotated[
    Path | None,
    typer.Option("--secret-file", metavar="FILE", help="Holds the secret that signs; else one is made and printed."),
]


@command(app, "add", changes=True)
def add(
    session: Session,
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="The receiver, https.", show_default=False)],
    types: Types = None,
    groups: Groups = None,
    statuses: Statuses = None,
    secret_file: SecretFile = None,
    after: Annotated[
        int | None,
        typer.Option("--after", metavar="POSITION", min=0, help="Begin behind this entry of the history. Else now."),
    ] = None,
) -> None:
    """Push what happens to a receiver; prints the secret that signs the messages, this once."""
    asked = {"name": name, "url": url, "after": after, **_wanted(types, groups, statuses, secret_file)}
    made = session.api.post("subscriptions", body=asked)
    _warn_of_strangers(session, groups)
    if session.out.json:
        session.out.data(made)
    elif secret_file is None:
        session.out.line(made["secret"] or "The secret was shown when this was first asked for.")
    else:
        session.out.line(f"{name} gets matching entries from {made['position'] + 1} on.")


@command(app, "set", changes=True)
def set_(
    session: Session,
    name: Name,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The receiver, https.")] = None,
    types: Types = None,
    groups: Groups = None,
    statuses: Statuses = None,
    secret_file: SecretFile = None,
) -> None:
    """Change a subscription: what is given replaces what was."""
    asked = _wanted(types, groups, statuses, secret_file) | ({"url": url} if url else {})
    if not asked:
        raise UsageError("nothing to change: give at least one option, see `forenotice subscription set -h`")
    changed = session.api.patch("subscriptions", name, body=asked)
    _warn_of_strangers(session, groups)
    _show(session, changed)


@command(app, "list")
def list_(session: Session) -> None:
    """List the subscriptions."""
    items = session.api.items("subscriptions")
    if session.out.json:
        session.out.data(list(items))
        return
    session.out.table(
        ("subscription", "status", "pending", "position", "receiver", "why"),
        ((each["name"], each["status"], each["pending"], each["position"], each["url"], each["why"]) for each in items),
        none="There are no subscriptions; add one with `forenotice subscription add`.",
    )


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show a subscription, and what it has still to be told."""
    found = session.api.get("subscriptions", name)
    waiting = list(session.api.items("subscriptions", name, "deliveries"))
    if session.out.json:
        session.out.data({**found, "deliveries": waiting})
        return
    _show(session, found)
    if waiting:
        session.out.table(
            ("entry", "of", "attempts", "next", "error"),
            (
                (each["position"], each["lane"], each["attempts"], session.out.moment(each["due_at"]), each["error"])
                for each in waiting
            ),
            none="",
        )


@command(app, "remove", changes=True)
def remove(session: Session, name: Name, yes: Yes = False) -> None:
    """Remove a subscription, with what it has still to be told."""
    session.confirm(f"Remove subscription {name}, and what it has still to be told?", yes=yes)
    removed = session.api.delete("subscriptions", name)
    if session.out.json:
        session.out.data(removed)
    else:
        session.out.line(f"Subscription {removed['removed']} is removed.")


@command(app, "resume", changes=True)
def resume(session: Session, name: Name) -> None:
    """Go on with one that is parked, where it was; one that pauses after failures tries at once."""
    _show(session, session.api.post("subscriptions", name, "resume"))


@command(app, "replay", changes=True)
def replay(
    session: Session,
    name: Name,
    after: Annotated[
        int,
        typer.Option("--after", metavar="POSITION", min=0, help="The last entry that is not told.", show_default=False),
    ],
) -> None:
    """Tell again all that is behind an entry of the history, under the same ids."""
    _show(session, session.api.post("subscriptions", name, "replay", body={"after": after}))


@command(app, "test", changes=True)
def test(session: Session, name: Name) -> None:
    """Send the receiver one message now, and tell what it says."""
    said = session.api.post("subscriptions", name, "test")
    if session.out.json:
        session.out.data(said)
    elif not said["taken"]:
        raise errors.ConflictError(f"the receiver of {name} did not take it: {said['error']}")
    else:
        session.out.line(f"The receiver of {name} took it ({said['status']}).")


def _wanted(
    types: list[str] | None, groups: str | None, statuses: list[str] | None, secret_file: Path | None
) -> dict[str, object]:
    """What was given, in the API's words."""
    secret = None if secret_file is None else _secret(secret_file)
    asked = {"types": types, "groups": groups, "statuses": statuses, "secret": secret}
    return {name: value for name, value in asked.items() if value is not None}


def _warn_of_strangers(session: Session, groups: str | None) -> None:
    """They may come later, or be misspelt."""
    for key in selectors.of_scopes(groups).wanted[:MOST_LOOKED_UP] if groups else ():
        noun, _, name = key.partition(":")
        if not any(session.api.items(f"{noun}s", limit=1, name=name)):
            complain(f"there is no {noun} {name} yet: nothing of it is told until there is one")


def _secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_SECRET).decode("ascii").strip()
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read: {str(error.strerror).lower()}") from None
    except UnicodeDecodeError:
        raise UsageError(f"the secret in {path} is not plain ASCII") from None


def _show(session: Session, subscription: View) -> None:
    if session.out.json:
        session.out.data(subscription)
        return
    session.out.facts(
        {
            "subscription": subscription["name"],
            "id": subscription["id"],
            "receiver": subscription["url"],
            "types": subscription["types"],
            "groups": subscription["groups"],
            "statuses": subscription["statuses"],
            "status": subscription["status"],
            "why": subscription["why"],
            "position": subscription["position"],
            "pending": subscription["pending"],
            "made": session.out.moment(subscription["created_at"]),
            "by": subscription["by"],
        }
    )
