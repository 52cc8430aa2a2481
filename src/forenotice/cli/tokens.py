"""`forenotice token`: bearer tokens of operators."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from forenotice import views
from forenotice.cli import commands, server
from forenotice.cli.commands import Operator, UsageError, argument, operator, option, request, switch
from forenotice.core import errors
from forenotice.core.roles import Role
from forenotice.settings import table
from forenotice.settings.values import Span, lasting

if TYPE_CHECKING:
    from forenotice.service.calls import Call

app = commands.Group()

OFFLINE = switch("--offline", "Use the database itself: for a lost token, and for a first start.")
DATABASE = (table.DATABASE, table.OF_DEMO)
DURATIONS = {"expires_in": lasting, "overlap": Span.read}


@operator(
    app,
    "create",
    argument("name", "Whose it is."),
    option(
        "--role",
        None,
        "What it may do; with --offline, admin if left out.",
        type=click.Choice([each.value for each in Role]),
    ),
    option(
        "--scopes",
        "SCOPES",
        "For whose VMs, groups and events, such as web-*,vm:db: required for a tenant, possible for a viewer.",
    ),
    option("--expires expires_in", "TIME", "How long it lasts, such as 30d or never; 90d if left out."),
    option("--from networks", "NETWORK", "Network to use it from, such as 10.0.0.0/8; may be repeated.", multiple=True),
    OFFLINE,
    changes=True,
    rows=DATABASE,
)
def create(ctx: Operator, role: str | None, offline: bool, **asked: Any) -> None:
    """Create a token, and print it, only once."""
    if role is None and not offline:
        raise UsageError(f"say what it may do: --role {', '.join(Role)}")
    body = request(views.tokens.NewToken, role=Role(role or Role.ADMIN), **asked)
    if offline:
        durations = _durations(asked)
        with server.service(ctx.flags) as service:
            from forenotice.service import tokens

            made = tokens.create(service, _call(ctx), **{**body.given(), **durations})
    else:
        made = ctx.api.post(views.tokens.CreatedToken, "tokens", body=body)
    _show_secret(ctx, made)


@operator(
    app,
    "rotate",
    argument("wanted", "Its name or id.", metavar="TOKEN"),
    option("--overlap", "TIME", "How long the old secret still works, up to 7d; 1h if left out."),
    option(
        "--expires expires_in",
        "TIME",
        "How long it lasts from now, such as 30d or never; the same as before if left out.",
    ),
    OFFLINE,
    changes=True,
    rows=DATABASE,
)
def rotate(ctx: Operator, wanted: str, offline: bool, **asked: Any) -> None:
    """Give a token a new secret, and print it, only once."""
    if offline:
        durations = _durations(asked)
        with server.service(ctx.flags) as service:
            from forenotice.service import tokens

            made = tokens.rotate(service, _call(ctx), _id(tokens.list_all(service).items, wanted), **durations)
    else:
        token_id = _id(ctx.api.items(views.tokens.Token, "tokens"), wanted)
        body = request(views.tokens.TokenRotation, **asked)
        made = ctx.api.post(views.tokens.CreatedToken, "tokens", token_id, "rotate", body=body)
    _show_secret(ctx, made)


@operator(app, "list", OFFLINE, rows=DATABASE)
def list_(ctx: Operator, offline: bool) -> None:
    """List the tokens."""
    if offline:
        with server.service(ctx.flags) as service:
            from forenotice.service import tokens

            listed: Iterable[views.tokens.Token] = tokens.list_all(service).items
    else:
        listed = ctx.api.items(views.tokens.Token, "tokens")
    ctx.out.list(
        listed,
        ("token", "name", "role", "scopes", "from", "created", "last used", "expires", "revoked"),
        lambda token: (
            token.id,
            token.name,
            token.role,
            token.scopes or "all",
            token.networks or "anywhere",
            ctx.out.moment(token.created_at),
            ctx.out.moment(token.last_used_at),
            ctx.out.moment(token.expires_at) or "never",
            ctx.out.moment(token.revoked_at),
        ),
        none="There are no tokens; create one with `forenotice token create NAME --offline`.",
    )


@operator(app, "revoke", argument("token_id"), OFFLINE, commands.YES, changes=True, rows=DATABASE)
def revoke(ctx: Operator, token_id: str, offline: bool, yes: bool) -> None:
    """Revoke a token: it is refused from now on."""
    commands.confirm(f"Revoke token {token_id}?", yes=yes)
    if offline:
        with server.service(ctx.flags) as service:
            from forenotice.service import tokens

            revoked = tokens.revoke(service, _call(ctx), token_id)
    else:
        revoked = ctx.api.delete(views.tokens.Token, "tokens", token_id)
    ctx.out.result(revoked, f"Token {token_id} is revoked.")


def _call(ctx: Operator) -> "Call":
    from forenotice.service import calls

    return calls.Call(actor=server.ACTOR, reason=ctx.reason)


def _durations(asked: Mapping[str, Any]) -> Mapping[str, timedelta]:
    try:
        return {name: read(asked[name]) for name, read in DURATIONS.items() if asked.get(name) is not None}
    except ValueError as error:
        raise errors.RefusedError(str(error)) from None


def _id(tokens: Iterable["views.tokens.Token"], wanted: str) -> str:
    """Of the token with this name or id; of several with one name, the last that is not revoked."""
    found = {token.name: token.id for token in tokens if not token.revoked_at}
    return found.get(wanted, wanted)


def _show_secret(ctx: Operator, made: "views.tokens.CreatedToken") -> None:
    ctx.out.result(made, made.token or "The token was shown when this was first asked for.")
