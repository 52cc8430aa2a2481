"""What becomes of a request: the gates after its head (caller, rate, body), then its answer, at once or later."""

from time import monotonic
from typing import TYPE_CHECKING

from forenotice.core import errors
from forenotice.core.lifecycle import Approval
from forenotice.metadata import answers, gates, identity
from forenotice.metadata.answers import Answer
from forenotice.metadata.board import Guest
from forenotice.metadata.gates import Approve, Describe, ListVersions, Poll, Refuse
from forenotice.metadata.requests import Request
from forenotice.metadata.waiting import Wait
from forenotice.wire import approvals, instance
from forenotice.wire import errors as wire_errors

if TYPE_CHECKING:
    from forenotice.metadata.protocol import Connection


def admit(connection: "Connection", request: Request) -> Guest | None:
    """The gates before the body; None when one of them has refused."""
    verdict = request.verdict
    if isinstance(verdict, Refuse):
        _refuse(connection, request, verdict.answer)
        return None
    callers = connection.desk.callers
    try:
        guest = connection.who(verdict.proof, request.head)
    except identity.UnprovenError as error:
        callers.complain("A proxy's proof failed", "caller.unproven", connection.peer)
        _refuse(connection, request, answers.refusal(403, str(error)))
        return None
    if guest is None and not connection.desk.board.loaded:
        _refuse(connection, request, answers.UNAVAILABLE)
        return None
    if guest is None:
        callers.complain("A caller is not known", "caller.unknown", connection.peer)
        _refuse(connection, request, callers.unknown(verdict.proof, trusted=connection.trusted))
        return None
    return guest if _within_rate(connection, request, guest) else None


def serve(connection: "Connection", request: Request) -> None:
    guest = request.admitted or admit(connection, request)
    if guest is None:
        return
    if request.fault is not None:
        connection.respond(request, request.fault)
        return
    match request.verdict:
        case Poll() as poll:
            _poll(connection, request, poll, guest)
        case Approve():
            _approve(connection, request, guest)
        case Describe() as describe:
            connection.respond(request, _description(describe, guest))
        case ListVersions():
            connection.respond(request, gates.VERSIONS)


def _refuse(connection: "Connection", request: Request, answer: Answer) -> None:
    """A refusal counts against the rate; above the rate it closes the connection.

    Not for a proxy, which asks for many VMs: which one is at fault is not proven.
    """
    guest = connection.who({})
    if connection.trusted:
        within = True
    elif guest is not None:
        within = _take(connection, request, guest)
    else:
        full_at = connection.desk.polls.take(connection.refusals_full_at, monotonic())
        within = full_at >= 0
        if within:
            connection.refusals_full_at = full_at
    connection.refuse(request, answer, last=not within)


def _within_rate(connection: "Connection", request: Request, guest: Guest) -> bool:
    if _take(connection, request, guest):
        return True
    desk, approves = connection.desk, request.method == "POST"
    rate, full_at = (desk.approvals, guest.approvals_full_at) if approves else (desk.polls, guest.polls_full_at)
    seconds = rate.retry_after(full_at, monotonic())
    # A client that continues has to reconnect; what it has already sent is not parsed.
    connection.respond(request, answers.retry(429, wire_errors.TOO_MANY_REQUESTS, seconds), last=True)
    return False


def _take(connection: "Connection", request: Request, guest: Guest) -> bool:
    """Whether there was a token left in the guest's bucket."""
    now = monotonic()
    if request.method == "POST":
        after = connection.desk.approvals.take(guest.approvals_full_at, now)
        if after >= 0:
            guest.approvals_full_at = after
    else:
        after = connection.desk.polls.take(guest.polls_full_at, now)
        if after >= 0:
            guest.polls_full_at = after
    return after >= 0


def _poll(connection: "Connection", request: Request, poll: Poll, guest: Guest) -> None:
    notice = guest.notice
    hearing = connection.desk.hearing
    guest.polled = hearing.now
    if notice is None or not hearing.is_first(notice):
        if notice is not None:
            hearing.hear(notice)
        _show(connection, request, poll, guest)
        return

    def opened() -> None:
        if connection.let_go(request):
            _show(connection, request, poll, guest)
            connection.work()

    connection.hold(request)
    hearing.open(notice, opened)


def _show(connection: "Connection", request: Request, poll: Poll, guest: Guest) -> None:
    desk = connection.desk
    notice = guest.notice
    if notice is None:
        connection.respond(request, answers.UNKNOWN_CALLER)
        return
    answer = desk.show(poll, notice)
    if answer.status == 304 and poll.wait and not desk.stopping and not connection.ended:
        seconds = min(poll.wait, desk.options.wait_cap)
        # Behind a proxy each request is another VM's; otherwise an address may have gone to another VM.
        who = (lambda: guest if guest.notice else None) if poll.proof else (lambda: connection.who({}))
        wait = Wait(desk, poll, guest, who, lambda found: connection.release(request, found), seconds)
        connection.hold(request, wait)
        return
    connection.respond(request, answer)


def _approve(connection: "Connection", request: Request, guest: Guest) -> None:
    desk = connection.desk
    try:
        event_ids = approvals.parse(request.body)
    except errors.RefusedError as refusal:
        connection.respond(request, answers.refusal(400, refusal.message))
        return
    notice = guest.notice
    if notice is None:
        connection.respond(request, answers.UNKNOWN_CALLER)
        return

    def decided(error: errors.ForenoticeError | None) -> None:
        # Only a GET starts a scope's listening; a POST that is not refused keeps it up.
        if error is None and desk.hearing.listens(notice):
            desk.hearing.hear(notice)
        connection.release(request, _outcome(error))

    if desk.bridge.approve(Approval(vm=guest.name, scope=notice.scope.key, event_ids=event_ids), decided):
        connection.hold(request)
    else:
        connection.respond(request, answers.UNAVAILABLE)


def _description(describe: Describe, guest: Guest) -> Answer:
    if guest.notice is None:
        return answers.UNKNOWN_CALLER
    scope = guest.notice.scope
    try:
        body = instance.leaf(guest.describe(scope), scope, describe.path, describe.as_text)
    except errors.NotFoundError as error:
        return answers.refusal(404, error.message)
    except errors.RefusedError as error:
        return answers.refusal(400, error.message)
    return answers.whole(200, body, answers.TEXT if describe.as_text else answers.JSON)


def _outcome(error: errors.ForenoticeError | None) -> Answer:
    match error:
        case None:
            return answers.APPROVED
        case errors.UnavailableError() | errors.UnsoundError():
            return answers.UNAVAILABLE
    return answers.refusal(400, error.message)
