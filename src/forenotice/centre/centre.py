"""The service's side of the cluster: a thread with a loop of its own, so that no guest waits for it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from nats.aio.client import Client
from nats.errors import Error as NatsError

from forenotice.centre.intake import Intake
from forenotice.centre.publisher import Publisher
from forenotice.cluster import streams
from forenotice.cluster.connection import Servers, close, connect, words
from forenotice.cluster.subjects import CENTRE_INBOX
from forenotice.core import errors
from forenotice.failures import Failures
from forenotice.logs import log
from forenotice.runtime import Started
from forenotice.service.service import Service

NAME = "cluster"
PAUSE_SECONDS = 0.5
"""After a failure."""
LOOK_SECONDS = 1.0
"""Between two looks for lost edges, and for what another process has written without a notification."""
JOIN_SECONDS = 5.0
JS_SECONDS = 2.0
END_SECONDS = 2.0


class Centre:
    def __init__(self, service: Service, servers: Servers) -> None:
        self._service = service
        self._servers = servers
        self._loop = asyncio.new_event_loop()
        self._thread: Started | None = None
        self._stopping = asyncio.Event()
        self._client: Client | None = None

    def start(self) -> None:
        self._thread = self._service.runtime.start_thread(self._run, NAME)

    def stop(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)
        self._service.liveness.end(NAME)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()

    async def _main(self) -> None:
        stopped = asyncio.create_task(self._stopping.wait())
        beating = asyncio.create_task(self._beat())
        # Also while NATS is away.
        watching = asyncio.create_task(self._insist("edges", self._watch))
        try:
            while not stopped.done():
                serving = asyncio.create_task(self._serve())
                await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
                serving.cancel()
                with suppress(asyncio.CancelledError):
                    await serving
                if not stopped.done():
                    await asyncio.wait({stopped}, timeout=PAUSE_SECONDS)
        finally:
            beating.cancel()
            watching.cancel()
            await asyncio.wait({beating, watching}, timeout=END_SECONDS)

    async def _serve(self) -> None:
        """With one client, until it is lost."""
        client, until_lost = await connect(self._servers, "forenotice serve", CENTRE_INBOX)
        wake = _Wake(self._loop)
        js = client.jetstream(timeout=JS_SECONDS)
        publisher, intake = Publisher(self._service, client, js), Intake(self._service, client, js)

        async def listen() -> None:
            await intake.listen()
            # Only from now on does silence mean anything.
            self._client = client

        async def ensure() -> None:
            await streams.ensure(js, _replicas(client))

        self._service.follow_growth(wake)
        works = [
            asyncio.create_task(work)
            for work in (
                self._insist("publisher", ensure, lambda: self._publish(publisher, wake)),
                self._insist("intake", listen, ensure, intake.bind, intake.store),
                until_lost(),
            )
        ]
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._service.unfollow_growth(wake)
            for work in works:
                work.cancel()
            # A thread that renews the lease would take it again after it was given up.
            await asyncio.wait(works, timeout=END_SECONDS)
            if client.is_connected:
                with suppress(errors.ForenoticeError):
                    await publisher.stop()
            await close(client)

    async def _beat(self) -> None:
        while True:
            self._service.liveness.beat(NAME)
            await asyncio.sleep(LOOK_SECONDS)

    async def _publish(self, publisher: Publisher, wake: "_Wake") -> None:
        while True:
            wake.clear()
            await publisher.step()
            await wake.wait_for(LOOK_SECONDS)

    async def _watch(self) -> None:
        while True:
            is_connected = self._client is not None and self._client.is_connected
            await asyncio.to_thread(self._service.edges.watch, is_connected)
            await asyncio.sleep(LOOK_SECONDS)

    async def _insist(self, what: str, *steps: Callable[[], Awaitable[object]]) -> None:
        """For ever, all steps again after each failure: those of NATS and of the store are to be expected."""
        failures = Failures()
        while True:
            try:
                for step in steps:
                    await step()
            except (NatsError, errors.ForenoticeError, TimeoutError, OSError) as error:
                if failures.again(repr(error)):
                    log.warning(
                        "NATS or the store failed; it is retried", action=f"cluster.{what}", reason=words(error)
                    )
            except Exception:
                if failures.again(what):
                    log.exception("A step failed unexpectedly; it is retried", action=f"cluster.{what}")
            await asyncio.sleep(PAUSE_SECONDS)


class _Wake(threading.Event):
    """Set by any thread, waited for on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._set = asyncio.Event()

    def set(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set.set)

    def clear(self) -> None:
        self._set.clear()

    async def wait_for(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._set.wait(), seconds)


def _replicas(client: Client) -> int:
    """Three where there are three servers; a single server is for trials."""
    return streams.REPLICAS if len(client.servers) >= streams.REPLICAS else 1
