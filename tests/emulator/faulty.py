"""The real endpoint with a fault interceptor, and a clock that can be moved."""

import contextlib
import functools
from collections.abc import Iterator
from datetime import datetime, timedelta

from tests.metadata.running import FLEET, UNLIMITED, Running

from forenotice.clock import SystemClock
from forenotice.core.timing import Timing
from forenotice.emulator.active_faults import ActiveFault, Faults
from forenotice.emulator.interceptor import FaultInterceptor
from forenotice.emulator.request_log import RequestLog
from forenotice.metadata.options import Options
from forenotice.metadata.server import MetadataServer
from forenotice.metadata.upstream import ServiceUpstream
from forenotice.settings import Address, Listener

SHORT = timedelta(milliseconds=50)
FOR_WEB_0 = Listener(at=Address(host="127.0.0.1", port=0), vm="web-0")


class MovingClock(SystemClock):
    def __init__(self) -> None:
        super().__init__()
        self.moved = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.moved


class Faulty(Running):
    """Whoever connects is web-0."""

    def __init__(self, options: Options = UNLIMITED) -> None:
        self.moving = MovingClock()
        self.faults = Faults(self.moving)
        self.requests = RequestLog()
        super().__init__(options=options, listeners=(FOR_WEB_0,), fleet=FLEET, clock=self.moving)

    def switch_on(
        self,
        name: str,
        *,
        amount: timedelta | None = None,
        on: str | None = None,
        times: int | None = None,
        lasts: timedelta | None = None,
    ) -> ActiveFault:
        active = self.faults.switch_on(name, amount=amount, on=on, times=times, lasts=lasts, now=self.moving.now())
        self.settle()
        return active

    def advance(self, span: timedelta) -> None:
        self.moving.moved += span
        self.faults.expire(self.moving.now())
        self.settle()

    def _make(self, options: Options, timing: Timing) -> MetadataServer:
        self.faults.attach(self.published, self._loop)
        intercept = functools.partial(FaultInterceptor, faults=self.faults, requests=self.requests)
        return MetadataServer(
            published=self.published,
            upstream=ServiceUpstream(self.guests, options.limits),
            clock=self.clock,
            timing=timing,
            options=options,
            intercept=intercept,
        )


@contextlib.contextmanager
def faulty(options: Options = UNLIMITED) -> Iterator[Faulty]:
    server = Faulty(options)
    try:
        yield server
    finally:
        server.stop()
