"""What edges send is committed, then acknowledged; it comes again until then, and counts once."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from nats.errors import TimeoutError as NatsTimeoutError
from structlog.testing import capture_logs
from tests.centre.conftest import Bus, Run
from tests.nats_servers import NatsServers
from tests.service.rig import Rig

from forenotice.centre.intake import Intake
from forenotice.cluster import messages
from forenotice.cluster.connection import Servers, close, connect
from forenotice.cluster.messages import Approval, Beat, Heard, Question, Reply
from forenotice.cluster.subjects import CENTRE_INBOX, UP, Subjects
from forenotice.core import errors
from forenotice.core.draft import World
from forenotice.core.fleet import Listening
from forenotice.core.lifecycle import StartRequests
from forenotice.core.operations import Kind
from forenotice.service.guests import Guests
from forenotice.store.transaction import Reader

DEADLINE = 20.0
B = Subjects.of("host-b")


@asynccontextmanager
async def taking(rig: Rig, bus: Bus) -> AsyncIterator[None]:
    intake = Intake(rig.service, bus.client, bus.js)
    await intake.listen()
    await intake.bind()
    storing = asyncio.create_task(intake.store())
    try:
        yield
    finally:
        storing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await storing


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came"
        await asyncio.sleep(0.01)


async def until_acknowledged(bus: Bus) -> None:
    async def is_empty() -> bool:
        return not (await bus.js.stream_info(UP)).state.messages

    await until(is_empty)


def approval(rig: Rig, vm: str = "db") -> Approval:
    (made,) = rig.schedule(Kind.RESTART, vm)
    return Approval(vm=vm, scope=made.events[0].scope, event_ids=(made.events[0].id,))


def test_an_approval_is_in_the_journal_before_it_is_acknowledged(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        sent = approval(rig)
        for _ in range(2):
            await bus.js.publish(B.approve, messages.encode(sent))
        async with taking(rig, bus):
            await until_acknowledged(bus)
        assert rig.actions(event=sent.event_ids[0]).count("event.approved") == 1
        assert rig.event(sent.event_ids[0]).approved_by == "db"

    with_bus(test)


def test_what_cannot_be_committed_comes_again(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        sent = approval(rig)
        real, failures = rig.service.store.write, 0

        def broken(check: Callable[[], None] = lambda: None) -> object:
            nonlocal failures
            failures += 1
            if failures < 3:
                raise errors.UnavailableError
            return real(check)

        rig.service.store.write = broken  # type: ignore[method-assign, assignment]
        await bus.js.publish(B.approve, messages.encode(sent))
        async with taking(rig, bus):
            await until_acknowledged(bus)
        assert failures >= 3
        assert rig.actions(event=sent.event_ids[0]).count("event.approved") == 1

    with_bus(test)


def test_what_is_malformed_or_refused_keeps_nothing_else_waiting(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        sent = approval(rig)
        await bus.js.publish(B.approve, b"{")
        await bus.js.publish(B.heard, b"[]")
        await bus.js.publish(Subjects.of("host-a").approve, messages.encode(sent))
        async with taking(rig, bus):
            await until_acknowledged(bus)
            assert rig.event(sent.event_ids[0]).approved_at is None
            await bus.js.publish(B.approve, messages.encode(sent))
            await until_acknowledged(bus)
        assert rig.event(sent.event_ids[0]).approved_at is not None

    with_bus(test)


def test_one_host_does_not_fill_the_log_with_what_is_refused(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        sent = messages.encode(approval(rig))
        for _ in range(300):
            await bus.client.publish(Subjects.of("host-a").approve, sent)
        await bus.js.publish(Subjects.of("host-c").approve, sent)
        with capture_logs() as logged:
            async with taking(rig, bus):
                await until_acknowledged(bus)
        refused = Counter(entry["host"] for entry in logged if entry["action"] == "cluster.approval_refused")
        assert 100 <= refused["host-a"] < 150
        assert refused["host-c"] == 1

    with_bus(test)


def test_what_an_edge_took_within_the_hour_by_its_own_clock_is_no_reason_to_refuse_the_rest(
    rig: Rig, with_bus: Run
) -> None:
    """The edge has answered 200: JetStream took it a moment later, and clocks differ."""

    async def test(bus: Bus) -> None:
        (over,) = rig.schedule(Kind.REDEPLOY, "db")
        rig.cancel(over)
        rig.clock.advance(hours=1, seconds=10)
        live = approval(rig)
        sent = Approval(vm="db", scope=live.scope, event_ids=(over.events[0].id, *live.event_ids))
        await bus.js.publish(B.approve, messages.encode(sent))
        async with taking(rig, bus):
            await until_acknowledged(bus)
        assert rig.event(live.event_ids[0]).approved_at is not None

    with_bus(test)


@pytest.mark.parametrize("error", [OverflowError("nobody thought of this"), errors.OverdueError()])
def test_one_that_cannot_be_stored_keeps_nothing_else_waiting(
    rig: Rig, with_bus: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever is wrong with it: it comes again later, and the others do not wait for it."""

    async def test(bus: Bus) -> None:
        good, bad = approval(rig), approval(rig, "web-1")
        real = Guests._load

        def broken(guests: Guests, reader: Reader, approvals: Sequence[StartRequests], now: datetime) -> World:
            if any(each.vm == "web-1" for each in approvals):
                raise error
            return real(guests, reader, approvals, now)

        monkeypatch.setattr(Guests, "_load", broken)
        await bus.js.publish(B.approve, messages.encode(bad))
        await bus.js.publish(B.approve, messages.encode(good))
        async with taking(rig, bus):

            async def only_one_is_left() -> bool:
                return (await bus.js.stream_info(UP)).state.messages == 1

            await until(only_one_is_left)
        assert rig.event(good.event_ids[0]).approved_at is not None
        assert rig.event(bad.event_ids[0]).approved_at is None

    with_bus(test)


