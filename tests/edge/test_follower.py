"""Which state guests are shown: the newest by its fence, whole, readable, and on disk before anybody sees it."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.edge.states import HOST, state
from tests.metadata.running import DB_VM, EVENT, EVENT_ID, WEB, WEB_VMS

from forenotice import publication
from forenotice.clock import SystemClock
from forenotice.cluster import messages
from forenotice.cluster.messages import NOTHING, EndedEvent, Fence, HostState
from forenotice.core.operations import Status
from forenotice.core.timing import Timing
from forenotice.edge.follower import Follower
from forenotice.edge.state_file import FormerStaysError, StateFile
from forenotice.metadata.published import PublishedFleet

DEADLINE = 30.0
A_MOMENT = timedelta(seconds=0.2)


class Rig:
    """A follower that runs; made on a loop."""

    def __init__(self, directory: Path, file: StateFile | None = None) -> None:
        self.clock = SystemClock()
        self.published = PublishedFleet()
        self.published.loaded = False
        self.timings: list[Timing] = []
        self.file = file or StateFile(directory)
        self.follower = Follower(HOST, self.published, self.file, self.clock, self.timings.append)
        self._newest = NOTHING

    def offer(self, *states: HostState) -> None:
        for each in states:
            self.follower.offer(messages.encode_state(each))
            self._newest = max(self._newest, each.fence)

    async def settle(self) -> None:
        """Until what was offered is shown."""
        await until(lambda: self.follower.fence >= self._newest)

    def incarnation(self, scope: str = WEB.key) -> int:
        return self.published.scopes[scope].document.incarnation


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def run(directory: Path, test: Callable[[Rig], Awaitable[None]], file: StateFile | None = None) -> None:
    async def main() -> None:
        rig = Rig(directory, file)
        rig.follower.load()
        running = asyncio.create_task(rig.follower.run())
        try:
            await test(rig)
        finally:
            assert not running.done()
            running.cancel()

    asyncio.run(main())


def saved(directory: Path) -> Fence | None:
    found = StateFile(directory).read()
    return None if found is None else messages.decode_state(found[0], HOST).fence


FENCES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)).map(lambda pair: Fence(*pair)), max_size=8)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ways=FENCES)
def test_whatever_comes_in_whatever_order_the_greatest_is_shown_and_none_before_a_greater(
    ways: list[Fence], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("follower")

    async def test(rig: Rig) -> None:
        greatest = NOTHING
        for fence in ways:
            rig.offer(state(fence.epoch, fence.position))
            await rig.settle()
            greatest = max(greatest, fence)
            assert rig.follower.fence == greatest
            assert rig.published.loaded
        assert saved(directory) == (greatest if ways else None)

    run(directory, test)


def test_of_states_that_come_while_one_is_being_saved_only_the_newest_is_shown(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.offer(state(1, 1), state(1, 4), state(1, 3), state(0, 9), state(1, 4))
        await rig.settle()
        assert rig.follower.fence == Fence(1, 4)
        # Once more: it is there.
        rig.offer(state(1, 4))
        await asyncio.to_thread(lambda: None)
        assert rig.follower.applied == 1

    run(tmp_path, test)


def test_a_state_is_shown_only_once_it_is_on_disk(tmp_path: Path) -> None:
    seen: list[tuple[Fence, bool]] = []

    class Watched(StateFile):
        def write(self, data: bytes) -> None:
            seen.append((rig.follower.fence, rig.published.loaded))
            super().write(data)
            seen.append((rig.follower.fence, rig.published.loaded))

    rig: Rig

    async def test(made: Rig) -> None:
        nonlocal rig
        rig = made
        for position in (1, 2):
            rig.offer(state(0, position))
            await rig.settle()
            assert saved(tmp_path) == rig.follower.fence == Fence(0, position)

    run(tmp_path, test, Watched(tmp_path))
    assert seen == [(NOTHING, False), (NOTHING, False), (Fence(0, 1), True), (Fence(0, 1), True)]


def test_what_is_on_disk_is_shown_at_once_with_its_age(tmp_path: Path) -> None:
    StateFile(tmp_path).write(messages.encode_state(state(2, 7, incarnation=5)))

    async def test(rig: Rig) -> None:
        assert rig.follower.fence == Fence(2, 7)
        assert rig.incarnation() == 5
        rig.clock.not_below(rig.clock.now() + timedelta(hours=1))
        assert rig.follower.age is not None
        assert timedelta(hours=1) <= rig.follower.age < timedelta(hours=2)
        # It is the newest, by whoever tells us so; that an older one was seen somewhere tells nothing.
        rig.offer(state(2, 6))
        assert rig.follower.age >= timedelta(hours=1)
        assert (rig.follower.beat().age or 0) >= 3600
        rig.offer(state(2, 7))
        assert rig.follower.age < timedelta(hours=1)

    run(tmp_path, test)


@pytest.mark.parametrize("data", [b"", b"rubbish", messages.encode_state(state(1, 1, host="another"))])
def test_what_is_on_disk_and_not_of_this_host_is_not_shown(tmp_path: Path, data: bytes) -> None:
    StateFile(tmp_path).write(data)

    async def test(rig: Rig) -> None:
        assert (rig.follower.fence, rig.follower.age, rig.published.loaded) == (NOTHING, None, False)
        rig.offer(state(0, 0))
        await rig.settle()
        assert rig.published.loaded

    run(tmp_path, test)
    assert saved(tmp_path) == Fence(0, 0)


def meddled(change: Callable[[Any], object]) -> bytes:
    built = msgspec.to_builtins(state(9, 9))
    change(built)
    return zlib.compress(msgspec.json.encode(built))


def naive(built: Any) -> None:
    built["scopes"][0]["document"]["events"][0]["not_before"] = "2026-03-09T12:15:00"


def beyond_the_calendar(built: Any) -> None:
    built["scopes"][0]["last_heard"] = "0001-01-01T00:00:00+23:00"


REFUSED = {
    "rubbish": (b"rubbish", "is not compressed"),
    "cut off": (messages.encode_state(state(9, 9))[:-1], "is cut off"),
    "of another host": (messages.encode_state(state(9, 9, host="another")), "is of host 'another'"),
    "of another format": (meddled(lambda built: built.update(format=2)), "has format 2"),
    "with a time that cannot be rendered": (meddled(naive), "cannot be shown: ValueError"),
    "with a time that is none": (meddled(beyond_the_calendar), "cannot be shown: OverflowError"),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_malformed_state_is_refused_counted_and_told_and_the_last_good_one_stays(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    async def test(rig: Rig) -> None:
        assert rig.follower.beat().refusal == ""
        rig.offer(state(1, 1, incarnation=5))
        await rig.settle()
        rig.follower.news.clear()
        for times in (1, 2):
            rig.follower.offer(data)
            assert rig.follower.news.is_set()
            told = rig.follower.beat()
            assert (told.refused, told.fence) == (times, Fence(1, 1))
            assert reason in told.refusal
            assert messages.decode(messages.encode(told), type(told)) == told
        await asyncio.to_thread(lambda: None)
        assert (rig.incarnation(), saved(tmp_path)) == (5, Fence(1, 1))
        rig.offer(state(1, 2, incarnation=6))
        await rig.settle()
        assert rig.incarnation() == 6

    run(tmp_path, test)


def test_it_goes_on_without_a_disk_and_leaves_nothing_that_is_older_than_what_was_shown(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.offer(state(1, 1, incarnation=5))
        await rig.settle()
        # It cannot be written, and can be removed.
        (tmp_path / "state.new").symlink_to(tmp_path / "nowhere" / "state")
        rig.offer(state(1, 2, incarnation=6))
        await rig.settle()
        assert (rig.incarnation(), rig.follower.unsaved, saved(tmp_path)) == (6, 1, None)
        # Read anew, it is written as soon as there is room.
        rig.offer(state(1, 1), state(1, 2, incarnation=6))
        await until(lambda: saved(tmp_path) == Fence(1, 2))
        assert (rig.incarnation(), rig.follower.unsaved) == (6, 1)

    run(tmp_path, test)


def test_as_long_as_the_former_state_cannot_be_removed_guests_see_no_newer_one(tmp_path: Path) -> None:
    """After a restart they would see the former one again."""

    async def test(rig: Rig) -> None:
        rig.offer(state(1, 1, incarnation=5))
        await rig.settle()
        # As on a disk that can only be read: what is there can neither be replaced nor removed.
        (tmp_path / "state").unlink()
        (tmp_path / "state").mkdir()
        shown = rig.clock.now()
        await until(lambda: rig.clock.now() - shown > A_MOMENT)
        for unsaved in (1, 2):
            rig.follower.offer(messages.encode_state(state(1, 2, incarnation=6)))
            await until(partial(lambda unsaved: rig.follower.unsaved == unsaved, unsaved))
            assert rig.incarnation() == 5
            # It is known not to be the newest, so they will be told how old it is.
            assert rig.follower.age is not None
            assert rig.follower.age > A_MOMENT
        (tmp_path / "state").rmdir()
        mended = rig.clock.now()
        rig.offer(state(1, 2, incarnation=6))
        await rig.settle()
        assert (rig.incarnation(), saved(tmp_path)) == (6, Fence(1, 2))
        assert rig.follower.age is not None
        age = rig.follower.age
        assert rig.clock.now() - age >= mended

    run(tmp_path, test)


def test_what_comes_while_a_state_cannot_be_saved_is_tried_next(tmp_path: Path) -> None:
    loop: asyncio.AbstractEventLoop
    rig: Rig

    class OnceReadOnly(StateFile):
        tries = 0

        def write(self, data: bytes) -> None:
            self.tries += 1
            if self.tries == 1:
                loop.call_soon_threadsafe(rig.offer, state(1, 2, incarnation=6))
                raise FormerStaysError
            super().write(data)

    async def test(made: Rig) -> None:
        nonlocal loop, rig
        loop, rig = asyncio.get_running_loop(), made
        rig.offer(state(1, 1, incarnation=5))
        await until(lambda: rig.follower.fence == Fence(1, 2))
        assert rig.incarnation() == 6

    run(tmp_path, test, OnceReadOnly(tmp_path))


def test_incarnations_never_fall_whatever_a_later_epoch_says(tmp_path: Path) -> None:
    """A restored database gives its scopes tags of its epoch; should one be the same, its incarnation goes on."""

    async def test(rig: Rig) -> None:
        for epoch, position, incarnation, shown in ((1, 9, 7, 7), (2, 3, 5, 7), (2, 4, 8, 8)):
            rig.offer(state(epoch, position, incarnation=incarnation))
            await rig.settle()
            assert (rig.follower.fence, rig.incarnation()) == (Fence(epoch, position), shown)

    run(tmp_path, test)


def test_it_keeps_to_the_speed_that_the_state_says(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        for position, speed in enumerate((1.0, 1.0, 60.0)):
            rig.offer(state(0, position, speed=speed))
            await rig.settle()
        assert [timing.speed for timing in rig.timings] == [1.0, 60.0]
        # Nothing has happened since but that the service was started anew.
        rig.offer(state(0, 2, speed=10.0))
        await until(lambda: [timing.speed for timing in rig.timings] == [1.0, 60.0, 10.0])

    run(tmp_path, test)


def test_a_vm_that_has_left_the_host_is_unknown_and_one_that_came_is_not(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.offer(state(0, 1))
        await rig.settle()
        assert set(rig.published.by_name) == {"web-0", "web-1", "db"}
        rig.offer(state(0, 2, scopes=(publication.of(WEB, vms=WEB_VMS[1:], events=(EVENT,)),)))
        await rig.settle()
        assert set(rig.published.by_name) == {"web-1"}
        assert DB_VM.addresses[0] not in rig.published.by_address

    run(tmp_path, test)


def test_what_can_be_approved_here(tmp_path: Path) -> None:
    ended = "0B5E5F1E-0000-4000-8000-000000000001"

    async def test(rig: Rig) -> None:
        now = rig.clock.now()
        assert not rig.follower.approvable(WEB.key, EVENT_ID)
        rig.offer(state(0, 1, ended=(EndedEvent(id=ended, scope=WEB.key, ended_at=now - timedelta(minutes=30)),)))
        await rig.settle()
        assert rig.follower.approvable(WEB.key, EVENT_ID)
        assert rig.follower.approvable(WEB.key, ended)
        # Of another scope, or of none.
        for scope, event in ((DB_VM.scope, EVENT_ID), (DB_VM.scope, ended), ("vm:nobody", EVENT_ID), (WEB.key, "X")):
            assert not rig.follower.approvable(scope, event)
        rig.clock.not_below(now + timedelta(minutes=31))
        assert not rig.follower.approvable(WEB.key, ended)
        assert rig.follower.approvable(WEB.key, EVENT_ID)

    run(tmp_path, test)


def test_a_beat_tells_what_was_applied_and_when_vms_that_are_acted_on_polled(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        told = rig.follower.beat()
        assert (told.fence, told.at, told.refused, told.polls) == (NOTHING, None, 0, {})
        rig.offer(state(3, 8))
        await rig.settle()
        polled: datetime = rig.clock.now().replace(microsecond=0)
        for guest in rig.published.by_name.values():
            guest.polled = polled.timestamp()
        told = rig.follower.beat()
        assert (told.fence, told.at, told.polls) == (Fence(3, 8), state(3, 8).at, {})
        rig.offer(state(3, 9, status=Status.STARTED))
        await rig.settle()
        assert rig.follower.started == {"web-0"}
        assert rig.follower.beat().polls == {"web-0": polled}
        rig.published.by_name["web-0"].polled = 0.0
        assert rig.follower.beat().polls == {}

    run(tmp_path, test)
