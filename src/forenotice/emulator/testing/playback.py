"""A scenario that is being played, in the hands of a test; and the situations that a handler should get through."""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from forenotice.core import errors
from forenotice.emulator import faults
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.faults import Delay, DocumentChange, Fault, Since
from forenotice.emulator.player import Player
from forenotice.emulator.request_log import in_event_loop
from forenotice.emulator.scenarios import catalogue
from forenotice.emulator.scenarios.format import FOREVER
from forenotice.emulator.testing import event
from forenotice.emulator.testing.event import AnnouncedEvent, Condition
from forenotice.toml import nearest

if TYPE_CHECKING:
    from forenotice.emulator.testing.scheduled_events import ScheduledEvents

OURS = frozenset({"emulator", "emulator-endpoint", "forenotice-guests", "log"})
"""Names of threads that are no handlers."""
START_ONE = "start the handler before `run`"


class Playback:
    def __init__(self, emulator: Emulator, player: Player) -> None:
        self._emulator = emulator
        self._simulation = emulator.simulation
        self._player = player

    @property
    def events(self) -> list[AnnouncedEvent]:
        """All that it has announced so far, in that order."""
        entries = self._emulator.look(lambda: tuple(self._simulation.entries))
        return [self._announced(key) for key in dict.fromkeys(entry.event for entry in entries) if key]

    @property
    def labelled(self) -> Mapping[str, AnnouncedEvent]:
        """So far, by the `id` that the scenario gives them."""
        return {label: self._announced(key) for label, key in self._emulator.look(self._player.labels.copy).items()}

    @property
    def done(self) -> Condition:
        """All is played, and no event is left."""
        return Condition(self._emulator, "playback", "done", self._is_done, self._unfinished)

    @property
    def waiting_for(self) -> str:
        return self._player.waiting_for

    def wait_done(self, timeout: float) -> None:
        """In seconds of real time."""
        __tracebackhide__ = True
        self.done.wait(timeout)

    def run(self, *, polls: int = 2, pause: float = 0.1, timeout: float = 30) -> None:
        """To the end, without waiting for its times: whenever something has happened the handler polls so often, within
        the timeout, and has so many seconds more to act on it; then the clock moves on to whatever comes next.

        It fails at once when nothing in this process could be a handler and nobody has polled yet."""
        __tracebackhide__ = True
        event.block(self._run(polls, pause, timeout), "run()", "playback.run_async()")

    def run_async(self, *, polls: int = 2, pause: float = 0.1, timeout: float = 30) -> Coroutine[object, object, None]:
        """As `run`, for a handler in the test's own event loop: to be awaited."""
        return event.go_on(self._run(polls, pause, timeout))

    def _run(self, polls: int, pause: float, timeout: float) -> Iterator[None]:
        __tracebackhide__ = True
        if self._player.scenario.repeat == FOREVER:
            raise errors.RefusedError('a scenario that is repeated "forever" has no end: use `advance`')
        yield from self._give_time(polls, pause, timeout)
        while not self._is_done():
            due = self._emulator.look(lambda: self._emulator.due)
            if due is None:
                raise AssertionError(f"nothing more happens by itself: {self._unfinished()}")
            self._emulator.advance_to(due)
            yield from self._give_time(polls, pause, timeout)

    def _is_done(self) -> bool:
        return self._emulator.look(lambda: self._player.done and not self._simulation.live)

    def _announced(self, event_id: str) -> AnnouncedEvent:
        return AnnouncedEvent(self._emulator, self._simulation.event(event_id))

    def _unfinished(self, timeout: float | None = None) -> str:
        left = self._emulator.look(lambda: self._simulation.live)
        names = ", ".join(repr(self._announced(event.id)) for event in left) or "nothing"
        what = f"{names} is left" if self._player.done else f"it waits for {self.waiting_for}"
        return what if timeout is None else f"the scenario is not over after {timeout:g} s: {what}"

    def _give_time(self, polls: int, pause: float, timeout: float) -> Iterator[None]:
        __tracebackhide__ = True
        emulator = self._emulator
        monotonic = emulator.runtime.monotonic
        since = monotonic()

        def missed() -> str:
            if not emulator.requests:
                return f"nobody has polled within {timeout:g} s: {START_ONE}, and let it poll {emulator.address}"
            return f"there were not {polls} polls within {timeout:g} s{emulator.requests.refusals()}"

        if not self._has_looked(polls, since) and not emulator.requests and not _may_be_polled():
            raise AssertionError(f"nobody polls: {START_ONE}, or use `advance` without one")
        yield from event.until(monotonic, lambda: self._has_looked(polls, since), timeout, missed)
        yield from event.until(monotonic, lambda: False, pause)

    def _has_looked(self, polls: int, since: float) -> bool:
        # A long poll has seen everything, and a delayed request goes on only with time.
        if self._emulator.waiting or self._emulator.faults.delayed:
            return True
        # What a fault has hidden the next poll shows, unless the fault lasts.
        lasting = {"", *(active.fault.name for active in self._emulator.faults.active if active.times is None)}
        looks = [poll for poll in self._emulator.requests.polls if poll.monotonic >= since and not poll.is_refused]
        return sum(lasting.issuperset((poll.fault or "").split("+")) for poll in looks) >= polls


def _may_be_polled() -> bool:
    """Whether this process has a thread, a child or a task that could be a handler."""
    if any(thread.name not in OURS for thread in threading.enumerate() if thread is not threading.current_thread()):
        return True
    if in_event_loop():
        others = asyncio.all_tasks() - {asyncio.current_task()}
        # Those of anyio's run the test.
        if any("TestRunner" not in getattr(task.get_coro(), "__qualname__", "") for task in others):
            return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except AttributeError:
        # Windows and older macOS cannot tell.
        pass
    return True


SCENARIO = "scenario"
FAULT = "fault"
UNDER_FAULTS = "reboot"
"""The scenario that is played there."""
TIMES = 2
"""So many requests in a row meet a fault that keeps the handler from its work."""


def ids() -> list[str]:
    """`scenario-reboot`, `fault-reset`."""
    scenarios = [f"{SCENARIO}-{name}" for name in catalogue.names()]
    return [*scenarios, *(f"{FAULT}-{fault.name}" for fault in faults.ALL)]


def matching(patterns: Sequence[str]) -> list[str]:
    """All, or those that one of the patterns is about: `fault-*`, `scenario-reboot`."""
    known = ids()
    for pattern in patterns:
        if not any(fnmatchcase(each, pattern) for each in known):
            raise errors.NotFoundError(nearest(pattern, known, "situation"))
    return [each for each in known if not patterns or any(fnmatchcase(each, pattern) for pattern in patterns)]


class Situation:
    def __init__(self, scheduled_events: "ScheduledEvents", situation_id: str) -> None:
        self.kind, _, self.name = situation_id.partition("-")
        """`scenario` or `fault`, and which one."""
        self._events = scheduled_events

    def play(self, *, resources: str | Iterable[str] = ()) -> Playback:
        """Begin, perhaps with other VMs in place of the scenario's."""
        if self.kind == SCENARIO:
            return self._events.play(self.name, resources=resources)
        playback = self._events.play(UNDER_FAULTS, resources=resources)
        self._events.fault(self.name, times=None if _lasts(faults.find(self.name)) else TIMES)
        return playback

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


def _lasts(fault: Fault) -> bool:
    """Until it is over by itself, because a handler can do its work meanwhile."""
    match fault.effect:
        case DocumentChange(document=change):
            return change not in (faults.emptied, faults.halved)
        case Delay(since=since):
            return since is not Since.ARRIVAL
    return False