async def publish_raw(bus: Bus, subject: str, headers: bytes, data: bytes) -> None:
    """As a client of one's own making can; the server does not look into headers."""
    assert bus.client._transport is not None
    words = f"HPUB {subject} {len(headers)} {len(headers) + len(data)}\r\n".encode()
    bus.client._transport.write(words + headers + data + b"\r\n")
    await bus.client.flush()


@pytest.mark.parametrize("lines", [b"", b"\r\nStatus: 503\r\n\r\n", b"\r\nStatus: 404\r\n\r\n"])
def test_headers_of_an_edge_keep_nothing_else_waiting(
    rig: Rig, with_bus: Run, servers: NatsServers, lines: bytes
) -> None:
    """The client fails over those that it cannot read, and takes a status for the server's."""

    async def test(bus: Bus) -> None:
        sent, headers = approval(rig), b"NATS/1.0" + lines
        await publish_raw(bus, Subjects.of("host-a").approve, headers, b"{")
        await bus.js.publish(B.approve, messages.encode(sent))
        client, _ = await connect(Servers(urls=tuple(servers.urls)), "test", CENTRE_INBOX)
        try:
            async with taking(rig, Bus(client, client.jetstream())):
                await publish_raw(bus, Subjects.of("host-a").beat, headers, b"{")
                await until_acknowledged(bus)
        finally:
            await close(client)
        assert rig.event(sent.event_ids[0]).approved_at is not None

    with_bus(test)


def test_what_no_database_could_keep_is_malformed(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        sent = approval(rig)
        await bus.js.publish(B.heard, b'{"scopes":{"vm:db":"0001-01-01T00:00:00+14:00"}}')
        await bus.js.publish(B.heard, b'{"scopes":{"vm:\\u0000":"2026-01-01T00:00:00Z"}}')
        await bus.js.publish(B.approve, messages.encode(sent).replace(b"db", b"\\u0000"))
        async with taking(rig, bus):
            await until_acknowledged(bus)

    with_bus(test)


def test_a_scope_that_is_heard_listens(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        rig.set_policy("vm:db", listening=Listening.AUTO)
        await bus.js.publish(B.heard, messages.encode(Heard(scopes={"vm:db": rig.clock.now()})))
        async with taking(rig, bus):
            await until_acknowledged(bus)
        assert rig.actions(scope="vm:db")[-1] == "scope.listening"

    with_bus(test)


def test_questions_are_answered_and_change_nothing(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        sent = approval(rig)
        asked = messages.encode(Question(vm=sent.vm, scope=sent.scope, event_ids=sent.event_ids))
        unknown = messages.encode(Question(vm=sent.vm, scope=sent.scope, event_ids=("0" * 36,)))
        async with taking(rig, bus):

            async def refusal(subject: str, question: bytes) -> str:
                reply = await bus.client.request(subject, question, timeout=DEADLINE)
                return messages.decode(reply.data, Reply).refusal

            assert await refusal(B.ask, asked) == ""
            assert await refusal(Subjects.of("host-a").ask, asked)
            assert await refusal(B.ask, unknown)
            with contextlib.suppress(NatsTimeoutError):
                await bus.client.request(B.ask, b"{", timeout=0.1)
            assert await refusal(B.ask, asked) == ""
        assert rig.event(sent.event_ids[0]).approved_at is None

    with_bus(test)


def test_beats_make_an_edge_known(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        async with taking(rig, bus):
            for subject, data in (
                (B.beat, messages.encode(Beat(version="1.2"))),
                (Subjects.of("nowhere").beat, messages.encode(Beat(version="1.2"))),
                (Subjects.of("host-a").beat, b"nonsense"),
            ):
                await bus.client.publish(subject, data)

            async def is_known() -> bool:
                rig.service.edges.watch(connected=True)
                return rig.service.edges.hosts == {"host-b"}

            await until(is_known)

    with_bus(test)
