"""Plays a scenario on a simulation: does what is due. It never waits: callers tell it the time."""

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, Unpack

from forenotice.core import errors
from forenotice.core.operations import Event, Status
from forenotice.core.timing import Timing
from forenotice.emulator.faults import FaultOptions, shortened
from forenotice.emulator.scenarios import format as actions
from forenotice.emulator.scenarios.format import FOREVER, FROZEN, Action, Scenario, Step, Until
from forenotice.emulator.simulation import Announcement, Simulation

BY = "scenario"
"""Who approves, where a scenario says so."""
MOST_DEVIATIONS = 1000
AFTER_AN_EMPTY_ROUND = timedelta(seconds=1)
"""Otherwise a scenario that takes no time would be played for ever in one moment."""


class Faults(Protocol):
    """Those of an emulator, or of a preview."""

    def switch_on(self, name: str, *, now: datetime, **options: Unpack[FaultOptions]) -> object: ...

    def switch_off(self, name: str) -> None: ...


class RandomSource(Protocol):
    """That of `random`, or of a preview."""

    def random(self) -> float: ...

    def sample(self, population: Sequence[Step], k: int) -> list[Step]: ...


@dataclass(frozen=True, slots=True)
class Deviation:
    """A step that was skipped, or was late."""

    at: datetime
    step: Step
    message: str


@dataclass(frozen=True, slots=True)
class Pause:
    waiting_for: str
    until: datetime | None
    over: Callable[[], bool] = lambda: False


