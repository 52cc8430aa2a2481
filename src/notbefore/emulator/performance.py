"""A scenario that is being played, in the hands of a test."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic

from notbefore.emulator.announced import AnnouncedEvent
from notbefore.emulator.emulator import Emulator
from notbefore.emulator.playing import Player
from notbefore.emulator.scenarios import catalogue

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
        found = catalogue.load_any(str(scenario), resources)
        return cls(emulator, emulator.play(found if seed is None else replace(found, seed=seed)))

    @property
    def events(self) -> Mapping[str, AnnouncedEvent]:
        """So far, by the label that the scenario gives them."""
        stage = self._stage
        return {label: AnnouncedEvent(self._emulator, stage.event(key)) for label, key in self._player.labels.items()}

    @property
    def done(self) -> bool:
        """All is played, and no event is left."""
        return self._player.done and not self._stage.live

    @property
    def waiting_for(self) -> str:
        return self._player.waiting_for

    def wait_done(self, timeout: float) -> None:
        """In real time."""
        if not self._emulator.wait_for(lambda: self.done, timeout):
            raise AssertionError(f"the scenario is not over after {timeout:g} s: it waits for {self.waiting_for}")

    def run(self, *, polls: int = 2, pause: float = 0.1, timeout: float = 5) -> None:
        """In virtual time, to the end: whenever something has happened the handler polls so often and has so many real
        seconds to act on it; then the clock moves on to whatever comes next."""
        self._give_time(polls, pause, timeout)
        while not self.done:
            due = self._emulator.due
            if due is None:
                raise AssertionError(f"nothing more happens by itself: the scenario waits for {self.waiting_for}")
            self._emulator.advance_to(due)
            self._give_time(polls, pause, timeout)

    def _give_time(self, polls: int, pause: float, timeout: float) -> None:
        requests = self._emulator.requests
        since = monotonic()

        def has_looked() -> bool:
            # Whoever waits for a change knows what there is.
            return self._emulator.waiting > 0 or sum(poll.monotonic >= since for poll in requests.polls) >= polls

        while not has_looked():
            if monotonic() - since >= timeout:
                raise AssertionError(f"there were not {polls} polls within {timeout:g} s")
            requests.wait_for(lambda _: has_looked(), LOOK)
        self._emulator.wait_for(lambda: False, pause)
