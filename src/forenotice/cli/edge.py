"""`forenotice edge`: the process on a host that answers its guests, what the service knows of it, its credentials."""

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from forenotice import data_directory, settings, views
from forenotice.cli import commands
from forenotice.cli.cluster import Cluster, cluster_packages
from forenotice.cli.commands import Operator, argument, command, operator, option, switch
from forenotice.cli.output import span
from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.edges import EdgeState
from forenotice.settings import table

if TYPE_CHECKING:
    from forenotice.cluster.connection import Servers
    from forenotice.cluster.keys import Enrolled, Keys

app = commands.Group()


@command(app, "run", make=Cluster, rows=table.EDGE, shared=())
def run(ctx: Cluster) -> None:
    """Answer the guests of a host until SIGTERM."""
    with cluster_packages():
        from forenotice.edge import daemon
    daemon.run(settings.load_edge(ctx.flags, os.environ))


# What the service knows of edges

STATE = option("--state", None, "Only edges in this state.", type=click.Choice([each.value for each in EdgeState]))
REFUSED = switch("--refused/--no-refused", "Only edges that could not read a state, or only the others.")


@operator(app, "list", STATE, REFUSED)
def list_edges(ctx: Operator, **filters: Any) -> None:
    """List the edges, as the service process that responds hears them."""
    some = any(value is not None for value in filters.values())
    ctx.out.list(
        ctx.api.items(views.edges.Edge, "edges", **filters),
        ("host", "state", "version", "last beat", "confirmed", "position", "behind", "refused states"),
        lambda each: (
            each.host,
            each.state,
            each.version,
            _ago(each.last_beat_seconds),
            _ago(each.confirmed_seconds),
            each.position,
            each.behind,
            each.refused or None,
        ),
        none="There are no matching edges." if some else "No host has an edge; see `forenotice edge run -h`.",
    )


@operator(app, "show", commands.HOST)
def show(ctx: Operator, host: str) -> None:
    """Show the edge of a host."""
    found = ctx.api.get(views.edges.Edge, "edges", host)
    told = {"last_beat": _ago(found.last_beat_seconds), "confirmed": _ago(found.confirmed_seconds)}
    hidden = dict.fromkeys(("last_beat_seconds", "confirmed_seconds", "refused"))
    ctx.out.view(found, **told, **hidden, refused_states=found.refused or None)


@operator(app, "forget", commands.HOST, commands.YES, changes=True)
def forget(ctx: Operator, host: str, yes: bool) -> None:
    """Stop waiting for the edge of a host. An edge that still runs registers again with its next beat."""
    commands.confirm(f"Forget the edge of {host}?", yes=yes)
    gone = ctx.api.delete(views.base.Removed, "edges", host)
    ctx.out.result(gone, f"The edge of host {gone.removed} is forgotten; the service no longer waits for it.")


def _ago(seconds: float | None) -> str | None:
    return None if seconds is None else f"{span(timedelta(seconds=seconds))} ago"


# Credentials: made offline, with the directory of keys

HOST = argument("host", "The host's name in the fleet.")
KEYS = option(
    "--keys directory",
    "DIR",
    "The directory that `forenotice cluster init` made.",
    required=True,
    type=click.Path(path_type=Path),
)
OUTPUT = option(
    "--output",
    "FILE",
    "File to write the credentials to, which are a secret; HOST.creds if left out, - for standard output.",
    type=click.Path(path_type=Path, allow_dash=True),
)
SERVERS = [row for row in table.NATS if row.name != "nats_credentials"]
"""The credentials to change accounts with are in the directory of keys."""
STANDARD_OUTPUT = Path("-")


