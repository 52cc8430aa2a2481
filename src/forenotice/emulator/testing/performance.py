"""A scenario that is being played, in the hands of a test."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import monotonic

from forenotice.core import errors
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.playing import Player
from forenotice.emulator.requests import Requests
from forenotice.emulator.scenarios import catalogue
from forenotice.emulator.scenarios.format import FOREVER
from forenotice.emulator.testing.announced import AnnouncedEvent

LOOK = 0.05


class Performance:
    def __init__(self, emulator: Emulator, player: Player) -> None:
        self._emulator = emulator
        self._stage = emulator.stage
        self._player = player

    @classmethod
    def begin(
        cls, emulator: Emulator, scenario: str | Path, resources: tuple[str, ...] = (), seed: int | None = None
    ) -> "Performance":
        return cls(emulator, emulator.play(catalogue.load_any(str(scenario), resources, seed)))

    @property
    def events(self) -> list[AnnouncedEvent]:
        """All that it has announced so far, in that order."""
        entries = self._emulator.look(lambda: tuple(self._stage.entries))
        return [self._announced(key) for key in dict.fromkeys(entry.event for entry in entries) if key]

    @property
    def labelled(self) -> Mapping[str, AnnouncedEvent]:
        """So far, by the `id` that the scenario gives them."""
        return {label: self._announced(key) for label, key in self._emulator.look(self._player.labels.copy).items()}

    @property
    def done(self) -> bool:
        """All is played, and no event is left."""
        return self._emulator.look(lambda: self._player.done and not self._stage.live)

    @property
    def waiting_for(self) -> str:
        return self._player.waiting_for

    def wait_done(self, timeout: float) -> None:
        """In seconds of real time."""
        __tracebackhide__ = True
        if not self._emulator.wait_for(lambda: self.done, timeout):
            raise AssertionError(f"the scenario is not over after {timeout:g} s: {self._unfinished()}")

    def run(self, *, polls: int = 2, pause: float = 0.1, timeout: float = 30) -> None:
        """To the end, without waiting for its times: whenever something has happened the handler polls so often, within
        the timeout, and has so many seconds more to act on it; then the clock moves on to whatever comes next."""
        __tracebackhide__ = True
        if self._player.scenario.repeat == FOREVER:
            raise errors.RefusedError('a scenario that is repeated "forever" has no end: use `advance`')
        self._give_time(polls, pause, timeout)
        while not self.done:
            due = self._emulator.look(lambda: self._emulator.due)
            if due is None:
                raise AssertionError(f"nothing more happens by itself: {self._unfinished()}")
            self._emulator.advance_to(due)
            self._give_time(polls, pause, timeout)

    def _announced(self, event_id: str) -> AnnouncedEvent:
        return AnnouncedEvent(self._emulator, self._stage.event(event_id))

    def _unfinished(self) -> str:
        if not self._player.done:
            return f"it waits for {self.waiting_for}"
        left = self._emulator.look(lambda: self._stage.live)
        return f"{', '.join(repr(self._announced(event.id)) for event in left) or 'nothing'} is left"

    def _give_time(self, polls: int, pause: float, timeout: float) -> None:
        __tracebackhide__ = True
        requests = self._emulator.requests
        since = monotonic()
        while not self._has_looked(polls, since):
            if monotonic() - since >= timeout:
                raise AssertionError(f"there were not {polls} polls within {timeout:g} s")
            requests.wait_for(partial(_has_more, len(requests)), LOOK)
        self._emulator.wait_for(lambda: False, pause)

    def _has_looked(self, polls: int, since: float) -> bool:
        # Whoever waits for a change knows what there is, and whoever is held by a fault gets on only with time.
        if self._emulator.waiting or self._emulator.faults.holding:
            return True
        # What a fault has hidden the next poll shows, unless the fault lasts.
        lasting = {"", *(active.fault.name for active in self._emulator.faults.active if active.times is None)}
        looks = [poll for poll in self._emulator.requests.polls if poll.monotonic >= since]
        return sum(lasting.issuperset((poll.fault or "").split("+")) for poll in looks) >= polls


def _has_more(than: int, requests: Requests) -> bool:
    return len(requests) > than
