"""What the journal has reaches the stream of states, from one process at a time, and never an older state last."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs
from nats.errors import Error
from nats.js.api import PubAck
from nats.js.errors import APIError
from structlog.testing import capture_logs
from tests.centre.conftest import Bus, Run, register
from tests.service.rig import OPERATOR, Rig

from forenotice.centre import host_states
from forenotice.centre.publisher import LENGTH, Publisher
from forenotice.cluster import messages, streams
from forenotice.cluster.messages import MOST, Beat, HostState
from forenotice.cluster.subjects import DOCS, Subjects
from forenotice.core.operations import Kind
from forenotice.runtime import Runtime
from forenotice.service import history, housekeeping
from forenotice.service.edges import LEASE
from forenotice.store.database import Store


def events(state: HostState | None) -> set[str]:
    assert state is not None
    return {event.id for scope in state.scopes if scope.document for event in scope.document.events}


def test_a_change_reaches_every_host_that_shows_it_and_no_other(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-a", "host-b", "host-d")
        await publisher.step()
        before = await bus.state("host-d")
        assert before is not None
        (made,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
        await publisher.step()
        assert events(await bus.state("host-b")) == {event.id for event in made.events}
        assert events(await bus.state("host-a")) < events(await bus.state("host-b"))
        assert await bus.state("host-c") is None, "it has no edge"
        assert await bus.state("host-d") == before

    with_bus(test)


def test_an_edge_gets_its_state_when_it_is_first_heard(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        await publisher.step()
        assert await bus.state("host-a") is None
        register(rig, "host-a")
        await publisher.step()
        assert await bus.state("host-a") is not None

    with_bus(test)


def test_one_process_publishes_until_its_lease_ends(rig: Rig, store: Store, with_bus: Run) -> None:
    other = Rig(store, clock=rig.clock, runtime=Runtime(clock=rig.clock))

    async def test(bus: Bus) -> None:
        first, second = Publisher(rig.service, bus.client, bus.js), Publisher(other.service, bus.client, bus.js)
        register(rig, "host-b")
        await first.step()
        (made,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
        await second.step()
        assert events(await bus.state("host-b")) == set()
        rig.clock.advance(seconds=LENGTH.total_seconds() + 1)
        await second.step()
        assert events(await bus.state("host-b")) == {event.id for event in made.events}
        await second.stop()
        with store.read() as reader:
            lease, last = reader.leases.get(LEASE), reader.journal.last()
        assert last is not None
        assert (lease.holder, lease.position) == ("", last[0])

    with_bus(test)


def test_a_process_that_slept_leaves_no_older_state(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b")
        await publisher.step()
        old = await bus.state("host-b")
        assert old is not None
        (made,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
        # Another process has published what comes next, and more.
        await Publisher(rig.service, bus.client, bus.js).step()
        newer = await bus.state("host-b")
        assert newer is not None
        await publisher._send([old])
        assert await bus.state("host-b") == newer
        assert events(newer) == {event.id for event in made.events}

    with_bus(test)


def test_what_cannot_be_published_is_owed(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b")
        await publisher.step()
        (made,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
        await bus.js.delete_stream(DOCS)
        with pytest.raises(Error):
            await publisher.step()
        await streams.ensure(bus.js, 1)
        await publisher.step()
        assert events(await bus.state("host-b")) == {event.id for event in made.events}

    with_bus(test)


def test_a_state_that_nats_does_not_take_keeps_no_other_waiting(
    rig: Rig, with_bus: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bus: Bus) -> None:
        publish = bus.js.publish

        async def refuse_one(subject: str, *arguments: Any, **options: Any) -> PubAck:
            if subject == Subjects.of("host-a").docs:
                raise APIError(err_code=10077, description="for this host only")
            return await publish(subject, *arguments, **options)

        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-a", "host-b")
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(bus.js, "publish", refuse_one)
            await publisher.step()
            assert await bus.state("host-b") is not None
            assert await bus.state("host-a") is None
            (made,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
            for _ in range(2):
                with suppress(APIError):
                    await publisher.step()
            assert events(await bus.state("host-b")) == {event.id for event in made.events}
        await publisher.step()
        assert await bus.state("host-a") is not None, "it is owed"

    with_bus(test)


def test_a_state_larger_than_nats_takes_is_not_sent(rig: Rig, with_bus: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would end the connection. It counts headers, too."""

    async def test(bus: Bus) -> None:
        register(rig, "host-a", "host-d")
        with rig.service.store.read() as reader:
            large, small = host_states.read(reader, ["host-a", "host-d"], rig.clock.now(), 1.0)
        most = len(messages.encode_state(large)) + 10
        assert len(messages.encode_state(small)) + 128 <= most
        monkeypatch.setattr(bus.client, "_max_payload", most)
        with capture_logs() as logged:
            await Publisher(rig.service, bus.client, bus.js).step()
        assert [entry["host"] for entry in logged if entry["action"] == "cluster.too_large"] == ["host-a"]
        assert await bus.state("host-a") is None
        assert await bus.state("host-d") is not None

    with_bus(test)


