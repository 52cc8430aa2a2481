"""`forenotice token`: bearer tokens of operators."""

from collections.abc import Iterable
from typing import Annotated

import typer

from forenotice.cli import offline
from forenotice.cli.api import View
from forenotice.cli.session import Session, Yes, command
from forenotice.cli.usage import UsageError
from forenotice.core.roles import Role
from forenotice.settings import table

app = typer.Typer(help="Tokens of operators: create, list, rotate, revoke.", no_args_is_help=True)

Offline = Annotated[
    bool, typer.Option("--offline", help="Work on the database itself: for a lost token, and for a first start.")
]
WHERE = (table.DATABASE, table.OF_DEMO)


@command(app, "create", changes=True, extra=WHERE)
def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is.", show_default=False)],
    role: Annotated[
        Role | None,
        typer.Option("--role", help="What it may do; with --offline, admin if left out.", show_default=False),
    ] = None,
    scopes: Annotated[
        str | None,
        typer.Option(
            "--scopes",
            metavar="SCOPES",
            help="For whose VMs, groups and events, such as web-*,vm:db: needed for a tenant, possible for a viewer.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="How long it lasts, such as 30d or never; 90d if left out."),
    ] = None,
    networks: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="NETWORK", help="Network to use it from, such as 10.0.0.0/8; may be repeated."),
    ] = None,
    off_line: Offline = False,
) -> None:
    """Make a token, and print it this once."""
    if role is None and not off_line:
        raise UsageError(f"say what it may do: --role {', '.join(Role)}")
    asked: dict[str, object] = {"name": name, "role": role or Role.ADMIN, "scopes": scopes}
    asked |= _given(expires_in=expires, networks=networks)
    if off_line:
        made = offline.create_token(session.flags, asked, session.reason)
    else:
        made = session.api.post("tokens", body=asked)
    _show_once(session, made)


@command(app, "rotate", changes=True, extra=WHERE)
def rotate(
    session: Session,
    wanted: Annotated[str, typer.Argument(metavar="TOKEN", help="Its name or id.", show_default=False)],
    overlap: Annotated[
        str | None,
        typer.Option(
            "--overlap", metavar="TIME", help="How long the old secret still works, up to 7d; 1h if left out."
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="TIME",
            help="How long it lasts from now, such as 30d or never; the same as before if left out.",
        ),
    ] = None,
    off_line: Offline = False,
) -> None:
    """Give a token a new secret, and print it this once."""
    asked = _given(overlap=overlap, expires_in=expires)
    if off_line:
        made = offline.rotate_token(
            session.flags, _id(offline.list_tokens(session.flags), wanted), asked, session.reason
        )
    else:
        made = session.api.post("tokens", _id(session.api.items("tokens"), wanted), "rotate", body=asked)
    _show_once(session, made)


@command(app, "list", extra=WHERE)
def list_(session: Session, off_line: Offline = False) -> None:
    """List the tokens."""
    tokens = offline.list_tokens(session.flags) if off_line else list(session.api.items("tokens"))
    if session.out.json:
        session.out.data(tokens)
        return
    session.out.table(
        ("token", "name", "role", "scopes", "from", "made", "last used", "expires", "revoked"),
        (
            (
                token["id"],
                token["name"],
                token["role"],
                token["scopes"] or "all",
                token["networks"] or "anywhere",
                session.out.moment(token["created_at"]),
                session.out.moment(token["last_used_at"]),
                session.out.moment(token["expires_at"]) or "never",
                session.out.moment(token["revoked_at"]),
            )
            for token in tokens
        ),
        none="There are no tokens; make one with `forenotice token create NAME --offline`.",
    )


@command(app, "revoke", changes=True, extra=WHERE)
def revoke(
    session: Session,
    token_id: Annotated[str, typer.Argument(metavar="TOKEN_ID", show_default=False)],
    off_line: Offline = False,
    yes: Yes = False,
) -> None:
    """Take a token back: it is refused from now on."""
    session.confirm(f"Revoke token {token_id}?", yes=yes)
    revoked: View = (
        offline.revoke_token(session.flags, token_id, session.reason)
        if off_line
        else session.api.delete("tokens", token_id)
    )
    if session.out.json:
        session.out.data(revoked)
    else:
        session.out.line(f"Token {token_id} is revoked.")


def _id(tokens: Iterable[View], wanted: str) -> str:
    """Of the token that is meant by its name or its id; of several of one name, the last that is not revoked."""
    found = {token["name"]: token["id"] for token in tokens if not token["revoked_at"]}
    return str(found.get(wanted, wanted))


def _given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value}


def _show_once(session: Session, made: View) -> None:
    if session.out.json:
        session.out.data(made)
    else:
        session.out.line(made["token"] or "The token was shown when this was first asked for.")
