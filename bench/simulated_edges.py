"""A program with edges by the thousand: each has all of an edge but listeners and a disk."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from forenotice import logs, settings
from forenotice.edge.daemon import Edge
from forenotice.edge.follower import Follower
from forenotice.edge.state_file import StateFile
from forenotice.metadata.options import Options
from forenotice.metadata.published import PublishedFleet
from forenotice.metadata.server import new_event_loop
from forenotice.publication import Publication
from forenotice.runtime import Runtime
from forenotice.settings import EdgeSettings, LogFormat, LogLevel

AT_ONCE = 50
"""Edges that connect at the same time."""
LOOK_SECONDS = 0.02


class NotedFleet(PublishedFleet):
    """Notes when it began to show what it shows."""

    since = 0.0
    is_announced = False
    """Whether every scope has an event."""

    def put_everything(self, published: Sequence[Publication]) -> None:
        super().put_everything(published)
        announced = bool(published) and all(each.document and each.document.events for each in published)
        if announced is not self.is_announced or not self.since:
            self.is_announced, self.since = announced, time.monotonic()


class NoFile(StateFile):
    """A thousand hosts do not share one disk."""

    def read(self) -> tuple[bytes, datetime] | None:
        return None

    def write(self, data: bytes) -> None: ...


class SimulatedEdge(Edge):
    def __init__(self, settings: EdgeSettings, options: Options, runtime: Runtime) -> None:
        super().__init__(settings, options, runtime)
        self.fleet = NotedFleet()
        self._follower = Follower(
            settings.host, self.fleet, NoFile(settings.directory), runtime.clock, self.server.keep_to
        )

    @property
    def is_connected(self) -> bool:
        return self._link.connected

    async def simulate(self) -> None:
        """What `run` does without listeners."""
        await asyncio.gather(
            self._link.run(self._follower.offer, self._connected), self._follower.run(), self._read(), self._beat()
        )


async def _run(nats: Sequence[str], credentials: Sequence[Path]) -> None:
    """For each line that is read, says with one when it has become true of all edges."""
    edges, running = [], []
    runtime, shared = Runtime(), settings.load_edge({"edge_host": "host", "nats": nats}, {})
    for number, file in enumerate(credentials, 1):
        own = msgspec.structs.replace(shared, host=file.stem, nats_credentials=file)
        edges.append(SimulatedEdge(own, Options.of(own), runtime))
        running.append(asyncio.create_task(edges[-1].simulate()))
        if number % AT_ONCE == 0:
            await _until(edges, lambda each: each.is_connected)
    asked: dict[str, Callable[[SimulatedEdge], bool]] = {
        "connected": lambda each: each.is_connected,
        "shown": lambda each: each.fleet.since > 0,
        "announced": lambda each: each.fleet.is_announced,
    }
    while line := await asyncio.to_thread(sys.stdin.readline):
        await _until(edges, asked[line.strip()])
        print(json.dumps([each.fleet.since for each in edges]), flush=True)
    for task in running:
        task.cancel()


async def _until(edges: Sequence[SimulatedEdge], holds: Callable[[SimulatedEdge], bool]) -> None:
    while not all(map(holds, edges)):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.simulated_edges", description=__doc__)
    parser.add_argument("--nats", action="append", required=True)
    parser.add_argument("--credentials", type=Path, required=True, help="a directory with HOST.creds of each")
    given = parser.parse_args()
    logs.configure(LogLevel.ERROR, LogFormat.CONSOLE)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(given.nats, sorted(given.credentials.glob("*.creds"))))


if __name__ == "__main__":
    main()
