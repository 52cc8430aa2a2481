"""The processes of `forenotice cluster demo`, as `cluster.json` records them: who they are, where, and how they end."""

import shutil
import signal
import time
from collections.abc import Mapping

import msgspec

from forenotice.programs.background import Process

FILE = "cluster.json"
POSTGRESQL = "postgresql"
ENDING = (("edge-", "serve-"), ("nats-",), (POSTGRESQL,))
"""The last to end are those that others need."""
STOP_SECONDS = 35.0
"""A service takes at most 28 to stop."""


class Member(Process, frozen=True, kw_only=True):
    """A process of the cluster."""

    role: str
    """`nats-1`, `postgresql`, `serve-1`, `edge-host-a` and so on; in the demo's directory, its own has this name."""
    argv: tuple[str, ...]
    """How it was started, and can be started again by hand."""
    addresses: Mapping[str, str] = {}
    """By who uses them: `clients`, `monitoring`, `operators`, `guests`, `metrics`."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """What `cluster.json` says; a process is there before it begins."""

    directory: str
    scratch: str
    """PostgreSQL's directory, whose path has to be short, and where another user has to get to."""
    speed: float
    ready: bool = False
    leader: str = ""
    """Which NATS server leads the stream of approvals; as long as the demo runs, it keeps this up to date."""
    processes: tuple[Member, ...] = ()

    def member(self, role: str) -> Member:
        return next(each for each in self.processes if each.role == role)

    def addresses(self, kind: str, roles: str) -> list[str]:
        return [each.addresses[kind] for each in self.processes if each.role.startswith(roles)]


def end(cluster: Cluster) -> None:
    """End every process of a cluster; safe to repeat. Files stay, except PostgreSQL's."""
    for roles in ENDING:
        group = [each for each in cluster.processes if each.role.startswith(roles)]
        for each in group:
            # PostgreSQL would wait for its clients at SIGTERM; any of them may be stopped.
            each.send(signal.SIGINT if each.role == POSTGRESQL else signal.SIGTERM)
            each.send(signal.SIGCONT)
        deadline = time.monotonic() + STOP_SECONDS
        for each in group:
            if not each.wait(max(0, deadline - time.monotonic())):
                each.send(signal.SIGKILL)
                each.wait(STOP_SECONDS)
    shutil.rmtree(cluster.scratch, ignore_errors=True)
