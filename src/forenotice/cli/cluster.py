"""`forenotice cluster`: NATS, through which the service reaches its edges."""

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from forenotice import control_socket, settings
from forenotice.cli import commands
from forenotice.cli.commands import UsageError, argument, command, option
from forenotice.cli.output import Output
from forenotice.cli.server import packages
from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.settings import table

if TYPE_CHECKING:
    from forenotice.cluster.check import Checked

app = commands.Group()


cluster_packages = partial(packages, "cluster")


class Cluster:
    """What a command works with."""

    def __init__(self, flags: Mapping[str, object], *, json: bool = False) -> None:
        self.flags = flags
        self.out = Output(json=json)


class MadeKeys(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    servers: str
    """What every server includes in its configuration."""
    service: str
    """The credentials of `forenotice serve`."""


@command(
    app,
    "init",
    argument("directory", "A new or empty directory for the keys.", metavar="DIR", type=click.Path(path_type=Path)),
    make=Cluster,
    rows=(),
)
def init(ctx: Cluster, directory: Path) -> None:
    """Make the keys with which the service and its edges prove to NATS who they are.

    Anyone who can read them can pose as the service and as every edge: keep them on a machine that runs neither.
    """
    with cluster_packages():
        from forenotice.cluster.keys import Keys
    with commands.using(directory, "made"):
        keys = Keys.make(directory, SystemClock().now())
    made = MadeKeys(
        directory=str(directory), servers=str(directory / "servers.conf"), service=str(keys.centre_credentials)
    )
    ctx.out.result(
        made,
        f"The keys are in {directory}. Back up this directory, and let nobody else read it.",
        "",
        f"  {made.servers}  include it in the configuration of every NATS server",
        f"  {made.service}  for `forenotice serve --nats-credentials FILE`",
        "",
        f"Next, for each host: forenotice edge enrol HOST --keys {directory}",
    )


WORDS = {True: "right", False: "wrong", None: "unknown"}
STYLES = {True: "green", False: "bold red", None: "yellow"}


@command(
    app,
    "check",
    option(
        "--system-credentials system",
        "FILE",
        "File with the credentials of NATS's system account, to check the servers themselves.",
        type=click.Path(path_type=Path),
    ),
    make=Cluster,
    rows=table.NATS,
)
def check(ctx: Cluster, system: Path | None) -> int:
    """Check NATS with the service's credentials, and say what is wrong and what to do. Exits with 1 if something is.

    It checks streams, replicas, waiting messages, limits and clocks; with --system-credentials also the servers.
    """
    found = settings.load_nats(ctx.flags, os.environ)
    for file in filter(None, (found.nats_credentials, found.nats_ca, found.nats_certificate, found.nats_key, system)):
        with commands.using(file, "read", UsageError):
            file.read_bytes()
    with cluster_packages():
        from forenotice.cluster import check as checking
        from forenotice.cluster.connection import Servers
    checked = asyncio.run(checking.check(Servers.of(found), system, SystemClock()))
    if ctx.out.json:
        ctx.out.data(checked)
    else:
        _show(ctx.out, checked)
    return 0 if checked.ok else 1


def _show(out: Output, checked: "Checked") -> None:
    """What is right in short: a part of something else is shown only if it is not."""
    shown = [finding for finding in checked.findings if not finding.ok or "." not in finding.id]
    width = max(len(finding.id) for finding in shown)
    for finding in shown:
        out.line(f"{WORDS[finding.ok]:<7}", f"{finding.id:<{width}} ", finding.sentence, style=STYLES[finding.ok])
        if finding.remedy:
            out.line(" " * (width + 9), f"To do: {finding.remedy}.")
    counts = [(word, sum(finding.ok is ok for finding in checked.findings)) for ok, word in WORDS.items()]
    out.line()
    out.line(f"{len(checked.findings)} checks: {', '.join(f'{count} {word}' for word, count in counts if count)}.")


@command(app, "demo", make=Cluster, rows=table.CLUSTER_DEMO, shared=())
def demo(ctx: Cluster) -> None:
    """Run NATS, PostgreSQL, two services and three edges on this machine until Ctrl-C, and print what to try.

    Linux only. DATA/cluster/cluster.json has the processes and their addresses; each demo starts afresh.
    """
    found = settings.load_cluster_demo(ctx.flags, os.environ)
    with packages("server,cluster,demo"):
        from forenotice.cluster import demo as running
        from forenotice.cluster import tour
    for other in found.others:
        if control_socket.is_in(other) and control_socket.answers(other):
            raise errors.ConflictError(
                f"a `forenotice serve` runs in {other}, and commands would reach it instead of the cluster: stop it "
                "first, or give another directory with --data"
            )
    is_usual = found.data == table.DATA.read(table.DATA.default or "")
    variables = "" if is_usual else f"{table.DATA.variable}={shlex.quote(str(found.data.absolute()))} "

    def say(line: str) -> None:
        # The terminal may have been closed.
        with suppress(OSError):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    with commands.using(found.directory, "used"):
        running.run(found, say, lambda cluster, link: say(tour.text(cluster, link, variables)))