def test_a_database_that_lacks_what_was_published_begins_an_epoch(rig: Rig, with_bus: Run) -> None:
    """It was restored, or a standby took over: edges would refuse its states for ever."""

    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b", "host-d")
        await publisher.step()
        known = await bus.state("host-b")
        assert known is not None
        await bus.put(structs.replace(known, position=known.position + 50))
        again = Publisher(rig.service, bus.client, bus.js)
        await again.step()
        for host in ("host-b", "host-d"):
            found = await bus.state(host)
            assert found is not None
            assert found.fence > known.fence
            assert found.epoch > known.epoch
        with rig.service.store.read() as reader:
            epoch = reader.meta.epoch()
        await again.step()
        await Publisher(rig.service, bus.client, bus.js).step()
        with rig.service.store.read() as reader:
            assert reader.meta.epoch() == epoch, "once is enough"

    with_bus(test)


def test_an_entry_of_another_time_is_another_entry(rig: Rig, with_bus: Run) -> None:
    """The database was restored and has grown beyond what was published since."""

    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b")
        await publisher.step()
        known = await bus.state("host-b")
        assert known is not None
        await bus.put(structs.replace(known, at=known.at - timedelta(seconds=5)))
        await Publisher(rig.service, bus.client, bus.js).step()
        found = await bus.state("host-b")
        assert found is not None
        assert found.epoch > known.epoch

    with_bus(test)


def test_a_database_that_lost_what_was_published_and_has_grown_since(rig: Rig, store: Store, with_bus: Run) -> None:
    """A standby took over that lacked the last entries, and others were written before this process looked again."""

    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b", "host-d")
        rig.schedule(Kind.HOST_UPDATE, "host-b")
        await publisher.step()
        with store.write() as transaction:
            transaction._db.run("UPDATE journal SET at = at - 1000")
        rig.set_host("host-d", cordoned=True)
        await publisher.step()
        await publisher.step()
        with store.read() as reader:
            epoch = reader.meta.epoch()
        assert epoch > 0
        for host in ("host-b", "host-d"):
            found = await bus.state(host)
            assert found is not None
            assert found.epoch == epoch

    with_bus(test)


def test_an_epoch_that_another_process_has_begun_is_noticed_whatever_came_since(
    rig: Rig, store: Store, with_bus: Run
) -> None:
    """A backup was restored under this process, and entries were written beyond what it has published."""

    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b", "host-d")
        await publisher.step()
        housekeeping.begin_epoch(rig.service)
        rig.set_host("host-d", cordoned=True)
        with store.write() as transaction:
            disguised = (
                "UPDATE journal SET action = 'host.cordoned', host = 'host-d' WHERE action = 'database.restored'"
            )
            transaction._db.run(disguised)
        await publisher.step()
        with store.read() as reader:
            epoch = reader.meta.epoch()
        found = await bus.state("host-b")
        assert found is not None
        assert found.epoch == epoch > 0

    with_bus(test)


def test_an_epoch_that_falls_begins_another(rig: Rig, store: Store, with_bus: Run) -> None:
    """A database of before the last epoch was restored under this process."""

    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b")
        fallen = housekeeping.begin_epoch(rig.service)
        await publisher.step()
        with store.write() as transaction:
            transaction.meta.put("epoch", str(fallen - 1))
        rig.set_host("host-d", cordoned=True)
        await publisher.step()
        found = await bus.state("host-b")
        assert found is not None
        assert found.epoch > fallen

    with_bus(test)


