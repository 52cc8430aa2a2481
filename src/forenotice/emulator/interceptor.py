"""What comes between a connection of the real endpoint and its responses: faults, and the log of requests."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus

import msgspec

from forenotice.core import errors
from forenotice.emulator import request_log
from forenotice.emulator.active_faults import NO_FAULTS, AppliedFaults, Faults
from forenotice.emulator.faults import On
from forenotice.emulator.request_log import LoggedRequest, RequestLog
from forenotice.metadata import responses
from forenotice.metadata.checks import Approve, Poll
from forenotice.metadata.connection import Connection, Sent
from forenotice.metadata.requests import Request
from forenotice.metadata.responses import Persistence, Response
from forenotice.wire import approvals, dates

REASON = 200
"""Bytes of a refusal that is not ours, such as a recorded one."""


class Refusal(msgspec.Struct):
    error: str


@dataclass(slots=True)
class Turn:
    """The request that is being served."""

    request: Request
    at: datetime
    monotonic: float
    faults: AppliedFaults = NO_FAULTS


class FaultInterceptor:
    """It may change requests: where every request is looked at, none is shared (`GuestEndpoint.quick`).

    A request is delayed by the emulator's clock, which may be moved, and by a timer, should that clock stand still.
    """

    def __init__(self, connection: Connection, *, faults: Faults, requests: RequestLog) -> None:
        self._connection = connection
        self._endpoint = connection.endpoint
        self._faults = faults
        self._requests = requests
        self._turn: Turn | None = None
        self._delays: dict[str, datetime] = {}
        """Until when each fault delays the request."""
        self._timer: asyncio.TimerHandle | None = None

    # What the connection calls

    def before(self, request: Request) -> None:
        self._faults.interceptors[self] = None
        turn = self._turn = self._begin(request)
        request.admitted = request.admitted or self._connection.admit(request)
        if request.admitted is None:
            # Faults come after the real checks.
            return
        match request.action:
            case Poll():
                turn.faults = self._faults.apply(On.POLLS)
            case Approve():
                turn.faults = self._faults.apply(On.APPROVALS)
            case _:
                turn.faults = self._faults.apply(On.ALL)
        if turn.faults.delays:
            self._connection.hold(request)
            self._delay(turn.faults.delays)
        else:
            self._carry_out(turn)

    def transform(self, request: Request, response: Response, persistence: Persistence) -> Sent:
        # A request that is refused before its body has come has not had its turn.
        turn = self._turn or self._begin(request)
        missing = 0
        guest, poll, applied = request.admitted, request.action, turn.faults
        if applied.changes and isinstance(poll, Poll) and response.status in (200, 304) and guest and guest.scope:
            response, missing = applied.change(guest.scope.document, poll.version, poll.condition)
        self._record(turn, response)
        # A refused caller meets no fault, but reads the same clock.
        skew = applied.skew if guest else self._faults.skew
        data = _head(response.status, self._endpoint.clock.now() + skew, persistence) + response.rest
        closes = Persistence.CLOSES if missing else persistence
        if request.method == "HEAD":
            missing = len(response.rest.partition(b"\r\n\r\n")[2])
        return Sent(response.status, data[: len(data) - missing], closes)

    def client_ended(self) -> None:
        if self._turn is not None and isinstance(self._turn.request.action, Poll):
            # Most likely it has given up, and nobody reads the response. An approval is delayed all the same.
            self._lift(tuple(self._delays))

    def server_stopping(self) -> None:
        self._lift(tuple(self._delays))

    def closed(self, unanswered: Sequence[Request]) -> None:
        self._faults.interceptors.pop(self, None)
        self._delay({})
        if self._turn is not None:
            self._record(self._turn, None)
        for request in unanswered:
            self._record(self._begin(request), None)

    # What the faults call

    def faults_changed(self, over: Collection[str]) -> None:
        """Faults were switched on or off; those that are `over` delay nothing any longer."""
        # A long poll would not meet the fault until it ends.
        self._connection.end_long_poll()
        self._lift(over)

    def clock_moved(self) -> None:
        now = self._endpoint.clock.now()
        self._lift([name for name, until in self._delays.items() if until <= now])

    @property
    def poll_under_way(self) -> tuple[str, float] | None:
        """Whose, and since when by the monotonic clock."""
        turn = self._turn
        if turn is None or turn.request.admitted is None or not isinstance(turn.request.action, Poll):
            return None
        return turn.request.admitted.name, turn.monotonic

    # How

    def _begin(self, request: Request) -> Turn:
        return Turn(request, self._endpoint.clock.now(), self._endpoint.monotonic())

    def _delay(self, delays: Mapping[str, datetime]) -> None:
        self._delays = dict(delays)
        until = max(delays.values(), default=None)
        self._faults.set_delayed(self, until)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if until is not None:
            seconds = max(0.0, (until - self._endpoint.clock.now()).total_seconds())
            self._timer = self._endpoint.loop.call_later(seconds, self._release)

    def _lift(self, names: Collection[str]) -> None:
        """These faults delay it no longer."""
        if self._delays.keys().isdisjoint(names):
            return
        left = {name: until for name, until in self._delays.items() if name not in names}
        if left:
            self._delay(left)
        else:
            self._release()

    def _release(self) -> None:
        self._delay({})
        turn = self._turn
        if turn is not None and self._connection.let_go(turn.request):
            self._carry_out(turn)
            self._connection.work()

    def _carry_out(self, turn: Turn) -> None:
        request, applied = turn.request, turn.faults
        if applied.instead is None:
            if applied.changes and isinstance(request.action, Poll):
                # What is shown does not change when the true document does.
                request.action = replace(request.action, wait=None)
            self._connection.serve(request)
        elif (response := applied.instead.response()) is not None:
            self._connection.respond(request, response)
        else:
            self._record(turn, None)
            self._connection.reset()

    def _record(self, turn: Turn, response: Response | None) -> None:
        self._turn = None
        request = turn.request
        target = request.head.target.decode("latin-1")
        guest = request.admitted or self._connection.who({})
        self._requests.record(
            LoggedRequest(
                at=turn.at,
                monotonic=turn.monotonic,
                answered=self._endpoint.monotonic(),
                vm=guest.name if guest else None,
                method=request.method,
                target=target,
                api_version=request_log.api_version(target),
                headers={name.decode("latin-1"): text.decode("latin-1") for name, text in request.head.headers.items()},
                body=request.body,
                status=response.status if response else None,
                fault=turn.faults.names,
                event_ids=_event_ids(request),
                reason=_reason(response) if response else None,
            )
        )


def _reason(response: Response) -> str | None:
    if response.status < HTTPStatus.BAD_REQUEST:
        return None
    body = response.rest.partition(b"\r\n\r\n")[2]
    try:
        return msgspec.json.decode(body, type=Refusal).error
    except msgspec.MsgspecError:
        return body[:REASON].decode(errors="replace")


def _head(status: int, date: datetime, persistence: Persistence) -> bytes:
    line = f"HTTP/1.1 {status} {_phrase(status)}\r\nDate: {dates.http(date)}\r\n"
    return line.encode() + responses.CONNECTION[persistence]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        # Others have sent what no RFC knows.
        return "Recorded"


def _event_ids(request: Request) -> tuple[str, ...]:
    if request.method != "POST":
        return ()
    try:
        return approvals.parse(request.body)
    except errors.RefusedError:
        return ()
