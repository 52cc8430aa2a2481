"""The way from an edge to the service: JetStream stores approvals and polls before the edge acknowledges them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta

from forenotice.cluster import messages
from forenotice.cluster.messages import Approval, Heard, MalformedError, Question, Reply
from forenotice.cluster.subjects import Subjects
from forenotice.core import errors
from forenotice.core.lifecycle import StartRequests
from forenotice.edge.follower import Follower
from forenotice.edge.link import Link, LinkError
from forenotice.failures import Failures
from forenotice.logs import log
from forenotice.metadata.options import Limits
from forenotice.metadata.upstream import Outcome

SHARE = 0.9
"""Of the time that a guest's request waits at most: the response must still be sent."""
ASK_SECONDS = 2.0


class EdgeUpstream:
    quiet = timedelta(minutes=10)
    interval = timedelta(hours=6)

    def __init__(
        self, link: Link, follower: Follower, subjects: Subjects, limits: Limits, new_id: Callable[[], str]
    ) -> None:
        self._link = link
        self._follower = follower
        self._subjects = subjects
        self._seconds = limits.patience_seconds * SHARE
        self._capacity = limits.approvals
        self._new_id = new_id
        self._pending: set[asyncio.Task[None]] = set()
        self._closing = False
        self._failures = Failures()

    def start(self) -> None: ...

    def approve(self, approval: StartRequests, done: Callable[[Outcome], None]) -> bool:
        if self._closing or len(self._pending) >= self._capacity:
            return False
        self._spawn(self._approve(approval, done))
        return True

    def heard(self, heard: Mapping[str, datetime], done: Callable[[bool], None]) -> None:
        self._spawn(self._tell(heard, done))

    async def close(self, seconds: float) -> bool:
        self._closing = True
        if self._pending:
            await asyncio.wait(self._pending, timeout=seconds)
        return not self._pending

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _approve(self, approval: StartRequests, done: Callable[[Outcome], None]) -> None:
        outcome: Outcome = None
        seconds = self._seconds
        try:
            unknown = [
                each for each in approval.event_ids if not self._follower.approvable(approval.scope, each.upper())
            ]
            if unknown:
                # The guest may have seen it at another edge, or our state is older.
                await self._ask(approval)
                seconds -= ASK_SECONDS
            sent = Approval(vm=approval.vm, scope=approval.scope, event_ids=approval.event_ids)
            await self._store(self._subjects.approve, messages.encode(sent), seconds)
        except errors.ForenoticeError as error:
            outcome = error
        except Exception as error:
            log.exception("An approval failed", action="edge.approval_failed")
            outcome = errors.UnavailableError(str(error))
        done(outcome)

    async def _ask(self, approval: StartRequests) -> None:
        question = Question(vm=approval.vm, scope=approval.scope, event_ids=approval.event_ids)
        data = await self._link.request(self._subjects.ask, messages.encode(question), ASK_SECONDS)
        try:
            reply = messages.decode(data, Reply)
        except MalformedError as error:
            raise LinkError(error.message) from None
        if reply.refusal:
            raise errors.RefusedError(reply.refusal)

    async def _tell(self, heard: Mapping[str, datetime], done: Callable[[bool], None]) -> None:
        try:
            await self._store(self._subjects.heard, messages.encode(Heard(scopes=dict(heard))), self._seconds)
        except LinkError:
            done(False)
        else:
            done(True)

    async def _store(self, subject: str, data: bytes, seconds: float) -> None:
        try:
            await self._link.store(subject, data, self._new_id(), seconds)
        except LinkError as error:
            if self._failures.again(error.message):
                log.error("JetStream does not take what guests sent", action="edge.failing", reason=error.message)
            raise
        if times := self._failures.over():
            log.info("JetStream takes what guests send again", action="edge.recovered", failures=times)
