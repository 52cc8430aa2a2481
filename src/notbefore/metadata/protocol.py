"""One connection of a guest: requests in, answers out, in order."""

import asyncio
import functools
import sys
from time import monotonic
from typing import cast

from notbefore.core import errors
from notbefore.metadata import answers, gates, identity
from notbefore.metadata.answers import Answer, Persistence
from notbefore.metadata.board import Guest
from notbefore.metadata.desk import Desk
from notbefore.metadata.gates import Approve, Describe, ListVersions, Poll, Proof, Refuse
from notbefore.metadata.requests import Reader, Request
from notbefore.metadata.waiting import Wait
from notbefore.service.guests import Approval
from notbefore.wire import approvals, instance
from notbefore.wire import errors as wire_errors

FOREVER = sys.maxsize


class Connection(asyncio.Protocol):
    __slots__ = (
        "_age",
        "_allowed",
        "_arrived",
        "_choked",
        "_closing",
        "_desk",
        "_ended",
        "_first",
        "_generation",
        "_guest",
        "_held",
        "_last",
        "_listener_vm",
        "_paused",
        "_peer",
        "_reader",
        "_repeat",
        "_repeated",
        "_transport",
        "_trusted",
        "_wait",
    )

    def __init__(
        self, desk: Desk, listener_vm: str | None, peer: str | None, *, first: bytes = b"", last: bytes = b""
    ) -> None:
        self._desk = desk
        self._listener_vm = listener_vm
        self._peer = peer
        self._first = first
        """Bytes that came before there was a transport."""
        self._last = last
        """What is left of the only answer."""
        self._trusted = listener_vm is None and desk.callers.trusts(peer)
        self._guest: Guest | None = None
        self._generation = -1
        self._repeat = b""
        """The bytes of a quick request, when the same may come again now; else nothing."""
        self._repeated: Request | None = None
        self._reader: Reader | None = None
        self._arrived: list[Request] = []
        self._held: Request | None = None
        """The request whose answer is not there yet; later ones wait."""
        self._wait: Wait | None = None
        self._choked = False
        """The client does not read its answers."""
        self._paused = False
        self._closing = False
        self._ended = False
        """The client sends no more."""
        self._age = 0
        """Sweeps since something was last expected or seen."""
        self._allowed = self._sweeps(desk.limits.request_seconds)

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._desk.limits.write_bytes)
        self._desk.arrive(self)
        if self._last:
            self._transport.write(self._last)
            self._close()
        elif self._first:
            self._receive(self._first)
        self._first = self._last = b""

    def data_received(self, data: bytes) -> None:
        if data == self._repeat:
            self._age = 0
            desk = self._desk
            if self._generation == desk.board.generation and self._guest is not None:
                answer = desk.poll(self._repeated, self._guest)  # type: ignore[arg-type]
                if answer is not None:
                    self._transport.write(answer)
                    return
        self._receive(data)

    def eof_received(self) -> bool:
        self._ended = True
        if self._wait is not None:
            # Perhaps it is gone, perhaps it only sends no more: what is known now serves both.
            self._wait.end()
        if self._closing or (self._held is None and not any(request.complete for request in self._arrived)):
            self._close()
        return True

    def pause_writing(self) -> None:
        self._choked = True
        self._repeat = b""
        self._age = 0
        self._settle()

    def resume_writing(self) -> None:
        self._choked = False
        self._work()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._closing = True
        self._repeat = b""
        self._arrived.clear()
        self._held = None
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
        if self._reader is not None:
            self._reader.close()
        self._desk.leave(self)

    # What the server calls

    def sweep(self) -> None:
        self._age += 1
        if self._age > self._allowed:
            self._desk.counters.cut += not self._is_idle()
            self._transport.abort()

    def stop(self) -> None:
        """Let the answer out that is under way, and no further one."""
        if self._wait is not None:
            self._wait.end()
        if self._is_idle():
            self._close()

    def abort(self) -> None:
        self._transport.abort()

    # Requests

    def _receive(self, data: bytes) -> None:
        if self._closing:
            return
        self._repeat = b""
        between = self._reader is None or self._reader.between
        alone = between and not self._arrived and self._held is None and not self._trusted
        request = self._desk.recall(data) if alone else None
        if request is not None:
            self._arrived.append(request)
        else:
            if self._reader is None:
                judge = functools.partial(gates.judge, from_proxy=self._trusted)
                self._reader = Reader(self._desk.limits, judge, self._arrived)
            self._reader.feed(data)
            if alone and self._reader.between and len(self._arrived) == 1 and self._arrived[0].method == "GET":
                request = self._arrived[0]
                self._desk.remember(data, request)
        self._work()
        if request is not None and request.quick and self._is_idle():
            self._repeat = data
            self._repeated = request

    def _work(self) -> None:
        arrived = self._arrived
        while arrived and self._held is None and not self._choked and not self._closing:
            request = arrived[0]
            if not request.complete:
                self._invite(request)
                break
            del arrived[0]
            self._serve(request)
        self._settle()

    def _settle(self) -> None:
        """What may happen next on this connection, and how long that may take."""
        if self._closing:
            return
        if self._ended and self._is_idle():
            self._close()
            return
        # Reading goes on during a hold, to see the client leave; what it sends meanwhile is not taken without end.
        pause = self._choked or (self._held is not None and bool(self._arrived))
        if pause != self._paused:
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        self._allow()

    def _allow(self) -> None:
        limits = self._desk.limits
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
            self._age = 0

    def _is_idle(self) -> bool:
        between = self._reader is None or (self._reader.between and not self._reader.stopped)
        return between and not self._arrived and self._held is None and not self._choked and not self._closing

    def _invite(self, request: Request) -> None:
        """Say that a body may come, when everything before it is in order (`Expect: 100-continue`)."""
        if not request.expects:
            return
        request.expects = False
        guest = self._admit(request)
        if guest is not None:
            request.admitted = guest
            self._transport.write(answers.CONTINUE)

    def _serve(self, request: Request) -> None:
        self._age = 0
        guest = request.admitted or self._admit(request)
        if guest is None:
            return
        if request.fault is not None:
            self._respond(request, request.fault)
            return
        match request.verdict:
            case Poll() as poll:
                self._poll(request, poll, guest)
            case Approve():
                self._approve(request, guest)
            case Describe() as describe:
                self._respond(request, _description(describe, guest))
            case ListVersions():
                self._respond(request, gates.VERSIONS)

    def _admit(self, request: Request) -> Guest | None:
        """The gates before the body; None when one of them has refused."""
        verdict = request.verdict
        if isinstance(verdict, Refuse):
            self._refuse(request, verdict.answer)
            return None
        try:
            guest = self._who(verdict.proof)
        except identity.UnprovenError:
            self._desk.callers.complain("A proxy's proof failed", "caller.unproven", self._peer)
            self._refuse(request, answers.UNPROVEN)
            return None
        if guest is None:
            self._desk.callers.complain("A caller is not known", "caller.unknown", self._peer)
            self._refuse(request, answers.UNKNOWN_CALLER)
            return None
        return guest if self._within_rate(request, guest) else None

    def _within_rate(self, request: Request, guest: Guest) -> bool:
        now = monotonic()
        approves = request.method == "POST"
        rate = self._desk.approvals if approves else self._desk.polls
        before = guest.approvals_full_at if approves else guest.polls_full_at
        after = rate.take(before, now)
        if after < 0:
            seconds = rate.retry_after(before, now)
            self._refuse(request, answers.retry(429, wire_errors.TOO_MANY_REQUESTS, seconds))
            return False
        if approves:
            guest.approvals_full_at = after
        else:
            guest.polls_full_at = after
        return True

    def _who(self, proof: Proof) -> Guest | None:
        if proof:
            return self._desk.callers.proven(proof)
        generation = self._desk.board.generation
        if self._generation != generation:
            self._guest = self._desk.callers.known(self._listener_vm, self._peer)
            self._generation = generation
        return self._guest

    # Answers

    def _poll(self, request: Request, poll: Poll, guest: Guest) -> None:
        notice = guest.notice
        hearing = self._desk.hearing
        if notice is not None and not hearing.listens(notice):
            self._held = request
            hearing.open(notice, lambda: self._opened(request, poll, guest))
            return
        if notice is not None:
            hearing.hear(notice)
        self._show(request, poll, guest)

    def _opened(self, request: Request, poll: Poll, guest: Guest) -> None:
        if self._held is request:
            self._held = None
            self._show(request, poll, guest)
            self._work()

    def _show(self, request: Request, poll: Poll, guest: Guest) -> None:
        notice = guest.notice
        if notice is None:
            self._respond(request, answers.UNKNOWN_CALLER)
            return
        answer = self._desk.show(poll, notice)
        if answer.status == 304 and poll.wait and not self._desk.stopping and not self._ended:
            self._held = request
            seconds = min(poll.wait, self._desk.options.wait_cap)
            # Behind a proxy each request is another VM's; otherwise an address may have gone to another VM.
            who = (lambda: guest if guest.notice else None) if poll.proof else (lambda: self._who({}))
            self._wait = Wait(self._desk, poll, guest, who, lambda found: self._waited(request, found), seconds)
            return
        self._respond(request, answer)

    def _waited(self, request: Request, answer: Answer) -> None:
        self._wait = None
        self._release(request, answer)

    def _approve(self, request: Request, guest: Guest) -> None:
        try:
            event_ids = approvals.parse(request.body)
        except errors.RefusedError as refusal:
            self._respond(request, answers.error(400, f"Bad request. {refusal.message}"))
            return
        notice = guest.notice
        if notice is None:
            self._respond(request, answers.UNKNOWN_CALLER)
            return
        if self._desk.hearing.listens(notice):
            self._desk.hearing.hear(notice)
        approval = Approval(vm=guest.name, scope=notice.scope.key, event_ids=event_ids)
        if self._desk.bridge.approve(approval, lambda error: self._release(request, _outcome(error))):
            self._held = request
        else:
            self._respond(request, answers.UNAVAILABLE)

    def _release(self, request: Request, answer: Answer) -> None:
        """The answer to the request that was held; its connection may be gone by now."""
        if self._held is request:
            self._held = None
            self._respond(request, answer)
            self._work()

    def _refuse(self, request: Request, answer: Answer) -> None:
        if not request.complete:
            # It may or may not send its body now that it has been refused; where the next request starts is not known.
            request.persistence = Persistence.CLOSES
        self._respond(request, answer)

    def _respond(self, request: Request, answer: Answer) -> None:
        desk = self._desk
        persistence = Persistence.CLOSES if desk.stopping else request.persistence
        desk.counters.count(request.method, answer.status)
        self._transport.write(desk.letterhead.compose(answer, persistence, head_only=request.method == "HEAD"))
        if persistence is Persistence.CLOSES:
            if self._reader is not None and not self._reader.between:
                self._linger()
            else:
                self._close()

    def _close(self) -> None:
        self._closing = True
        self._repeat = b""
        self._age = 0
        self._allowed = self._sweeps(self._desk.limits.request_seconds)
        self._transport.close()

    def _linger(self) -> None:
        """Closing while the client still sends would take back the answer: let it read that first."""
        self._closing = True
        self._age = 0
        self._allowed = self._sweeps(self._desk.limits.linger_seconds)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _sweeps(self, seconds: float) -> int:
        return max(1, round(seconds / self._desk.limits.sweep_seconds))


def _description(describe: Describe, guest: Guest) -> Answer:
    assert guest.notice is not None
    scope = guest.notice.scope
    try:
        body = instance.leaf(guest.describe(scope), scope, describe.path, describe.as_text)
    except errors.NotFoundError as error:
        return answers.error(404, f"Not found. {error.message}")
    except errors.RefusedError as error:
        return answers.error(400, f"Bad request. {error.message}")
    return answers.whole(200, body, answers.TEXT if describe.as_text else answers.JSON)


def _outcome(error: errors.NotbeforeError | None) -> Answer:
    match error:
        case None:
            return answers.APPROVED
        case errors.UnavailableError() | errors.UnsoundError():
            return answers.UNAVAILABLE
    return answers.error(400, f"Bad request. {error.message}")
