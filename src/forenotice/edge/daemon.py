"""`forenotice edge run`: assembles an edge and runs it. Loads neither Click nor Rich, and NATS only once it serves."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from forenotice import cluster, data_directory, garbage_collection, logs
from forenotice import settings as all_settings
from forenotice.cluster import messages
from forenotice.cluster.subjects import Subjects
from forenotice.core import errors
from forenotice.core.timing import Timing
from forenotice.edge.follower import Follower
from forenotice.edge.link import Link, LinkError
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
READ_SECONDS = 60.0
"""The state is read anew this often, whatever else has come: a message may have been lost."""
RETRY_SECONDS = 1.0
BEAT_SECONDS = 10.0
GET_SECONDS = 2.0
END_LONG_POLLS_SECONDS = 2.0
"""A guest that is paused or moved polls again soon after it is back: its long polls do not last longer meanwhile."""


def main(arguments: Sequence[str]) -> int:
    parser = table.parser("forenotice edge run", "Answer the guests of a host until SIGTERM.", table.EDGE)
    flags = vars(parser.parse_args(arguments))
    try:
        cluster.require()
        run(all_settings.load_edge(flags, os.environ))
    except errors.ForenoticeError as error:
        sys.stderr.write(f"forenotice: {error.message}\n")
        return USAGE if isinstance(error, errors.RefusedError) else FAILED
    return DONE


def run(settings: EdgeSettings) -> None:
    os.umask(0o077)
    logs.configure(settings.log_level, settings.log_format)
    garbage_collection.raise_threshold()
    options = Options.of(settings)
    with (
        data_directory.held(settings.directory),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(Edge(settings, options, Runtime()).run())
        log.info("Stopped", action="edge.stopped")


class Edge:
    """Made and run on a loop."""

    def __init__(self, settings: EdgeSettings, options: Options, runtime: Runtime) -> None:
        self._settings = settings
        self._options = options
        self._runtime = runtime

    async def run(self) -> None:
        settings, options = self._settings, self._options
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stopping.set)
        self._subjects = subjects = Subjects.of(settings.host)
        self._published = published = PublishedFleet()
        published.loaded = False
        self._link = link = Link(self._servers, f"forenotice edge of {settings.host}", subjects)
        self._follower = Follower(
            settings.host,
            published,
            StateFile(settings.directory),
            self._runtime.clock,
            lambda timing: self._server.keep_to(timing),
        )
        self._server = server = MetadataServer(
            published=published,
            upstream=EdgeUpstream(link, self._follower, subjects, options.limits, self._runtime.new_id),
            clock=self._runtime.clock,
            timing=Timing(),
            options=options,
            monotonic=self._runtime.monotonic,
        )
        self._follower.load()
        server.start(settings.metadata)
        status = StatusServer(self._follower, link, server)
        metrics = await status.start(settings.edge_metrics) if settings.edge_metrics else None
        log.info(
            "Serving",
            action="edge.started",
            host=settings.host,
            metadata=[str(each) for each in server.listening],
            metrics=None if metrics is None else str(metrics),
            position=self._follower.fence.position,
        )
        self._read_now = asyncio.Event()
        tasks = [
            loop.create_task(work)
            for work in (
                link.run(self._follower.offer, self._read_now.set),
                self._follower.run(),
                self._read(),
                self._beat(),
                self._tell_age(),
            )
        ]
        stopped = loop.create_task(stopping.wait())
        try:
            await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            log.info("Stopping", action="edge.stopping")
            await server.stop()
            await status.stop()
            for task in (stopped, *tasks):
                task.cancel()
            await link.close()
        for task in tasks:
            # None of them ends by itself: this tells why one did.
            if task.done() and not task.cancelled():
                task.result()

    def _servers(self) -> "Servers":
        from forenotice.cluster.connection import Servers

        return Servers.of(self._settings)

    async def _read(self) -> None:
        """Constant work: whatever has been published, and whoever told us of it."""
        failures = Failures()
        while True:
            if not self._link.connected:
                await self._read_now.wait()
            self._read_now.clear()
            pause = READ_SECONDS * self._jitter()
            try:
                data = await self._link.get_state(GET_SECONDS)
            except LinkError as error:
                pause = RETRY_SECONDS
                if failures.again(error.message):
                    log.warning("The state cannot be read", action="edge.unread", reason=error.message)
            else:
                if failures.over():
                    log.info("The state can be read", action="edge.read")
                if data is not None:
                    self._follower.offer(data)
                elif self._follower.state is None:
                    pause = RETRY_SECONDS
            await _wait(self._read_now, pause)

    async def _beat(self) -> None:
        shown = self._follower.shown
        while True:
            shown.clear()
            await self._link.send(self._subjects.beat, messages.encode(self._follower.beat()))
            state = self._follower.state
            started = state.started if state else frozenset[str]()
            await _wait(shown, 1.0 if started or not self._link.connected else BEAT_SECONDS * self._jitter())

    async def _tell_age(self) -> None:
        """Once a second; and long polls of VMs that are being acted on end soon."""
        turns = 0
        while True:
            age = self._follower.age
            is_stale = age is not None and age > self._settings.stale_after
            self._server.add_headers(b"Age: %d\r\n" % (age // timedelta(seconds=1)) if age and is_stale else b"")
            turns += 1
            if self._follower.state and turns % END_LONG_POLLS_SECONDS == 0:
                self._published.end_long_polls(self._follower.state.started)
            await asyncio.sleep(1.0)

    def _jitter(self) -> float:
        """Between three quarters and one: edges that started together do not stay together."""
        return 0.75 + int(self._runtime.new_id()[:4], 16) / 65536 / 4


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
