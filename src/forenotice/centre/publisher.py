"""Publishes the states of hosts for their edges: the journal is the outbox, and one process at a time does it."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from nats.aio.client import Client
from nats.errors import MaxPayloadError
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from forenotice.centre import host_states
from forenotice.cluster import messages
from forenotice.cluster.connection import words
from forenotice.cluster.messages import NOTHING, Fence, HostState, MalformedError
from forenotice.cluster.subjects import DOCS, Subjects
from forenotice.failures import Failures
from forenotice.logs import log
from forenotice.service import housekeeping
from forenotice.service.edges import LEASE
from forenotice.service.leases import Lease
from forenotice.service.service import Service

LENGTH = timedelta(seconds=6)
"""How long edges hear nothing when the process that publishes has died."""
ENTRIES = 1000
"""Of the journal, read at once."""
HOSTS = 50
"""Whose states are made at once."""
IN_FLIGHT = 128
ACK_SECONDS = 2.0
"""What is sent while no server leads is never answered: it is better to send it again soon."""
HOLD_SECONDS = 1.0
"""The lease is looked at this often; it is renewed when a third of it has passed."""
REPAIR_SECONDS = 10.0
"""Edges that say that they have less than was published get it again, this often."""
WRONG_SEQUENCE = 10071
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
HEADER_BYTES = 128
"""At most: NATS counts them, its client does not, and the server would end the connection."""


@dataclass(slots=True)
class _Progress:
    """Of the process that holds the lease."""

    position: int
    """Of the journal: what is up to it has been published, except for hosts that are owed."""
    saved: int
    head: tuple[Fence, datetime]
    """Where the database was when it was last read. It may be another one since, which lacks that."""
    owed: set[str] = field(default_factory=set)


class _Page(NamedTuple):
    """What to publish next."""

    position: int
    """Up to which entry,"""
    hosts: set[str]
    """of which hosts,"""
    states: Sequence[HostState]
    """and their states if they are few."""
    head: tuple[Fence, datetime]
    is_lost: bool = False
    """Whether the database lacks what was published."""


class Publisher:
    """Used on the loop of the cluster's thread; the database is asked in others."""

    def __init__(self, service: Service, client: Client, js: JetStreamContext) -> None:
        self._service = service
        self._client = client
        self._js = js
        self._lease = Lease(service, LEASE, LENGTH)
        self._progress: _Progress | None = None
        self._held_until = self._repair_at = 0.0
        self._stream_made: datetime | None = None
        self._sequences: dict[str, int] = {}
        """Of the last message for each host, as far as known."""
        self._published: dict[str, Fence] = service.edges.published
        self._believed: set[str] = set()
        """Hosts whose edge showed what the database lacks; one that says so again may be lying."""
        self._in_flight = asyncio.Semaphore(IN_FLIGHT)
        self._unsent = Failures()

    async def step(self) -> None:
        """Publish everything that the journal has; what fails is tried again by the next step."""
        if not await self._holds():
            self._progress = None
            return
        if self._progress is None:
            self._progress = await self._take_over()
        progress = self._progress
        if self._service.runtime.monotonic() >= self._repair_at:
            self._repair_at = self._service.runtime.monotonic() + REPAIR_SECONDS
            progress.owed |= await self._lost()
            await self._believe_edges()
        while await self._page(progress):
            if not await self._holds():
                return
        # After what is new: a state that NATS keeps refusing ends the step.
        await self._publish(progress.owed)
        if progress.position > progress.saved and not progress.owed and self._is_time_to_save(progress):
            await asyncio.to_thread(self._save, progress.position)
            progress.saved = progress.position

    async def stop(self) -> None:
        if self._progress is not None:
            if not self._progress.owed:
                await asyncio.to_thread(self._save, self._progress.position)
            await asyncio.to_thread(self._lease.give_up)

    async def _holds(self) -> bool:
        monotonic = self._service.runtime.monotonic
        if self._progress is None or monotonic() >= self._held_until:
            at = monotonic()
            if not await asyncio.to_thread(self._lease.holds):
                return False
            self._held_until = at + HOLD_SECONDS
        return True

    def _is_time_to_save(self, progress: _Progress) -> bool:
        """With the lease, so that another process does little again; not with every change."""
        return progress.position - progress.saved >= ENTRIES or self._service.runtime.monotonic() >= self._held_until

    def _save(self, position: int) -> None:
        process = self._service.process
        self._service.transact(lambda unit: unit.transaction.leases.advance(LEASE, process, position))

    async def _take_over(self) -> _Progress:
        self._sequences.clear()
        self._published.clear()
        last = await self._last()
        if last is not None:
            await self._compare(last)
        # Edges have another idea of time if the speed has changed since.
        is_known = last is not None and last.speed == self._service.timing.speed
        progress = await asyncio.to_thread(self._begin, is_known)
        log.info("This process publishes for edges", action="cluster.publishing", position=progress.position)
        return progress

    def _begin(self, is_known: bool) -> _Progress:
        with self._service.store.read() as reader:
            head = host_states.head(reader)
            known, last = reader.leases.get(LEASE).position, head[0].position
            if is_known and known is not None and known <= last:
                return _Progress(position=known, saved=known, head=head)
            # Nothing was published yet, or the stream or the database has lost it: the states may be any.
            owed = {edge.host for edge in reader.edges.all()}
            return _Progress(position=last, saved=0, head=head, owed=owed)

    async def _page(self, progress: _Progress) -> bool:
        """Publish what the next entries concern; False: there are none."""
        page = await asyncio.to_thread(self._read, progress)
        if page is None:
            return False
        if page.is_lost:
            # An epoch begins, and with it all is published anew.
            await self._begin_epoch(NOTHING)
        progress.position, progress.head = page.position, page.head
        progress.owed |= page.hosts
        if page.states:
            progress.owed -= await self._send(page.states)
        await self._publish(progress.owed)
        return True

    def _read(self, progress: _Progress) -> _Page | None:
        service = self._service
        with service.store.read() as reader:
            head = host_states.head(reader)
            fence, _ = head
            if host_states.has_lost(reader, *progress.head):
                return _Page(fence.position, set(), (), head, is_lost=True)
            if fence.epoch != progress.head[0].epoch:
                return _Page(fence.position, {edge.host for edge in reader.edges.all()}, (), head)
            page = reader.journal.page(after=progress.position, limit=ENTRIES)
            if not page:
                return None
            last = page[-1][0]
            # What was pruned while NATS was away may have concerned any host.
            is_whole = last - progress.position == len(page)
            found = host_states.concerned(reader, [entry for _, entry in page]) if is_whole else None
            edges = reader.edges.all() if found is None else reader.edges.of(found)
            behind = Fence(fence.epoch, last)
            hosts = {edge.host for edge in edges if found is None or self._published.get(edge.host, NOTHING) < behind}
            if len(hosts) > HOSTS:
                return _Page(last, hosts, (), head)
            states = host_states.read(reader, hosts, service.clock.now(), service.timing.speed)
            return _Page(last, hosts, states, head)

    async def _publish(self, owed: set[str]) -> None:
        """Take from `owed` what has been published. States are made while others are under way."""
        hosts = sorted(owed)
        sending: asyncio.Task[set[str]] | None = None
        for start in range(0, len(hosts), HOSTS):
            states = await asyncio.to_thread(self._states, hosts[start : start + HOSTS])
            if sending is not None:
                owed -= await sending
            sending = asyncio.create_task(self._send(states))
        if sending is not None:
            owed -= await sending

    def _states(self, hosts: Collection[str]) -> list[HostState]:
        with self._service.store.read() as reader:
            return host_states.read(reader, hosts, self._service.clock.now(), self._service.timing.speed)

    async def _send(self, states: Sequence[HostState]) -> set[str]:
        """The hosts whose state is there now, or that cannot have it. Only if all of them fail, so does this."""
        results = await asyncio.gather(*(self._send_one(state) for state in states), return_exceptions=True)
        done: set[str] = set()
        failures = []
        for state, result in zip(states, results, strict=True):
            if result is None:
                done.add(state.host)
            elif isinstance(result, MaxPayloadError):
                log.error("A state is larger than NATS allows", action="cluster.too_large", host=state.host)
                done.add(state.host)
            else:
                failures.append((state.host, result))
        if failures:
            host, reason = failures[0]
            if not done:
                raise reason
            if self._unsent.again(repr(reason)):
                log.warning("A state is not published", action="cluster.unpublished", host=host, reason=words(reason))
        return done

    async def _send_one(self, state: HostState) -> None:
        subject, data = Subjects.of(state.host).docs, messages.encode_state(state)
        if len(data) > self._client.max_payload - HEADER_BYTES:
            raise MaxPayloadError
        async with self._in_flight:
            while True:
                expected = {EXPECTED: str(self._sequences.get(state.host, 0))}
                try:
                    ack = await self._js.publish(subject, data, timeout=ACK_SECONDS, headers=expected)
                except APIError as error:
                    if error.err_code != WRONG_SEQUENCE:
                        raise
                    if await self._is_newer(subject, state):
                        return
                else:
                    self._sequences[state.host] = ack.seq
                    self._published[state.host] = state.fence
                    return

    async def _is_newer(self, subject: str, state: HostState) -> bool:
        """Whether what is there is, or is the same; learns its sequence. Edges tell time by its speed, too."""
        try:
            found = await self._js.get_msg(DOCS, subject=subject)
        except NotFoundError:
            self._sequences[state.host] = 0
            return False
        self._sequences[state.host] = found.seq or 0
        try:
            there = messages.decode_state(found.data or b"", state.host)
        except MalformedError:
            return False
        if there.fence < state.fence or (there.fence == state.fence and there.speed != state.speed):
            return False
        await self._compare(there)
        self._published[state.host] = there.fence
        return True

    async def _lost(self) -> set[str]:
        """Hosts whose state is not in the stream any more, or did not arrive."""
        before, self._stream_made = self._stream_made, (await self._js.stream_info(DOCS)).created
        if before != self._stream_made:
            # Edges that have their state cannot know whether it is still the newest.
            return self._service.edges.hosts
        return self._service.edges.behind()

    async def _last(self) -> HostState | None:
        """What was published last, of any host."""
        stream = await self._js.stream_info(DOCS)
        self._stream_made, last = stream.created, stream.state.last_seq
        if not last:
            return None
        try:
            found = await self._js.get_msg(DOCS, seq=last)
            host = messages.host_of_state(found.data or b"")
            return messages.decode_state(found.data or b"", host)
        except (NotFoundError, MalformedError):
            return None

    async def _believe_edges(self) -> None:
        """Begin an epoch if edges alone still have what the database lacks: they would refuse its states for ever."""
        latest = self._service.edges.latest(besides=self._believed)
        if latest is not None and await self._has_lost(latest.fence, latest.at):
            self._believed.add(latest.host)
            # By the clock, not by what an edge says, it is later than any that there was.
            await self._begin_epoch(NOTHING)

    async def _compare(self, there: HostState) -> None:
        """Begin an epoch if the database lacks what was published: it was restored, or a standby took over."""
        if await self._has_lost(there.fence, there.at):
            await self._begin_epoch(there.fence)

    async def _has_lost(self, fence: Fence, at: datetime) -> bool:
        def has_lost() -> bool:
            with self._service.store.read() as reader:
                return host_states.has_lost(reader, fence, at)

        return await asyncio.to_thread(has_lost)

    async def _begin_epoch(self, after: Fence) -> None:
        epoch = await asyncio.to_thread(housekeeping.begin_epoch, self._service, after=after.epoch)
        self._published.clear()
        log.warning("The database lacks what was published: an epoch begins", action="cluster.restored", epoch=epoch)
