"""What comes between a connection of the real endpoint and its responses: faults, and the log of requests."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from time import monotonic

import msgspec

from forenotice.core import errors
from forenotice.emulator import active_faults, request_log
from forenotice.emulator.active_faults import NO_FAULTS, AppliedFaults, Faults, Hold
from forenotice.emulator.faults import On
from forenotice.emulator.request_log import LoggedRequest, RequestLog
from forenotice.metadata import responses
from forenotice.metadata.checks import Action, Approve, Poll
from forenotice.metadata.connection import Connection, Sent
from forenotice.metadata.requests import Request
from forenotice.metadata.responses import Persistence, Response
from forenotice.wire import approvals, dates

REASON = 200
"""Bytes of what is no refusal of our own, such as a recorded one."""


class Refusal(msgspec.Struct):
    error: str


@dataclass(slots=True)
class Turn:
    """The request that is being served."""

    request: Request
    at: datetime
    monotonic: float
    met: AppliedFaults = NO_FAULTS


class FaultInterceptor:
    """Requests are its own to change: where every request is looked at, none is shared (`GuestEndpoint.quick`)."""

    def __init__(self, connection: Connection, *, faults: Faults, requests: RequestLog) -> None:
        self._connection = connection
        self._faults = faults
        self._requests = requests
        self._turn: Turn | None = None
        self._hold: Hold | None = None

    # What the connection calls

    def before(self, request: Request) -> None:
        self._faults.interceptors.add(self)
        turn = self._turn = self._begin(request)
        request.admitted = request.admitted or self._connection.admit(request)
        if request.admitted is None:
            # The gates are as real as without faults.
            return
        turn.met = self._faults.apply(_kind(request.action))
        if turn.met.holding:
            self._connection.hold(request)
            endpoint = self._connection.endpoint
            self._hold = Hold(endpoint.loop, endpoint.clock, dict(turn.met.holding), lambda: self._go_on(turn))
            self._faults.hold(self, self._hold.until)
        else:
            self._carry_out(turn)

    def transform(self, request: Request, answer: Response, persistence: Persistence) -> Sent:
        # One that is refused before its body has come has not had its turn.
        turn = self._turn or self._begin(request)
        answer, missing = self._changed(turn, answer)
        self._record(turn, answer)
        # Who is refused at a gate has met nothing, but reads the same clock.
        skew = turn.met.skew if request.admitted else self._faults.skew
        data = _head(answer.status, self._connection.endpoint.clock.now() + skew, persistence) + answer.rest
        closes = Persistence.CLOSES if missing else persistence
        if request.method == "HEAD":
            missing = len(answer.rest.partition(b"\r\n\r\n")[2])
        return Sent(answer.status, data[: len(data) - missing], closes)

    def client_ended(self) -> None:
        if self._hold is not None and self._turn is not None and isinstance(self._turn.request.action, Poll):
            # Most likely it has given up, and nobody waits for this answer. An approval takes its time all the same.
            self._hold.end()

    def server_stopping(self) -> None:
        if self._hold is not None:
            self._hold.end()

    def closed(self, unanswered: Sequence[Request]) -> None:
        self._faults.interceptors.discard(self)
        if self._hold is not None:
            self._hold.cancel()
            self._faults.hold(self, None)
        if self._turn is not None:
            self._record(self._turn, None)
        for request in unanswered:
            self._record(self._begin(request), None)

    # What the faults call

    def faults_changed(self, over: Collection[str]) -> None:
        # Whoever waits for a change would not meet a fault until that comes.
        self._connection.end_long_poll()
        if self._hold is not None:
            self._hold.lift(over)

    def clock_moved(self) -> None:
        if self._hold is not None:
            self._hold.clock_moved()

    @property
    def poll_under_way(self) -> tuple[str, float] | None:
        turn = self._turn
        if turn is None or turn.request.admitted is None or not isinstance(turn.request.action, Poll):
            return None
        return turn.request.admitted.name, turn.monotonic

    # How

    def _begin(self, request: Request) -> Turn:
        return Turn(request, self._connection.endpoint.clock.now(), monotonic())

    def _go_on(self, turn: Turn) -> None:
        self._hold = None
        self._faults.hold(self, None)
        if self._connection.let_go(turn.request):
            self._carry_out(turn)
            self._connection.work()

    def _carry_out(self, turn: Turn) -> None:
        request, met = turn.request, turn.met
        if met.instead is None:
            if met.changing and isinstance(request.action, Poll):
                # What is shown does not change when the true document does.
                request.action = replace(request.action, wait=None)
            self._connection.serve(request)
            return
        answer = active_faults.instead(met.instead)
        if answer is None:
            self._record(turn, None)
            self._connection.reset()
        else:
            self._connection.respond(request, answer)

    def _changed(self, turn: Turn, answer: Response) -> tuple[Response, int]:
        guest, poll = turn.request.admitted, turn.request.action
        is_document = isinstance(poll, Poll) and answer.status in (200, 304)
        if not turn.met.changing or not is_document or guest is None or guest.scope is None:
            return answer, 0
        assert isinstance(poll, Poll)
        return active_faults.changed(turn.met, guest.scope.document, poll.version, poll.condition)

    def _record(self, turn: Turn, answer: Response | None) -> None:
        self._turn = None
        request = turn.request
        target = request.head.target.decode("latin-1")
        guest = request.admitted or self._connection.who({})
        self._requests.record(
            LoggedRequest(
                at=turn.at,
                monotonic=turn.monotonic,
                answered=monotonic(),
                vm=guest.name if guest else None,
                method=request.method,
                target=target,
                api_version=request_log.api_version(target),
                headers={name.decode("latin-1"): text.decode("latin-1") for name, text in request.head.headers.items()},
                body=request.body,
                status=answer.status if answer else None,
                fault=turn.met.names,
                event_ids=_event_ids(request),
                reason=_reason(answer) if answer else None,
            )
        )


def _reason(answer: Response) -> str | None:
    if answer.status < HTTPStatus.BAD_REQUEST:
        return None
    body = answer.rest.partition(b"\r\n\r\n")[2]
    try:
        return msgspec.json.decode(body, type=Refusal).error
    except msgspec.MsgspecError:
        return body[:REASON].decode(errors="replace")


def _kind(action: Action) -> On:
    match action:
        case Poll():
            return On.POLLS
        case Approve():
            return On.APPROVALS
    return On.ALL


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
