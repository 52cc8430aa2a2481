"""`forenotice subscription`: who receives journal entries by webhook."""

from pathlib import Path
from typing import Any

import click
import msgspec

from forenotice import views
from forenotice.cli import commands
from forenotice.cli.api import Named
from forenotice.cli.commands import Operator, UsageError, argument, complain, operator, option, request
from forenotice.core import errors, selectors

app = commands.Group()

LARGEST_SECRET = 4096
MOST_LOOKED_UP = 10
"""Of the groups and VMs that a selector names."""
NAME = argument("subscription", metavar="NAME", shell_complete=commands.names("subscriptions"))
FILTERS = (
    option(
        "--type types", "TYPE", "Such as event.started or event.*; may be repeated. All if left out.", multiple=True
    ),
    option("--groups", "SELECTOR", "Whose events, such as 'web-*,vm:db'. Everybody's if left out."),
    option(
        "--status statuses", "STATUS", "Only of events in this status; may be repeated. All if left out.", multiple=True
    ),
    option(
        "--secret-file secret",
        "FILE",
        "Holds the secret that signs; one is made and printed if left out.",
        type=click.Path(path_type=Path),
        callback=lambda _, __, path: path and _secret(path),
    ),
)


def _secret(path: Path) -> str:
    with commands.using(f"the secret in {path}", error=UsageError), path.open("rb") as file:
        return file.read(LARGEST_SECRET).decode("ascii").strip()


def _after(text: str, **named: bool) -> click.Option:
    return option("--after", "POSITION", text, type=click.IntRange(0), **named)


@operator(
    app,
    "add",
    NAME,
    argument("url", "The receiver, https."),
    *FILTERS,
    _after("Begin after this entry of the history. Now if left out."),
    changes=True,
)
def add(ctx: Operator, subscription: str, **asked: Any) -> None:
    """Push journal entries to a receiver; prints the secret that signs the messages, only once."""
    body = request(views.subscriptions.NewSubscription, name=subscription, **asked)
    made = ctx.api.post(views.subscriptions.CreatedSubscription, "subscriptions", body=body)
    _warn_of_unknown(ctx, asked["groups"])
    if asked["secret"] is not None:
        ctx.out.result(made, f"{subscription} gets matching entries from {made.position + 1} on.")
    else:
        ctx.out.result(made, made.secret or "The secret was shown when this was first asked for.")


@operator(app, "set", NAME, option("--url", "URL", "The receiver, https."), *FILTERS, changes=True)
def set_(ctx: Operator, subscription: str, **asked: Any) -> None:
    """Change a subscription: what is given replaces what was."""
    body = commands.change("subscription", request(views.subscriptions.SubscriptionChange, **asked))
    changed = ctx.api.patch(views.subscriptions.Subscription, "subscriptions", subscription, body=body)
    _warn_of_unknown(ctx, asked["groups"])
    ctx.out.view(changed)


@operator(app, "list")
def list_(ctx: Operator) -> None:
    """List the subscriptions."""
    ctx.out.list(
        ctx.api.items(views.subscriptions.Subscription, "subscriptions"),
        ("subscription", "status", "pending", "position", "receiver", "why"),
        lambda each: (each.name, each.status, each.pending, each.position, each.url, each.why),
        none="There are no subscriptions; add one with `forenotice subscription add`.",
    )


@commands.showing(app, NAME)
def show(ctx: Operator, found: "views.subscriptions.Subscription") -> None:
    """Show a subscription and its pending deliveries."""
    pending = list(ctx.api.items(views.subscriptions.Delivery, "subscriptions", found.name, "deliveries"))
    if ctx.out.json:
        ctx.out.data({**msgspec.structs.asdict(found), "deliveries": pending})
        return
    ctx.out.view(found)
    if pending:
        ctx.out.table(
            ("entry", "of", "attempts", "next", "error"),
            ((each.position, each.lane, each.attempts, ctx.out.moment(each.due_at), each.error) for each in pending),
        )


commands.removal(
    app, NAME, "subscription", "Remove a subscription and its pending deliveries.", with_=" and its pending deliveries"
)


@operator(app, "resume", NAME, changes=True)
def resume(ctx: Operator, subscription: str) -> None:
    """Resume a parked subscription where it stopped; one that backs off after failures tries at once."""
    ctx.out.view(ctx.api.post(views.subscriptions.Subscription, "subscriptions", subscription, "resume"))


@operator(app, "replay", NAME, _after("The last entry that is not sent again.", required=True), changes=True)
def replay(ctx: Operator, subscription: str, after: int) -> None:
    """Send all entries after a position again, with the same ids."""
    body = views.subscriptions.Replay(after=after)
    ctx.out.view(ctx.api.post(views.subscriptions.Subscription, "subscriptions", subscription, "replay", body=body))


@operator(app, "test", NAME, changes=True)
def test(ctx: Operator, subscription: str) -> None:
    """Send the receiver one message now, and show its response."""
    result = ctx.api.post(views.subscriptions.TestResult, "subscriptions", subscription, "test")
    if not result.taken and not ctx.out.json:
        raise errors.ConflictError(f"the receiver of {subscription} did not accept it: {result.error}")
    ctx.out.result(result, f"The receiver of {subscription} accepted it ({result.status}).")


def _warn_of_unknown(ctx: Operator, groups: str | None) -> None:
    """They may come later, or be misspelt."""
    for key in selectors.of_scopes(groups).wanted[:MOST_LOOKED_UP] if groups else ():
        noun, _, name = key.partition(":")
        if not any(ctx.api.items(Named, f"{noun}s", limit=1, name=name)):
            complain(f"there is no {noun} {name} yet: nothing of it is sent until there is one")
