"""The real endpoint on a loop in a thread of its own, for callers that are not asynchronous."""

import asyncio
import functools
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from forenotice.clock import Clock
from forenotice.core import errors
from forenotice.core.timing import Timing
from forenotice.emulator.active_faults import Faults
from forenotice.emulator.faults import On
from forenotice.emulator.interceptor import FaultInterceptor
from forenotice.emulator.request_log import RequestLog
from forenotice.metadata.endpoint import Counters
from forenotice.metadata.options import Limits, Options
from forenotice.metadata.published import LoopPublisher, PublishedFleet
from forenotice.metadata.responses import Response
from forenotice.metadata.server import MetadataServer, new_event_loop
from forenotice.metadata.upstream import GuestService, ServiceUpstream
from forenotice.publication import Publication
from forenotice.runtime import Runtime, Started
from forenotice.settings import Address, Listener
from forenotice.wire.versions import Version

T = TypeVar("T")

LIMITS = Limits(connections=400)
"""A test's process keeps the limit of descriptors that it has."""
GRACE = 0.5
"""Seconds for responses that are in progress when it stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollPreview:
    """The response that a poll would get now."""

    status: int | None
    """None: none, the connection would be reset."""
    body: bytes
    faults: str | None
    """Those that it would meet, joined by plus signs."""


class Endpoint:
    """Its methods may be called from any thread but the loop's."""

    def __init__(
        self, *, clock: Clock, timing: Timing, faults: Faults, requests: RequestLog, as_vm: str, runtime: Runtime
    ) -> None:
        self._clock = clock
        self._timing = timing
        self._runtime = runtime
        self._faults = faults
        self._intercept = functools.partial(FaultInterceptor, faults=faults, requests=requests)
        self._options = Options(limits=LIMITS, rate=None, burst=None, default_vm=as_vm)
        self._loop = new_event_loop()
        self._thread: Started | None = None
        self._server: MetadataServer | None = None
        self.published = PublishedFleet()
        self.publisher = LoopPublisher(self.published, self._loop)
        faults.attach(self.published, self._loop)

    def start(self, guests: GuestService, at: Address, names: Collection[str] = ()) -> Address:
        """Gives the address, with the port that the system chose; `names` are allowed in Host."""
        self._options = replace(self._options, names=frozenset((at.host.lower(), *names)))
        self._thread = self._runtime.start_thread(self._loop.run_forever, "emulator-endpoint")
        try:
            return self.call(lambda: self._start(guests, at))
        except BaseException as error:
            self._end()
            if isinstance(error, errors.ConflictError):
                message = error.message.replace("with --metadata", "with --port or --metadata")
                raise errors.ConflictError(message) from None
            raise

    def open(self, vm: str, host: str) -> Address:
        """A listener at which every caller is this VM."""
        return self.call(lambda: _address(self._running.open(Listener(at=Address(host=host, port=0), vm=vm))))

    @property
    def counters(self) -> Counters:
        return self._running.counters

    def polls_under_way(self) -> list[tuple[str, float]]:
        return self.call(lambda: [poll for each in self._faults.interceptors if (poll := each.poll_under_way)])

    def preview_poll(self, vm: str, version: Version) -> PollPreview:
        return self.call(lambda: self._preview_poll(vm, version))

    def _preview_poll(self, vm: str, version: Version) -> PollPreview:
        guest = self.published.by_name.get(vm)
        if guest is None or guest.scope is None:
            raise errors.NotFoundError(f"there is no VM {vm[:80]!r}")
        applied = self._faults.preview(On.POLLS)
        response: Response | None = Response(200, guest.scope.render(version))
        missing = 0
        if applied.instead is not None:
            response = applied.instead.response()
        elif applied.changes:
            response, missing = applied.change(guest.scope.document, version, None)
        if response is None:
            return PollPreview(status=None, body=b"", faults=applied.names)
        body = response.rest.partition(b"\r\n\r\n")[2]
        return PollPreview(status=response.status, body=body[: len(body) - missing], faults=applied.names)

    def show(self, scope: Publication, caller: str) -> None:
        """After all that was published before; callers are that VM from the same moment on."""

        def put() -> None:
            self.published.put_scopes([scope])
            self._running.take_callers_for(caller)

        self._loop.call_soon_threadsafe(put)

    def refresh(self) -> None:
        """After the clock has been moved; and all that was published before is shown when this returns."""
        self.call(self._running.refresh)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._running.stop(GRACE), self._loop).result()
        self._end()

    def call(self, work: Callable[[], T]) -> T:
        """Do it on the loop."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result()

    @property
    def _running(self) -> MetadataServer:
        assert self._server is not None
        return self._server

    def _start(self, guests: GuestService, at: Address) -> Address:
        self._server = MetadataServer(
            published=self.published,
            upstream=ServiceUpstream(guests, self._options.limits, start_thread=self._runtime.start_thread),
            clock=self._clock,
            timing=self._timing,
            options=self._options,
            intercept=self._intercept,
            monotonic=self._runtime.monotonic,
        )
        self._server.start([Listener(at=at)])
        return _address(self._server.bound[0])

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join()
        self._loop.close()


def _address(place: object) -> Address:
    assert isinstance(place, Address)
    return place