class Credentials(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    host: str
    key: str
    """The public one: so NATS's logs name the edge."""
    file: str = ""
    credentials: str = ""
    """If standard output was asked for."""


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    servers: Sequence[str]
    """Those that refuse the credentials now."""


@command(app, "enrol", HOST, KEYS, OUTPUT, make=Cluster, rows=())
def enrol(ctx: Cluster, host: str, directory: Path, output: Path | None) -> None:
    """Make the credentials of the edge of a host for NATS. They allow that host's subjects only."""
    keys, file = _keys(directory), output or Path(f"{host}.creds")
    if file != STANDARD_OUTPUT and os.path.lexists(file):
        raise errors.ConflictError(f"{file} already exists: remove it, or give another file with --output")
    _hand_over(ctx, keys.enrol(host, SystemClock().now()), file)


@command(
    app,
    "revoke",
    HOST,
    KEYS,
    switch("--old", "Revoke all but the newest credentials, after `forenotice edge rotate --keep-old`."),
    commands.YES,
    make=Cluster,
    rows=SERVERS,
)
def revoke(ctx: Cluster, host: str, directory: Path, old: bool, yes: bool) -> None:
    """Make NATS refuse the credentials of a host and close the connection of its edge.

    The directory of keys records the revocation first. If a NATS server did not confirm it, run the command again.
    """
    keys, servers = _keys(directory), _servers(ctx, directory)
    commands.confirm(f"Revoke {'the old' if old else 'all'} credentials of {host}?", yes=yes)
    told = _revoke(keys, servers, host, old=old)
    ctx.out.result(Revoked(host=host, servers=told), f"Revoked; confirmed by {', '.join(told)}.")


@command(
    app,
    "rotate",
    HOST,
    KEYS,
    OUTPUT,
    switch("--keep-old", "Keep the old credentials valid until `forenotice edge revoke HOST --old`."),
    commands.YES,
    make=Cluster,
    rows=SERVERS,
)
def rotate(ctx: Cluster, host: str, directory: Path, output: Path | None, keep_old: bool, yes: bool) -> None:
    """Make new credentials for a host, and make NATS refuse the old ones.

    With --keep-old the edge stays connected while you install the new ones.
    """
    keys, file = _keys(directory), output or Path(f"{host}.creds")
    servers = None if keep_old else _servers(ctx, directory)
    if servers is not None:
        commands.confirm(f"Revoke the old credentials of {host}?", yes=yes)
    _hand_over(ctx, keys.enrol_anew(host, SystemClock().now()), file)
    if servers is not None:
        _revoke(keys, servers, host, old=True)


def _keys(directory: Path) -> "Keys":
    with cluster_packages():
        from forenotice.cluster.keys import Keys
    return Keys(directory)


def _servers(ctx: Cluster, directory: Path) -> "Servers":
    from forenotice.cluster.connection import Servers

    found = settings.load_nats({**ctx.flags, "nats_credentials": str(directory / "system.creds")}, os.environ)
    return Servers.of(found)


def _hand_over(ctx: Cluster, enrolled: "Enrolled", file: Path) -> None:
    host, key = enrolled.host, enrolled.key
    if file != STANDARD_OUTPUT:
        with commands.using(file, "written"):
            data_directory.write_secret(file, enrolled.credentials)
        there = f"Install this file on {host}, for `edge run --nats-credentials FILE`."
        said = f"The credentials of {host} are in {file}. {there}"
        ctx.out.result(Credentials(host=host, key=key, file=str(file)), said)
    elif ctx.out.json:
        ctx.out.data(Credentials(host=host, key=key, credentials=enrolled.credentials))
    else:
        sys.stdout.write(enrolled.credentials)


def _revoke(keys: "Keys", servers: "Servers", host: str, *, old: bool) -> Sequence[str]:
    from forenotice.cluster.keys import push

    account = keys.revoke(host, SystemClock().now(), except_newest=old)
    try:
        return asyncio.run(push(account, servers))
    except errors.UnavailableError as error:
        again = f"forenotice edge revoke {host}{' --old' if old else ''} --keys {keys.directory}"
        raise errors.UnavailableError(
            f"{keys.directory} records the revocation, but not every NATS server confirmed it: {error.message}; run "
            f"`{again}` with the same --config or --nats"
        ) from None