class Player:
    """`play` it when it is due, and when anything has changed in the simulation.

    What is due in the simulation at the same moment comes first: `simulation.tick(now)`, then `play(now)`.
    """

    def __init__(
        self,
        scenario: Scenario,
        simulation: Simulation,
        faults: Faults,
        timing: Timing,
        start: datetime,
        *,
        rounds: int = 0,
        chance: RandomSource | None = None,
    ) -> None:
        """`rounds` and `chance` replace what the scenario says."""
        self.scenario = scenario
        self.began = start
        self.step = scenario.steps[0]
        """The step that was played last, or is the first to be."""
        self.played = 0
        self.labels: dict[str, str] = {}
        """The id of the event that was last announced with each label."""
        self.deviations: deque[Deviation] = deque(maxlen=MOST_DEVIATIONS)
        if scenario.unchecked_from is not None:
            self.deviations.append(Deviation(start, scenario.unchecked_from, "only the steps before it were checked"))
        self._simulation = simulation
        self._faults = faults
        self._timing = timing
        self._chance: RandomSource = chance or random.Random(scenario.seed)  # noqa: S311
        self._now = self._moment = start
        self._script = self._rounds(rounds or scenario.repeat)
        self._pause: Pause | None = Pause("its start", start)

    @property
    def done(self) -> bool:
        return self._pause is None

    @property
    def due(self) -> datetime | None:
        """When to play on at the latest; None: when something changes in the simulation, or never."""
        return None if self._pause is None else self._pause.until

    @property
    def waiting_for(self) -> str:
        """`Freeze of web-0 to be approved, until 10:20:00 at the latest`"""
        return "nothing: all is played" if self._pause is None else self._pause.waiting_for

    def play(self, now: datetime) -> None:
        self._now = now
        while self._pause is not None:
            # The next step counts from the end of the pause, however late this is called.
            if self._pause.over():
                self._moment = now
            elif self._pause.until is not None and self._pause.until <= now:
                self._moment = max(self._moment, self._pause.until)
            else:
                break
            self._pause = next(self._script, None)

    def _rounds(self, repeat: int | str) -> Iterator[Pause]:
        start: datetime | None = None
        for _ in itertools.count() if repeat == FOREVER else range(int(repeat)):
            if start == self._moment:
                yield self._until(self._moment + AFTER_AN_EMPTY_ROUND)
            start = self._moment
            yield from self._play_all(self.scenario.steps)

    def _play_all(self, steps: Iterable[Step]) -> Iterator[Pause]:
        start = self._moment
        for step in steps:
            if step.action.at is not None:
                due = start + self._timing.shortened(step.action.at)
                if due < self._moment:
                    self._deviate(step, f"it came {self._moment - due} later than it says")
                yield self._until(due)
            yield from self._play(step)

    def _play(self, step: Step) -> Iterator[Pause]:
        self.step = step
        self.played += 1
        match step.action:
            case actions.WaitAction(wait=span):
                drawn = span.least + (span.most - span.least) * self._chance.random()
                yield self._until(self._moment + self._timing.shortened(drawn))
            case actions.WaitForAction() as action:
                yield from self._wait_for(step, action)
            case actions.RepeatAction(repeat=times):
                for _ in range(times):
                    yield from self._play_all(step.steps)
            case actions.ChooseAction(choose=number):
                chosen = {each.path for each in self._chance.sample(step.steps, number)}
                yield from self._play_all([each for each in step.steps if each.path in chosen])
            case action:
                try:
                    self._act(action)
                except errors.ForenoticeError as refusal:
                    self._deviate(step, self._reason(action, refusal))

    def _act(self, action: Action) -> None:
        match action:
            case actions.AnnounceAction():
                self._announce(action)
            case actions.ApproveAction(approve=label):
                self._simulation.approve(self._event(label).id, BY, self._now)
            case actions.CancelAction(cancel=label):
                self._simulation.cancel(self._event(label).id, self._now)
            case actions.FaultAction(fault=name, amount=amount, on=on, times=times, lasts=lasts):
                options: FaultOptions = {"amount": amount, "on": on, "times": times, "lasts": lasts}
                self._faults.switch_on(name, now=self._now, **shortened(options, self._timing))
            case actions.FrozenAction(frozen=span):
                self._faults.switch_on(FROZEN, now=self._now, amount=self._timing.shortened(span))
            case actions.ClearAction(clear=name):
                self._faults.switch_off(name)

    def _announce(self, action: actions.AnnounceAction) -> None:
        self.labels.pop(action.id, None)
        announcement = Announcement(
            kind=action.announce,
            resources=action.resources or self.scenario.resources,
            notice=action.notice,
            takes=action.takes,
            description=action.description,
            duration=action.duration,
        )
        event = self._simulation.announce(announcement, self._now)
        if action.id:
            self.labels[action.id] = event.id

    def _event(self, label: str) -> Event:
        if label not in self.labels:
            raise errors.NotFoundError(f"{label!r} was not announced")
        return self._simulation.event(self.labels[label])

    def _wait_for(self, step: Step, action: actions.WaitForAction) -> Iterator[Pause]:
        try:
            event = self._event(action.wait_for)
        except errors.NotFoundError as refusal:
            self._deviate(step, refusal.message)
            return
        if hopeless := _hopeless(event, action.until):
            self._deviate(step, f"{action.wait_for!r} {hopeless}")
            return
        until = None if action.at_most is None else self._moment + self._timing.shortened(action.at_most)
        what = f"{event.type} of {', '.join(event.resources)} to be {action.until}"
        what += f", until {until:%H:%M:%S} at the latest" if until else ""
        yield Pause(what, until, lambda: _has_come(self._simulation.event(event.id), action.until))

    def _reason(self, action: Action, refusal: errors.ForenoticeError) -> str:
        match action:
            case actions.ApproveAction(approve=label) | actions.CancelAction(cancel=label) if label in self.labels:
                status = self._event(label).status
                if status is not Status.SCHEDULED:
                    return f"{label!r} is {status} by then: it is too late to {action.verb} it"
        return refusal.message

    def _deviate(self, step: Step, message: str) -> None:
        self.deviations.append(Deviation(self._now, step, message))

    def _until(self, moment: datetime) -> Pause:
        return Pause(f"its next step at {moment:%H:%M:%S}", moment)


def _has_come(event: Event, until: Until) -> bool:
    """So far, or further: an event that has started need not be approved any more."""
    match until:
        case Until.APPROVED:
            return event.approved or event.status is not Status.SCHEDULED
        case Until.STARTED:
            return event.status is not Status.SCHEDULED
        case Until.GONE:
            return not event.status.live


def _hopeless(event: Event, until: Until) -> str:
    if until is Until.APPROVED and not event.approved and event.status is not Status.SCHEDULED:
        return f"is {event.status} by then: nobody can approve it any more"
    if until is Until.STARTED and event.status is Status.CANCELED:
        return "is cancelled by then: it does not start any more"
    return ""
