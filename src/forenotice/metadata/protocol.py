"""One connection of a guest: requests in, answers out, in order."""

import asyncio
import functools
import re
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from forenotice.metadata import answers, attending, gates
from forenotice.metadata.answers import Answer, Persistence
from forenotice.metadata.board import Guest
from forenotice.metadata.desk import Desk
from forenotice.metadata.gates import Head, Proof
from forenotice.metadata.requests import NO_HEAD, Reader, Request
from forenotice.metadata.waiting import Wait

FOREVER = sys.maxsize
NOTHING = Request.refused(answers.BAD_FRAMING)
BLANK_LINE = re.compile(rb"\n\r?\n")
TURN_BYTES = 4096
"""Read of one connection before others have their turn, and never beyond the head of one more request."""
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

    It may call the public methods of its connection: `admit`, `serve`, `respond`, `hold`, `let_go`, `work`, `end_wait`
    and `reset`.
    """

    def before(self, request: Request) -> None:
        """A complete request has its turn: `serve` it, `respond` to it, or `hold` it until later."""

    def transform(self, request: Request, answer: Answer, persistence: Persistence) -> Sent:
        """What is sent in place of this response."""

    def client_ended(self) -> None:
        """The client sends no more, and may be gone."""

    def server_stopping(self) -> None:
        """Held requests must be responded to now."""

    def closed(self, unanswered: Sequence[Request]) -> None:
        """The connection is lost, and with it these requests that had not had their turn."""


class Connection(asyncio.Protocol):
    __slots__ = (
        "_allowed",
        "_arrived",
        "_choked",
        "_closing",
        "_connected",
        "_discarded",
        "_enlisted",
        "_first",
        "_generation",
        "_guest",
        "_held",
        "_interceptor",
        "_last",
        "_leaving",
        "_listener_vm",
        "_paused",
        "_position",
        "_reader",
        "_repeat",
        "_repeated",
        "_transport",
        "_unread",
        "_unsent",
        "_wait",
        "age",
        "caller",
        "desk",
        "ended",
        "peer",
        "refusals_full_at",
        "trusted",
    )

    def __init__(
        self,
        desk: Desk,
        listener_vm: str | None,
        peer: str | None,
        caller: str | None,
        *,
        first: bytes = b"",
        last: bytes = b"",
    ) -> None:
        self.desk = desk
        self._interceptor = None if desk.intercept is None else desk.intercept(self)
        self._listener_vm = listener_vm
        self.peer = peer
        self.caller = caller
        """Against whose share it counts."""
        self._first = first
        """Bytes that came before there was a transport."""
        self._last = last
        """What is left of the only answer."""
        self.trusted = listener_vm is None and desk.callers.trusts(peer)
        self._guest: Guest | None = None
        self._generation = -1
        self._repeat = b""
        """The bytes of a quick request, when the same may come again now; else nothing."""
        self._repeated = NOTHING
        self._reader: Reader | None = None
        self._unread = b""
        """Received but not parsed yet, from `_position` on; meanwhile nothing more is received."""
        self._position = 0
        self._enlisted = False
        """It is in the queue of `turns`."""
        self._arrived: list[Request] = []
        self._held: Request | None = None
        """The request whose answer is not there yet; later ones wait."""
        self._wait: Wait | None = None
        self._choked = False
        """The client does not read its answers."""
        self._unsent = 0
        """Bytes that it had not read when it was last looked at."""
        self._paused = False
        self._connected = False
        """There is a transport."""
        self._closing = True
        """Nothing is taken from it: not yet, or not any more."""
        self._leaving = False
        """It is being closed to make room."""
        self.refusals_full_at = 0.0
        """The rate limit of refusals, if the caller is not a VM."""
        self._discarded = 0
        """Bytes received after the last answer."""
        self.ended = False
        """The client sends no more."""
        self.age = 0
        """Sweeps since something was last expected or seen."""
        self._allowed = self._sweeps(desk.limits.request_seconds)

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.desk.limits.write_bytes)
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
            desk = self.desk
            if self._generation == desk.board.generation and self._guest is not None:
                answer = desk.poll(self._repeated, self._guest)
                if answer is not None:
                    self._transport.write(answer)
                    return
        self._receive(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self._interceptor is not None:
            self._interceptor.client_ended()
        # Perhaps it is gone, perhaps it only sends no more: what is known now serves both.
        self.end_wait()
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
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
        if self._reader is not None:
            self._reader.close()
        self.desk.room.leave(self)

    # What the server calls

    def sweep(self) -> None:
        self.age += 1
        if self.age > self._allowed and not self._reads():
            self.desk.counters.cut += not self._is_idle()
            self._transport.abort()

    def stop(self) -> None:
        """Let the answer out that is under way, and no further one."""
        if self._interceptor is not None:
            self._interceptor.server_stopping()
        self.end_wait()
        if self._is_idle():
            self._close()

    def _reads(self) -> bool:
        """Whether the client takes its answers, if only slowly."""
        before, self._unsent = self._unsent, self._transport.get_write_buffer_size()
        if before - self._unsent < self.desk.limits.write_bytes:
            return False
        self.age = 0
        return True

    def is_spare(self) -> bool:
        """Whether it can be closed to make room: it is in a long wait, idle, or its client does not read."""
        if self.waits or not self._connected:
            return self.waits
        taken = self.age > 0 or not self._transport.get_write_buffer_size()
        return taken and (self._closing or self._choked or not self._owes())

    @property
    def waits(self) -> bool:
        """Whether it is in a long wait, which can be answered 304 at any time."""
        return self._wait is not None

    def make_room(self) -> None:
        self._leaving = True
        if self._wait is not None and not self._transport.get_write_buffer_size():
            self._wait.end()
            if self._transport.is_closing():
                # The sweep no longer sees it, so end it even if its answer is not read.
                self.desk.loop.call_later(self.desk.limits.linger_seconds, self._transport.abort)
                return
        self._transport.abort()

    def abort(self) -> None:
        self._transport.abort()

    def _owes(self) -> bool:
        """Whether a complete request, or bytes that may hold one, has no answer yet."""
        return self._held is not None or bool(self._unread) or any(request.complete for request in self._arrived)

    # Requests

    def _receive(self, data: bytes) -> None:
        if self._closing:
            self._discard(len(data))
        elif self._paused:
            # The loop starts to read after `connection_made`, even if it was paused there.
            self._transport.pause_reading()
            self._unread += data
        else:
            self._unread = data
            if self._held is None and not self._choked and self.desk.turns.may_be_read(self):
                self._read()
            else:
                self._settle()

    def take_turn(self) -> None:
        self._enlisted = False
        if self._unread and self._held is None and not self._choked and not self._closing:
            self._read()

    def _read(self) -> None:
        """Parse one request, or part of one; then others have their turn."""
        self._repeat = b""
        size, last = len(self._unread), self._position + TURN_BYTES
        for _ in range(TURN_PIECES):
            piece = self._next_piece(last)
            request = self._parse(piece)
            if not self._unread or self._position >= last or self._reader is None or self._reader.between:
                break
        self.work()
        if request is not None and request.quick is not None and len(piece) == size and self._is_idle():
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
        between = self._reader is None or self._reader.between
        alone = between and not self._arrived and not self.trusted
        request = self.desk.recall(data) if alone else None
        if request is not None:
            self._arrived.append(request)
            return request
        if self._reader is None:
            options = self.desk.options
            judge = functools.partial(gates.judge, from_proxy=self.trusted, names=options.names, known=options.versions)
            self._reader = Reader(self.desk.limits, judge, self._arrived)
        self._reader.feed(data)
        if alone and self.desk.quick and self._reader.between and _is_one_get(self._arrived):
            self.desk.remember(data, self._arrived[0])
            return self._arrived[0]
        return None

    def _discard(self, size: int) -> None:
        """Read on for a while after the last answer, or a reset might discard the answer; but not for ever."""
        self._discarded += size
        if self._discarded > self.desk.limits.linger_bytes and not self._transport.is_closing():
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
        """What may happen next on this connection, and how long that may take."""
        if self._closing:
            return
        if self.ended and self._is_idle():
            self._close()
            return
        # Reading goes on during a hold, to see the client leave; what it sends meanwhile is not taken without end.
        self._pause(self._choked or bool(self._unread) or (self._held is not None and bool(self._arrived)))
        if self._unread and not self._enlisted and self._held is None and not self._choked:
            self._enlisted = True
            self.desk.turns.enlist(self)
        self._allow()

    def _pause(self, pause: bool) -> None:
        if pause != self._paused:
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _allow(self) -> None:
        limits = self.desk.limits
        if self._choked:
            seconds = limits.request_seconds
        elif self._held is not None:
            seconds = None
        elif self._is_idle():
            seconds = limits.idle_seconds
        else:
            seconds = limits.request_seconds
        allowed = FOREVER if seconds is None else self._sweeps(seconds)
        # A request under way is not given more time by each of its bytes.
        if allowed != self._allowed or self._is_idle():
            self._allowed = allowed
            self.age = 0

    def _is_idle(self) -> bool:
        between = self._reader is None or (self._reader.between and not self._reader.stopped)
        waits = self._unread or self._arrived or self._held is not None
        return between and not waits and not self._choked and not self._closing

    def _invite(self, request: Request) -> None:
        """Say that a body may come, when everything before it is in order (`Expect: 100-continue`)."""
        if not request.expects or self._unread:
            return
        request.expects = False
        guest = self.admit(request)
        if guest is not None:
            request.admitted = guest
            self._transport.write(answers.CONTINUE)

    # What becomes of them, as `attending` decides

    def admit(self, request: Request) -> Guest | None:
        return attending.admit(self, request)

    def serve(self, request: Request) -> None:
        attending.serve(self, request)

    def who(self, proof: Proof, head: Head = NO_HEAD) -> Guest | None:
        if proof:
            return self.desk.callers.proven(proof, head, self.peer)
        generation = self.desk.board.generation
        if self._generation != generation:
            self._guest = self.desk.callers.known(self._listener_vm, self.peer)
            self._generation = generation
        return self._guest

    def hold(self, request: Request, wait: Wait | None = None) -> None:
        """Its answer comes later; so do the requests behind it."""
        self._held = request
        self._wait = wait

    def let_go(self, request: Request) -> bool:
        """False when it is not held any more: the client has gone."""
        if self._held is not request:
            return False
        self._held = self._wait = None
        return True

    def release(self, request: Request, answer: Answer) -> None:
        """The answer to a request that was held."""
        if self.let_go(request):
            self.respond(request, answer)
            self.work()

    def end_wait(self) -> None:
        """If a poll waits for a change, respond to it now."""
        if self._wait is not None:
            self._wait.end()

    def reset(self) -> None:
        """Close with a TCP RST, without a response."""
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._closing = True
        self._transport.abort()

    def _unanswered(self) -> list[Request]:
        """Complete requests that have not had their turn, also those that are not parsed yet."""
        if self._reader is not None:
            self._reader.feed(self._unread[self._position :])
        return [request for request in self._arrived if request.complete]

    @property
    def leaving(self) -> bool:
        """Whether the next answer is the last."""
        return self._leaving or self.desk.stopping

    def refuse(self, request: Request, answer: Answer, *, last: bool = False) -> None:
        if not request.complete:
            # It may or may not send its body now that it has been refused; where the next request starts is not known.
            request.persistence = Persistence.CLOSES
        self.respond(request, answer, last=last)

    def respond(self, request: Request, answer: Answer, *, last: bool = False) -> None:
        """Send the answer; after the last one the connection ends."""
        desk = self.desk
        persistence = Persistence.CLOSES if last or self.leaving else request.persistence
        status = answer.status
        if self._interceptor is None:
            data = desk.letterhead.compose(answer, persistence, head_only=request.method == "HEAD")
        else:
            status, data, persistence = self._interceptor.transform(request, answer, persistence)
        desk.counters.count(request.method, status)
        self.send(data, persistence)

    def send(self, answer: bytes, persistence: Persistence) -> None:
        self._transport.write(answer)
        if persistence is Persistence.CLOSES:
            if self._unread or (self._reader is not None and not self._reader.between):
                self._linger()
            else:
                self._close()

    def _close(self) -> None:
        self._closing = True
        self._repeat = b""
        self.age = 0
        self._allowed = self._sweeps(self.desk.limits.request_seconds)
        self._unsent = self._transport.get_write_buffer_size()
        self._transport.close()

    def _linger(self) -> None:
        """Closing while the client still sends would take back the answer: let it read that first."""
        if self.ended:
            self._close()
            return
        self._closing = True
        self._repeat = self._unread = b""
        self._pause(False)
        self.age = 0
        self._allowed = self._sweeps(self.desk.limits.linger_seconds)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _sweeps(self, seconds: float) -> int:
        return max(1, round(seconds / self.desk.limits.sweep_seconds))


def _is_one_get(arrived: list[Request]) -> bool:
    return len(arrived) == 1 and arrived[0].method == "GET"
