"""`forenotice cluster`: NATS, through which the service reaches its edges."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from forenotice.cli import commands
from forenotice.cli.commands import argument, command
from forenotice.cli.output import Output
from forenotice.clock import SystemClock
from forenotice.core import errors

app = commands.Group()


@contextmanager
def cluster_packages() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "forenotice":
            raise
        raise errors.RefusedError(
            f"this needs the cluster's packages, but {error.name} is not installed: pip install 'forenotice[cluster]'"
        ) from None


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
    argument("directory", "Where to; a new or an empty one.", metavar="DIR", type=click.Path(path_type=Path)),
    make=Cluster,
    rows=(),
)
def init(ctx: Cluster, directory: Path) -> None:
    """Make the keys by which NATS knows the service and its edges.

    Whoever can read them can be the service and every edge: keep the directory where no service and no edge runs.
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
        f"The keys are in {directory}. Back it up, and let nobody read it.",
        "",
        f"  {made.servers}  to be included in the configuration of every NATS server",
        f"  {made.service}  for `forenotice serve --nats-credentials FILE`",
        "",
        f"Next, for each host: forenotice edge enrol HOST --keys {directory}",
    )