def test_what_was_pruned_before_it_was_published_is_not_missed(rig: Rig, with_bus: Run) -> None:
    """NATS was away for so long."""

    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b", "host-d")
        (made,) = rig.schedule(Kind.RESTART, "db")
        await publisher.step()
        assert events(await bus.state("host-b")) == {made.events[0].id}
        rig.cancel(made)
        rig.clock.advance(days=2)
        rig.set_host("host-d", cordoned=True)
        assert history.prune(rig.service, OPERATOR, before=rig.clock.now() - timedelta(days=1)).entries
        await publisher.step()
        assert events(await bus.state("host-b")) == set()

    with_bus(test)


def test_another_speed_is_published_although_nothing_else_has_changed(rig: Rig, store: Store, with_bus: Run) -> None:
    """The service was started anew: its edges would shorten another time."""
    fast = Rig(store, clock=rig.clock, runtime=Runtime(clock=rig.clock), speed=60)

    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b")
        await publisher.step()
        await publisher.stop()
        await Publisher(fast.service, bus.client, bus.js).step()
        found = await bus.state("host-b")
        assert found is not None
        assert found.speed == 60

    with_bus(test)


def test_after_a_restore_all_states_are_published_anew(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-a", "host-d")
        await publisher.step()
        epoch = housekeeping.begin_epoch(rig.service)
        await publisher.step()
        for host in ("host-a", "host-d"):
            found = await bus.state(host)
            assert found is not None
            assert found.epoch == epoch

    with_bus(test)


def test_more_hosts_than_are_made_at_once(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        names = [f"h{number}" for number in range(120)]
        for name in names:
            rig.add_host(name)
        register(rig, *names)
        await publisher.step()
        assert {name: (await bus.state(name)) is not None for name in names} == dict.fromkeys(names, True)

    with_bus(test)


def test_an_edge_that_has_nothing_gets_its_state_again(rig: Rig, with_bus: Run) -> None:
    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b")
        await publisher.step()
        await bus.js.purge_stream(DOCS)
        rig.service.edges.beat("host-b", Beat(version="1"))
        publisher._repair_at = 0.0
        await publisher.step()
        found = await bus.state("host-b")
        assert found is not None
        await bus.js.purge_stream(DOCS)
        rig.service.edges.beat("host-b", Beat(version="1", epoch=found.epoch, position=found.position))
        publisher._repair_at = 0.0
        await publisher.step()
        assert await bus.state("host-b") is None, "it has what was published"

    with_bus(test)


def test_a_stream_that_was_lost_has_all_states_again(rig: Rig, with_bus: Run) -> None:
    """Edges that have theirs could not tell whether it is the newest."""

    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b", "host-d")
        await publisher.step()
        known = await bus.state("host-b")
        assert known is not None
        for host in ("host-b", "host-d"):
            rig.service.edges.beat(host, Beat(version="1", epoch=known.epoch, position=known.position, at=known.at))
        await bus.js.delete_stream(DOCS)
        await streams.ensure(bus.js, 1)
        publisher._repair_at = 0.0
        await publisher.step()
        assert await bus.state("host-b") == known
        assert await bus.state("host-d") is not None

    with_bus(test)


def test_an_edge_that_shows_what_the_database_lacks_begins_an_epoch(rig: Rig, with_bus: Run) -> None:
    """The streams were lost, and an older database restored: the edge would refuse all its states for ever."""

    async def test(bus: Bus) -> None:
        publisher = Publisher(rig.service, bus.client, bus.js)
        register(rig, "host-b", "host-d")
        await publisher.step()
        known = await bus.state("host-b")
        assert known is not None
        later = Beat(version="1", epoch=known.epoch, position=known.position + 50, at=known.at)
        epochs = []
        for beat in (later, structs.replace(later, epoch=MOST)):
            rig.service.edges.beat("host-b", beat)
            publisher._repair_at = 0.0
            await publisher.step()
            found = [await bus.state(host) for host in ("host-b", "host-d")]
            epochs.append({each.epoch for each in found if each is not None})
        assert min(epochs[0]) > known.epoch
        assert epochs[1] == epochs[0], "once is enough, whatever an edge says"

    with_bus(test)
