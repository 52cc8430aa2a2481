"""`forenotice edge run`: assembles an edge and runs it. Loads neither Click nor Rich, and NATS only once it serves."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forenotice import cluster, data_directory, garbage_collection, logs
from forenotice import settings as all_settings
from forenotice.cluster import messages
from forenotice.cluster.subjects import Subjects
from forenotice.core import errors
from forenotice.core.timing import Timing
from forenotice.edge.follower import Follower
from forenotice.edge.link import Link, LinkError, wait
from forenotice.edge.metrics import StatusServer
from forenotice.edge.state_file import StateFile
from forenotice.edge.upstream import EdgeUpstream
from forenotice.failures import Failures
from forenotice.logs import log
from forenotice.metadata.options import Options
from forenotice.metadata.published import PublishedFleet
from forenotice.metadata.server import MetadataServer, new_event_loop
from forenotice.runtime import Runtime
from forenotice.settings import EdgeSettings, table

if TYPE_CHECKING:
    from forenotice.cluster.connection import Servers

DONE, FAILED, USAGE = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """All in seconds."""

    read: float = 60.0
    """The state is read anew this often, whatever else has come: a message may have been lost."""
    retry: float = 1.0
    timeout: float = 2.0
    beat: float = 10.0
    started: float = 1.0
    """Between beats while a VM of the host is being acted on, or there is no state yet."""
    long_polls: float = 2.0
    """How long those of such VMs last: a guest that was paused or moved polls again soon after it is back."""
    age: float = 1.0
    """Between two looks at how old the state is, for the header `Age`."""


USUAL = Pace()


def main(arguments: Sequence[str]) -> int:
    parser = table.parser("forenotice edge run", "Answer the guests of a host until SIGTERM.", table.EDGE)
    flags = vars(parser.parse_args(arguments))
    try:
        run(all_settings.load_edge(flags, os.environ))
    except errors.ForenoticeError as error:
        sys.stderr.write(f"forenotice: {error.message}\n")
        return USAGE if isinstance(error, errors.RefusedError) else FAILED
    return DONE


def run(settings: EdgeSettings) -> None:
    cluster.require()
    os.umask(0o077)
    logs.configure(settings.log_level, settings.log_format)
    garbage_collection.raise_threshold()
    options = Options.of(settings)
    with (
        data_directory.held(settings.directory, by="edge run"),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(_serve(settings, options))
        log.info("Stopped", action="edge.stopped")


async def _serve(settings: EdgeSettings, options: Options) -> None:
    stopping = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    await Edge(settings, options, Runtime()).run(stopping)


class Edge:
    """Made and run on a loop."""

    def __init__(self, settings: EdgeSettings, options: Options, runtime: Runtime, pace: Pace = USUAL) -> None:
        self._settings = settings
        self._runtime = runtime
        self._pace = pace
        self._subjects = Subjects.of(settings.host)
        self.published = PublishedFleet()
        self.published.loaded = False
        self._follower = Follower(
            settings.host,
            self.published,
            StateFile(settings.directory),
            runtime.clock,
            lambda timing: self.server.keep_to(timing),
        )
        self._link = Link(self._servers, f"forenotice edge of {settings.host}", self._subjects)
        self.server = MetadataServer(
            published=self.published,
            upstream=EdgeUpstream(self._link, self._follower, self._subjects, options.limits, runtime.new_id),
            clock=runtime.clock,
            timing=Timing(),
            options=options,
            monotonic=runtime.monotonic,
        )
        self.status = StatusServer(self._follower, self._link, self.server)
        self._read_now = asyncio.Event()

    async def run(self, stopping: asyncio.Event) -> None:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stopping.wait())]
        try:
            self._follower.load()
            self.server.start(self._settings.metadata)
            await self.status.start(self._settings.edge_metrics)
            log.info(
                "Serving",
                action="edge.started",
                host=self._settings.host,
                metadata=[str(each) for each in self.server.listening],
                metrics=str(self.status.at),
                position=self._follower.fence.position,
            )
            works = (
                self._link.run(self._follower.offer, self._connected),
                self._follower.run(),
                self._read(),
                self._beat(),
                self._show_age(),
                self._end_long_polls(),
            )
            tasks += [asyncio.create_task(work) for work in works]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            log.info("Stopping", action="edge.stopping")
        finally:
            await self.server.stop()
            await self.status.stop()
            await cluster.cancel(tasks)
        for task in done:
            # None of the works ends by itself: this raises what ended one.
            task.result()

    def _servers(self) -> "Servers":
        from forenotice.cluster.connection import Servers

        return Servers.of(self._settings)

    def _connected(self) -> None:
        # What was polled meanwhile comes first: with the beat, the service takes silence for silence again.
        self.server.tell_polls()
        self._follower.news.set()
        self._read_now.set()

    async def _read(self) -> None:
        """Constant work, whatever was published and whether or not the message arrived."""
        failures = Failures()
        while True:
            if not self._link.connected:
                await self._read_now.wait()
            self._read_now.clear()
            pause = self._pace.read * self._jitter()
            try:
                data = await self._link.get_state(self._pace.timeout)
            except LinkError as error:
                pause = self._pace.retry
                if failures.again(error.message):
                    log.warning("The state cannot be read", action="edge.unread", reason=error.message)
            else:
                if failures.over():
                    log.info("The state can be read", action="edge.read")
                if data is not None:
                    self._follower.offer(data)
                elif self._follower.state is None:
                    pause = self._pace.retry
            await wait(self._read_now, pause)

    async def _beat(self) -> None:
        while True:
            self._follower.news.clear()
            # An edge that cannot say who polls counts as lost: else its guests would count as silent.
            is_mute = self.server.is_mute
            if not is_mute:
                await self._link.send(self._subjects.beat, messages.encode(self._follower.beat()))
            # One that has no state yet is unknown to a service that has just started.
            often = is_mute or self._follower.started or self._follower.state is None
            pause = self._pace.started if often else self._pace.beat * self._jitter()
            await wait(self._follower.news, pause)

    async def _show_age(self) -> None:
        while True:
            age = self._follower.age
            is_stale = age is not None and age > self._settings.stale_after
            self.server.add_headers(b"Age: %d\r\n" % age.total_seconds() if age and is_stale else b"")
            await asyncio.sleep(self._pace.age)

    async def _end_long_polls(self) -> None:
        while True:
            self.published.end_long_polls(self._follower.started)
            await asyncio.sleep(self._pace.long_polls)

    def _jitter(self) -> float:
        """Between three quarters and one: edges that started together do not stay together."""
        return 0.75 + int(self._runtime.new_id()[:4], 16) / 65536 / 4
