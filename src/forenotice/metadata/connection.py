"""One connection of a guest: requests in, responses out, in order.

`checks` judges a request's head. `Connection.admit` goes on with the caller and the rate, `Connection.serve` with the
body; `Prefer: wait` is in `long_poll`.
"""

import asyncio
import functools
import re
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, Protocol, cast

from forenotice.core import errors
from forenotice.core.lifecycle import StartRequests
from forenotice.metadata import checks, identity, responses
from forenotice.metadata.checks import Approve, Describe, Head, ListVersions, Poll, Proof, Refuse
from forenotice.metadata.endpoint import GuestEndpoint
from forenotice.metadata.long_poll import LongPoll
from forenotice.metadata.published import Guest, PublishedScope
from forenotice.metadata.requests import NO_HEAD, Request, RequestParser
from forenotice.metadata.responses import Persistence, Response
from forenotice.wire import approvals, instance
from forenotice.wire import errors as wire_errors

FOREVER = sys.maxsize
NO_REQUEST = Request.refused(responses.BAD_FRAMING)
BLANK_LINE = re.compile(rb"\n\r?\n")
TURN_BYTES = 4096
"""Read from one connection before others have their turn, and never beyond the head of one more request."""
TURN_PIECES = 8
"""In so many pieces: a blank line ends one, and a body may have nothing else."""
RESET_ON_CLOSE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""SO_LINGER: unsent bytes are discarded, and closing resets the connection."""


class Sent(NamedTuple):
    """A response as an interceptor sends it."""

    status: int
    data: bytes
    persistence: Persistence


class Interceptor(Protocol):
    """Comes between one connection and its responses: the emulator injects faults here. The service has none.

    It may call the public methods of its connection: `admit`, `serve`, `respond`, `hold`, `let_go`, `work`,
    `end_long_poll` and `reset`.
    """

    def before(self, request: Request) -> None:
        """A complete request has its turn: `serve` it, `respond` to it, or `hold` it until later."""

    def transform(self, request: Request, response: Response, persistence: Persistence) -> Sent:
        """What is sent in place of this response."""

    def client_ended(self) -> None:
        """The client sends no more, and may be gone."""

    def server_stopping(self) -> None:
        """Held requests must be responded to now."""

    def closed(self, unanswered: Sequence[Request]) -> None:
        """The connection is lost, and with it these requests that had not had their turn."""


@dataclass(slots=True, eq=False, repr=False)
class Connection(asyncio.Protocol):
    endpoint: GuestEndpoint
    _listener_vm: str | None
    peer: str | None
    caller: str | None
    """Whose connection limit it counts against."""
    _: KW_ONLY
    _first: bytes = b""
    """Bytes that came before there was a transport."""
    _last: bytes = b""
    """The rest of the only response."""
    _transport: asyncio.Transport = field(init=False)
    _interceptor: Interceptor | None = field(init=False)
    trusted: bool = field(init=False)
    _guest: Guest | None = field(default=None, init=False)
    _generation: int = field(default=-1, init=False)
    _repeat: bytes = field(default=b"", init=False)
    """The bytes of a plain poll, while the same may come again; else nothing."""
    _repeated: Request = field(default=NO_REQUEST, init=False)
    _parser: RequestParser | None = field(default=None, init=False)
    _unread: bytes = field(default=b"", init=False)
    """Received but not parsed yet, from `_position` on; meanwhile nothing more is received."""
    _position: int = field(default=0, init=False)
    _queued: bool = field(default=False, init=False)
    """It is in the fair queue."""
    _arrived: list[Request] = field(default_factory=list, init=False)
    _held: Request | None = field(default=None, init=False)
    """The request whose response is not there yet; later ones wait."""
    _long_poll: LongPoll | None = field(default=None, init=False)
    _choked: bool = field(default=False, init=False)
    """The client does not read its responses."""
    _unsent: int = field(default=0, init=False)
    """Bytes that it had not read at the last sweep."""
    _paused: bool = field(default=False, init=False)
    _connected: bool = field(default=False, init=False)
    """There is a transport."""
    _closing: bool = field(default=True, init=False)
    """Nothing is read from it: not yet, or not any more."""
    _leaving: bool = field(default=False, init=False)
    """It is being closed for the connection limit."""
    _refusals_full_at: float = field(default=0.0, init=False)
    """The rate limit of refusals, if the caller is not a VM."""
    _discarded: int = field(default=0, init=False)
    """Bytes received after the last response."""
    ended: bool = field(default=False, init=False)
    """The client sends no more."""
    age: int = field(default=0, init=False)
    """Sweeps since something was last expected or seen."""
    _allowed: int = field(init=False)

    def __post_init__(self) -> None:
        self._interceptor = None if self.endpoint.intercept is None else self.endpoint.intercept(self)
        self.trusted = self._listener_vm is None and self.endpoint.callers.trusts(self.peer)
        self._allowed = self._sweeps(self.endpoint.limits.request_seconds)

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.endpoint.limits.write_bytes)
        self._connected = True
        self._closing = False
        if self._last:
            self._transport.write(self._last)
            self._close()
        elif self._first:
            self._receive(self._first)
        self._first = self._last = b""

    def data_received(self, data: bytes) -> None:
        if data == self._repeat:
            self.age = 0
            endpoint = self.endpoint
            if self._generation == endpoint.published.generation and self._guest is not None:
                response = endpoint.poll(self._repeated, self._guest)
                if response is not None:
                    self._transport.write(response)
                    return
        self._receive(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self._interceptor is not None:
            self._interceptor.client_ended()
        # Perhaps the client is gone, perhaps it only sends no more: the present document serves both.
        self.end_long_poll()
        if self._closing or not self._owes():
            self._close()
        return True

    def pause_writing(self) -> None:
        self._choked = True
        self._repeat = b""
        self.age = 0
        self._unsent = self._transport.get_write_buffer_size()
        self._settle()

    def resume_writing(self) -> None:
        self._choked = False
        self.work()

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._interceptor is not None:
            self._interceptor.closed(self._unanswered())
        self._closing = True
        self._repeat = self._unread = b""
        self._arrived.clear()
        self._held = None
        if self._long_poll is not None:
            self._long_poll.cancel()
            self._long_poll = None
        if self._parser is not None:
            self._parser.close()
        self.endpoint.connections.leave(self)

    # What the server calls

    def sweep(self) -> None:
        self.age += 1
        if self.age > self._allowed and not self._reads():
            self.endpoint.counters.cut += not self._is_idle()
            self._transport.abort()

    def stop(self) -> None:
        """Send the response that is under way, and no further one."""
        if self._interceptor is not None:
            self._interceptor.server_stopping()
        self.end_long_poll()
        if self._is_idle():
            self._close()

    def _reads(self) -> bool:
        """Whether the client reads its responses, if only slowly."""
        before, self._unsent = self._unsent, self._transport.get_write_buffer_size()
        if before - self._unsent < self.endpoint.limits.write_bytes:
            return False
        self.age = 0
        return True

    def is_spare(self) -> bool:
        """Whether it can be closed for the connection limit: a long poll, idle, or its client does not read."""
        if self.is_long_poll or not self._connected:
            return self.is_long_poll
        taken = self.age > 0 or not self._transport.get_write_buffer_size()
        return taken and (self._closing or self._choked or not self._owes())

    @property
    def is_long_poll(self) -> bool:
        """A long poll is under way, which can be answered 304 at any time."""
        return self._long_poll is not None

    def evict(self) -> None:
        self._leaving = True
        if self._long_poll is not None and not self._transport.get_write_buffer_size():
            self._long_poll.end()
            if self._transport.is_closing():
                # The sweep no longer sees it, so end it even if its response is not read.
                self.endpoint.loop.call_later(self.endpoint.limits.linger_seconds, self._transport.abort)
                return
        self._transport.abort()

    def abort(self) -> None:
        self._transport.abort()

    def _owes(self) -> bool:
        """Whether a complete request, or bytes that may hold one, has no response yet."""
        return self._held is not None or bool(self._unread) or any(request.complete for request in self._arrived)

    # Reading requests

    def _receive(self, data: bytes) -> None:
        if self._closing:
            self._discard(len(data))
        elif self._paused:
            # The loop starts to read after `connection_made`, even if it was paused there.
            self._transport.pause_reading()
            self._unread += data
        else:
            self._unread = data
            if self._held is None and not self._choked and self.endpoint.queue.may_be_read(self):
                self._read()
            else:
                self._settle()

    def take_turn(self) -> None:
        self._queued = False
        if self._unread and self._held is None and not self._choked and not self._closing:
            self._read()

    def _read(self) -> None:
        """Parse one request, or part of one; then others have their turn."""
        self._repeat = b""
        size, last = len(self._unread), self._position + TURN_BYTES
        for _ in range(TURN_PIECES):
            piece = self._next_piece(last)
            request = self._parse(piece)
            if not self._unread or self._position >= last or self._parser is None or self._parser.between:
                break
        self.work()
        if request is not None and request.plain_poll is not None and len(piece) == size and self._is_idle():
            self._repeat = piece
            self._repeated = request

    def _next_piece(self, last: int) -> bytes:
        data, start = self._unread, self._position
        blank = BLANK_LINE.search(data, start, last)
        end = min(last, len(data)) if blank is None else blank.end()
        if end == len(data):
            self._unread, self._position = b"", 0
        else:
            self._position = end
        return data[start:end]

    def _parse(self, data: bytes) -> Request | None:
        """Parse the bytes; gives their request if the whole of it can be remembered."""
        endpoint = self.endpoint
        between = self._parser is None or self._parser.between
        alone = between and not self._arrived and not self.trusted
        request = endpoint.recall(data) if alone else None
        if request is not None:
            self._arrived.append(request)
            return request
        if self._parser is None:
            names, known = endpoint.options.names, endpoint.options.versions
            check = functools.partial(checks.check, from_proxy=self.trusted, names=names, known=known)
            self._parser = RequestParser(endpoint.limits, check, self._arrived)
        self._parser.feed(data)
        if alone and self._interceptor is None and self._parser.between and _is_one_get(self._arrived):
            endpoint.remember(data, self._arrived[0])
            return self._arrived[0]
        return None

    def _discard(self, size: int) -> None:
        """Read on for a while after the last response, or a reset might discard it; but not for ever."""
        self._discarded += size
        if self._discarded > self.endpoint.limits.linger_bytes and not self._transport.is_closing():
            self._transport.pause_reading()

    def work(self) -> None:
        arrived = self._arrived
        while arrived and self._held is None and not self._choked and not self._closing:
            request = arrived[0]
            if not request.complete:
                self._invite(request)
                break
            del arrived[0]
            self.age = 0
            if self._interceptor is None:
                self.serve(request)
            else:
                self._interceptor.before(request)
        self._settle()

    def _settle(self) -> None:
        """Decide what may happen next on this connection, and how long that may take."""
        if self._closing:
            return
        if self.ended and self._is_idle():
            self._close()
            return
        # Reading goes on during a hold, to see the client leave; what it sends meanwhile is limited.
        self._pause(self._choked or bool(self._unread) or (self._held is not None and bool(self._arrived)))
        if self._unread and not self._queued and self._held is None and not self._choked:
            self._queued = True
            self.endpoint.queue.add(self)
        limits, idle = self.endpoint.limits, self._is_idle()
        if self._held is not None and not self._choked:
            allowed = FOREVER
        else:
            allowed = self._sweeps(limits.idle_seconds if idle else limits.request_seconds)
        # A request under way is not given more time by each of its bytes.
        if allowed != self._allowed or idle:
            self._allowed = allowed
            self.age = 0

    def _pause(self, pause: bool) -> None:
        if pause != self._paused:
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _is_idle(self) -> bool:
        between = self._parser is None or (self._parser.between and not self._parser.stopped)
        waits = self._unread or self._arrived or self._held is not None
        return between and not waits and not self._choked and not self._closing

    def _invite(self, request: Request) -> None:
        """Let a body come when everything before it is in order (`Expect: 100-continue`)."""
        if not request.expects or self._unread:
            return
        request.expects = False
        request.admitted = self.admit(request)
        if request.admitted is not None:
            self._transport.write(responses.CONTINUE)

    # Serving requests

    def admit(self, request: Request) -> Guest | None:
        """Check what comes before the body: head (see `checks`), caller, rate. None: the request was refused."""
        caller = self._caller_of(request)
        if isinstance(caller, Response):
            self._refuse(request, caller)
            return None
        if not self.endpoint.take_token(request, caller):
            # A client that continues has to reconnect; what it has already sent is not parsed.
            seconds = self.endpoint.retry_after(request, caller)
            self.respond(request, responses.retry(429, wire_errors.TOO_MANY_REQUESTS, seconds), last=True)
            return None
        return caller

    def _caller_of(self, request: Request) -> Guest | Response:
        """The VM, or the refusal."""
        action, callers = request.action, self.endpoint.callers
        if isinstance(action, Refuse):
            return action.response
        try:
            guest = self.who(action.proof, request.head)
        except identity.UnprovenError as error:
            callers.log_refusal("A proxy's proof failed", "caller.unproven", self.peer)
            return responses.refusal(403, str(error))
        if guest is None and not self.endpoint.published.loaded:
            return responses.UNAVAILABLE
        if guest is None:
            callers.log_refusal("A caller is not known", "caller.unknown", self.peer)
            return callers.unknown(action.proof, trusted=self.trusted)
        return guest

    def serve(self, request: Request) -> None:
        guest = request.admitted or self.admit(request)
        if guest is None:
            return
        if request.fault is not None:
            self.respond(request, request.fault)
        elif guest.scope is None:
            # Whether the fleet knows yet that an arriving VM is here is a matter of moments.
            guest.polled = self.endpoint.listening.now
            self.respond(request, responses.UNAVAILABLE if guest.member.arriving else responses.UNKNOWN_CALLER)
        else:
            match request.action:
                case Poll() as poll:
                    self._poll(request, poll, guest, guest.scope)
                case Approve():
                    self._approve(request, guest, guest.scope)
                case Describe() as describe:
                    self.respond(request, _description(describe, guest, guest.scope))
                case ListVersions():
                    self.respond(request, checks.VERSIONS)

    def who(self, proof: Proof, head: Head = NO_HEAD) -> Guest | None:
        if proof:
            return self.endpoint.callers.proven(proof, head, self.peer)
        generation = self.endpoint.published.generation
        if self._generation != generation:
            self._guest = self.endpoint.callers.known(self._listener_vm, self.peer)
            self._generation = generation
        return self._guest

    def _refuse(self, request: Request, response: Response) -> None:
        """A refusal counts against the rate; above the rate it closes the connection.

        Not for a proxy, which asks for many VMs: which one is at fault is not proven.
        """
        endpoint, guest = self.endpoint, self.who({})
        within = True
        if guest is not None and not self.trusted:
            within = endpoint.take_token(request, guest)
        elif not self.trusted:
            full_at = endpoint.rate.take(self._refusals_full_at, endpoint.monotonic())
            within = full_at >= 0
            self._refusals_full_at = full_at if within else self._refusals_full_at
        if not request.complete:
            # It may or may not send its body now: where the next request starts is not known.
            request.persistence = Persistence.CLOSES
        self.respond(request, response, last=not within)

    def _poll(self, request: Request, poll: Poll, guest: Guest, scope: PublishedScope) -> None:
        listening = self.endpoint.listening
        guest.polled = listening.now
        if not listening.is_first(scope):
            listening.note_poll(scope)
            self._show(request, poll, guest)
            return

        def opened() -> None:
            if self.let_go(request):
                self._show(request, poll, guest)
                self.work()

        self.hold(request)
        listening.open(scope, opened)

    def _show(self, request: Request, poll: Poll, guest: Guest) -> None:
        endpoint, scope = self.endpoint, guest.scope
        if scope is None:
            self.respond(request, responses.UNKNOWN_CALLER)
            return
        response = endpoint.response(poll, scope)
        if response.status == 304 and poll.wait and not endpoint.stopping and not self.ended:
            self.hold(request)
            self._long_poll = LongPoll(self, request, poll, guest, scope)
        else:
            self.respond(request, response)

    def _approve(self, request: Request, guest: Guest, scope: PublishedScope) -> None:
        listening = self.endpoint.listening
        # It has polled what it approves; perhaps from the process before this one.
        guest.polled = listening.now
        try:
            event_ids = approvals.parse(request.body)
        except errors.RefusedError as refusal:
            self.respond(request, responses.refusal(400, refusal.message))
            return

        def decided(error: errors.ForenoticeError | None) -> None:
            # Only a GET starts a scope's listening; a POST that is not refused keeps it up.
            if error is None and listening.is_listening(scope):
                listening.note_poll(scope)
            self.release(request, _outcome(error))

        approval = StartRequests(vm=guest.name, scope=scope.key, event_ids=event_ids)
        if self.endpoint.upstream.approve(approval, decided):
            self.hold(request)
        else:
            self.respond(request, responses.UNAVAILABLE)

    # Responses

    def hold(self, request: Request) -> None:
        """Its response comes later; so do the requests behind it."""
        self._held = request

    def let_go(self, request: Request) -> bool:
        """False when it is not held any more: the client has gone."""
        if self._held is not request:
            return False
        self._held = self._long_poll = None
        return True

    def release(self, request: Request, response: Response) -> None:
        """Respond to a request that was held."""
        if self.let_go(request):
            self.respond(request, response)
            self.work()

    def end_long_poll(self) -> None:
        """If a poll waits for a change, respond to it now."""
        if self._long_poll is not None:
            self._long_poll.end()

    def reset(self) -> None:
        """Close with a TCP RST, without a response."""
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._closing = True
        self._transport.abort()

    def _unanswered(self) -> list[Request]:
        """Complete requests that have not had their turn, also those that are not parsed yet."""
        if self._parser is not None:
            self._parser.feed(self._unread[self._position :])
        return [request for request in self._arrived if request.complete]

    @property
    def _is_leaving(self) -> bool:
        """Whether the next response is the last."""
        return self._leaving or self.endpoint.stopping

    def respond(self, request: Request, response: Response, *, last: bool = False) -> None:
        """After the last response the connection ends."""
        endpoint = self.endpoint
        persistence = Persistence.CLOSES if last or self._is_leaving else request.persistence
        status = response.status
        if self._interceptor is None:
            data = endpoint.status_lines.compose(response, persistence, head_only=request.method == "HEAD")
        else:
            status, data, persistence = self._interceptor.transform(request, response, persistence)
        endpoint.counters.count(request.method, status)
        self._send(data, persistence)

    def _send(self, response: bytes, persistence: Persistence) -> None:
        self._transport.write(response)
        if persistence is Persistence.CLOSES:
            if self._unread or (self._parser is not None and not self._parser.between):
                self._linger()
            else:
                self._close()

    def _close(self) -> None:
        self._closing = True
        self._repeat = b""
        self.age = 0
        self._allowed = self._sweeps(self.endpoint.limits.request_seconds)
        self._unsent = self._transport.get_write_buffer_size()
        self._transport.close()

    def _linger(self) -> None:
        """Closing while the client still sends would take back the response: let it read that first."""
        if self.ended:
            self._close()
            return
        self._closing = True
        self._repeat = self._unread = b""
        self._pause(False)
        self.age = 0
        self._allowed = self._sweeps(self.endpoint.limits.linger_seconds)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _sweeps(self, seconds: float) -> int:
        return max(1, round(seconds / self.endpoint.limits.sweep_seconds))


def _is_one_get(arrived: list[Request]) -> bool:
    return len(arrived) == 1 and arrived[0].method == "GET"


def _description(describe: Describe, guest: Guest, scope: PublishedScope) -> Response:
    try:
        body = instance.leaf(*guest.describe(scope), describe.path, describe.as_text)
    except errors.NotFoundError as error:
        return responses.refusal(404, error.message)
    except errors.RefusedError as error:
        return responses.refusal(400, error.message)
    return responses.with_body(200, body, responses.TEXT if describe.as_text else responses.JSON)


def _outcome(error: errors.ForenoticeError | None) -> Response:
    match error:
        case None:
            return responses.APPROVED
        case errors.UnavailableError() | errors.UnsoundError():
            return responses.UNAVAILABLE
    return responses.refusal(400, error.message)
