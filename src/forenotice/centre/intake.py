"""Takes in what edges send: approvals, polls, beats and questions."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext

from forenotice.cluster import messages
from forenotice.cluster.messages import Approval, Beat, Heard, MalformedError, Question, Reply
from forenotice.cluster.subjects import ALL_BEATS, ALL_QUESTIONS, CONSUMER, UP, host_of
from forenotice.core import errors
from forenotice.core.lifecycle import StartRequests
from forenotice.failures import Failures
from forenotice.limits import Rate
from forenotice.logs import log
from forenotice.service.guests import Guests
from forenotice.service.service import Service

BATCH = 500
FETCH_SECONDS = 2.0
RETRY_SECONDS = 0.5
QUESTIONS = 100
"""That wait at most: edges give up on an answer after two seconds."""
REFUSALS_LOGGED = Rate(1, 100)
"""Of each host: after so many at once, one in a second."""
LATER_SECONDS = 60.0
"""Until one comes again that could not be stored by itself: a later version may know how to."""
EARLIER = timedelta(seconds=30)
"""Than in JetStream's time an edge has judged an approval at most, by its own clock."""


class Intake:
    """Used on the loop of the cluster's thread; the database is asked in others."""

    def __init__(self, service: Service, client: Client, js: JetStreamContext) -> None:
        self._service = service
        self._client = client
        self._js = js
        self._guests = Guests(service)
        self._malformed = Failures()
        self._unstored = Failures()
        self._listens = False
        self._pull: JetStreamContext.PullSubscription | None = None
        self._refusals_full_at: dict[str, float] = {}
        self._unlogged = Counter[str]()
        """Refused approvals since the last one that was logged, by host."""

    async def listen(self) -> None:
        """Hear beats and questions, which need no stream; once for each connection, however often it is called."""
        if not self._listens:
            await self._client.subscribe(ALL_BEATS, cb=self._take_beat)
            await self._client.subscribe(ALL_QUESTIONS, queue=CONSUMER, cb=self._answer, pending_msgs_limit=QUESTIONS)
            self._listens = True

    async def bind(self) -> None:
        """To the consumer, which has to be there; again after a failure, and then without the former subscription."""
        former, self._pull = self._pull, None
        if former is not None:
            await former.unsubscribe()
        self._pull = await self._js.pull_subscribe_bind(CONSUMER, UP)

    async def store(self) -> None:
        """For ever: commit what edges sent, then acknowledge it. What is not acknowledged comes again."""
        pull = self._pull
        assert pull is not None
        while True:
            try:
                batch = await pull.fetch(BATCH, timeout=FETCH_SECONDS)
            except NatsTimeoutError:
                continue
            await self._take(batch)

    async def _take(self, batch: Sequence[Msg]) -> None:
        try:
            await self._commit(batch)
        except Exception as error:
            failure = error
        else:
            for message in batch:
                await message.ack()
            return
        is_away = isinstance(failure, errors.UnavailableError | errors.UnsoundError)
        if is_away and not isinstance(failure, errors.OverdueError):
            # Perhaps another process can.
            for message in batch:
                await message.nak(delay=RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)
        elif len(batch) > 1:
            # The others do not wait for a message that cannot be stored, or takes too long.
            half = len(batch) // 2
            await self._take(batch[:half])
            await self._take(batch[half:])
        else:
            host = host_of(batch[0].subject)
            if self._unstored.again(repr(failure)):
                said = "A message from an edge cannot be stored"
                log.error(said, action="cluster.unstored", host=host, exc_info=failure)
            await batch[0].nak(delay=LATER_SECONDS)

    async def _commit(self, batch: Sequence[Msg]) -> None:
        heard: list[tuple[str, Heard]] = []
        approvals: list[tuple[str, StartRequests]] = []
        for message in batch:
            host = host_of(message.subject)
            try:
                if message.subject.endswith(".heard"):
                    heard.append((host, messages.decode(message.data, Heard)))
                else:
                    sent = messages.decode(message.data, Approval)
                    taken = min(message.metadata.timestamp, self._service.clock.now()) - EARLIER
                    requests = StartRequests(vm=sent.vm, scope=sent.scope, event_ids=sent.event_ids, at=taken)
                    approvals.append((host, requests))
            except MalformedError as error:
                self._log_malformed(host, error)
        if heard:
            # First, because a scope polls before it approves.
            await asyncio.to_thread(self._guests.heard_at_edges, heard)
        if approvals:
            await asyncio.to_thread(self._approve, approvals)

    def _approve(self, approvals: Sequence[tuple[str, StartRequests]]) -> None:
        for (host, approval), refusal in zip(approvals, self._guests.approve_at_edges(approvals), strict=True):
            if refusal is not None:
                self._log_refusal(host, approval.vm, refusal.message)

    def _log_refusal(self, host: str, vm: str, reason: str) -> None:
        """During a flood, not each time."""
        full_at = REFUSALS_LOGGED.take(self._refusals_full_at.get(host, 0.0), self._service.runtime.monotonic())
        if full_at < 0:
            self._unlogged[host] += 1
            return
        self._refusals_full_at[host] = full_at
        log.warning(
            "An approval that an edge accepted has no effect",
            action="cluster.approval_refused",
            host=host,
            vm=vm,
            reason=reason,
            unlogged=self._unlogged.pop(host, 0),
        )

    async def _take_beat(self, message: Msg) -> None:
        host = host_of(message.subject)
        try:
            beat = messages.decode(message.data, Beat)
        except MalformedError as error:
            self._log_malformed(host, error)
            return
        # Not in another thread: it asks no database, and there are thousands of them each second.
        self._service.edges.beat(host, beat)

    async def _answer(self, message: Msg) -> None:
        host = host_of(message.subject)
        try:
            asked = messages.decode(message.data, Question)
            requests = StartRequests(vm=asked.vm, scope=asked.scope, event_ids=asked.event_ids)
            refusal = await asyncio.to_thread(self._guests.refusal, host, requests)
        except MalformedError as error:
            self._log_malformed(host, error)
            return
        except (errors.UnavailableError, errors.UnsoundError):
            # The edge gives up by itself.
            return
        await message.respond(messages.encode(Reply(refusal=refusal.message if refusal else "")))

    def _log_malformed(self, host: str, error: MalformedError) -> None:
        if self._malformed.again(host):
            log.error("An edge sent an unreadable message", action="cluster.malformed", host=host, reason=error.message)
