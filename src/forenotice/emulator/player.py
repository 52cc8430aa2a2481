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
from forenotice.emulator.scenarios.format import (
    FOREVER,
    FROZEN,
    Action,
    AnnounceAction,
    ApproveAction,
    CancelAction,
    ChooseAction,
    ClearAction,
    FaultAction,
    FrozenAction,
    RepeatAction,
    Scenario,
    SpanRange,
    Step,
    Until,
    WaitAction,
    WaitForAction,
)
from forenotice.emulator.simulation import Announcement, Simulation

BY = "scenario"
"""Who approves, where a scenario says so."""
NOTES = 1000
AFTER_AN_EMPTY_ROUND = timedelta(seconds=1)
"""Lest a scenario that takes no time be played for ever in one moment."""


class Faults(Protocol):
    """Those of `faults.active`, or a rehearsal's."""

    def switch_on(self, name: str, *, now: datetime, **options: Unpack[FaultOptions]) -> object: ...

    def switch_off(self, name: str) -> None: ...


class Chance(Protocol):
    """That of `random`, or a rehearsal's."""

    def random(self) -> float: ...

    def sample(self, population: Sequence[Step], k: int) -> list[Step]: ...


@dataclass(frozen=True, slots=True)
class Deviation:
    """What did not go as written: a step that was left out, or was late."""

    at: datetime
    step: Step
    said: str


@dataclass(frozen=True, slots=True)
class Waiting:
    what: str
    """As in: it waits for ..."""
    until: datetime | None
    over: Callable[[], bool] = lambda: False


class Player:
    """To be told the time when it is due, and when anything has changed on the simulation.

    What is due on the simulation at the same moment comes first: `simulation.tick(now)`, then `play(now)`.
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
        chance: Chance | None = None,
    ) -> None:
        """`rounds` and `chance`, if given, in place of what the scenario says."""
        self.scenario = scenario
        self.began = start
        self.step = scenario.steps[0]
        """That was played last, or is the first to be."""
        self.played = 0
        """How many."""
        self.labels: dict[str, str] = {}
        """To the id of the event that was last announced so."""
        self.deviations: deque[Deviation] = deque(maxlen=NOTES)
        if scenario.unchecked_from is not None:
            self.deviations.append(Deviation(start, scenario.unchecked_from, "only what comes before it was rehearsed"))
        self._simulation = simulation
        self._faults = faults
        self._timing = timing
        self._chance: Chance = chance or random.Random(scenario.seed)  # noqa: S311
        self._now = self._moment = start
        self._script = self._rounds(rounds)
        self._waiting: Waiting | None = Waiting("its start", start)

    @property
    def done(self) -> bool:
        return self._waiting is None

    @property
    def due(self) -> datetime | None:
        """When to play on at the latest; None: when something changes on the simulation, or never."""
        return None if self._waiting is None else self._waiting.until

    @property
    def waiting_for(self) -> str:
        """`Freeze of web-0 to be approved, until 10:20:00 at the latest`"""
        return "nothing: all is played" if self._waiting is None else self._waiting.what

    def play(self, now: datetime) -> None:
        """All steps that are due by now."""
        self._now = now
        while self._waiting is not None and self._is_over(self._waiting):
            self._waiting = next(self._script, None)

    def _is_over(self, waiting: Waiting) -> bool:
        # What follows a wait counts from its end, however late we are told.
        if waiting.over():
            self._moment = self._now
        elif waiting.until is not None and waiting.until <= self._now:
            self._moment = max(self._moment, waiting.until)
        else:
            return False
        return True

    def _rounds(self, rounds: int) -> Iterator[Waiting]:
        repeat = rounds or self.scenario.repeat
        start: datetime | None = None
        for _ in itertools.count() if repeat == FOREVER else range(int(repeat)):
            if start == self._moment:
                yield self._until(self._moment + AFTER_AN_EMPTY_ROUND)
            start = self._moment
            yield from self._play_all(self.scenario.steps)

    def _play_all(self, steps: Iterable[Step]) -> Iterator[Waiting]:
        start = self._moment
        for step in steps:
            if step.action.at is not None:
                due = start + self._timing.shortened(step.action.at)
                if due < self._moment:
                    self.deviations.append(
                        Deviation(self._now, step, f"its turn came {self._moment - due} later than it says")
                    )
                yield self._until(due)
            yield from self._play(step)

    def _play(self, step: Step) -> Iterator[Waiting]:
        self.step = step
        self.played += 1
        match step.action:
            case WaitAction(wait=pause):
                yield self._until(self._moment + self._timing.shortened(self._drawn(pause)))
            case WaitForAction() as act:
                yield from self._wait_for(step, act)
            case RepeatAction(repeat=times):
                for _ in range(times):
                    yield from self._play_all(step.steps)
            case ChooseAction(choose=number):
                chosen = {each.path for each in self._chance.sample(step.steps, number)}
                yield from self._play_all([each for each in step.steps if each.path in chosen])
            case _:
                self._act(step)

    def _act(self, step: Step) -> None:
        try:
            match step.action:
                case AnnounceAction() as announcement:
                    self._announce(announcement)
                case ApproveAction(approve=label):
                    self._simulation.approve(self._event(label).id, BY, self._now)
                case CancelAction(cancel=label):
                    self._simulation.cancel(self._event(label).id, self._now)
                case FaultAction(fault=name, amount=amount, on=on, times=times, lasts=lasts):
                    options: FaultOptions = {"amount": amount, "on": on, "times": times, "lasts": lasts}
                    self._faults.switch_on(name, now=self._now, **shortened(options, self._timing))
                case FrozenAction(frozen=span):
                    self._faults.switch_on(FROZEN, now=self._now, amount=self._timing.shortened(span))
                case ClearAction(clear=name):
                    self._faults.switch_off(name)
        except errors.ForenoticeError as refusal:
            self.deviations.append(Deviation(self._now, step, self._worded(step.action, refusal)))

    def _announce(self, act: AnnounceAction) -> None:
        self.labels.pop(act.id, None)
        event = self._simulation.announce(
            Announcement(
                kind=act.announce,
                resources=act.resources or self.scenario.resources,
                notice=act.notice,
                takes=act.takes,
                description=act.description,
                duration=act.duration,
            ),
            self._now,
        )
        if act.id:
            self.labels[act.id] = event.id

    def _event(self, label: str) -> Event:
        if label not in self.labels:
            raise errors.NotFoundError(f"{label!r} was not announced")
        return self._simulation.event(self.labels[label])

    def _wait_for(self, step: Step, act: WaitForAction) -> Iterator[Waiting]:
        try:
            event = self._event(act.wait_for)
        except errors.NotFoundError as refusal:
            self.deviations.append(Deviation(self._now, step, refusal.message))
            return
        if hopeless := _hopeless(event, act.until):
            self.deviations.append(Deviation(self._now, step, f"{act.wait_for!r} {hopeless}"))
            return
        until = None if act.at_most is None else self._moment + self._timing.shortened(act.at_most)
        what = f"{event.type} of {', '.join(event.resources)} to be {act.until}"
        what += f", until {until:%H:%M:%S} at the latest" if until else ""
        yield Waiting(what, until, lambda: _has_come(self._simulation.event(event.id), act.until))

    def _worded(self, act: Action, refusal: errors.ForenoticeError) -> str:
        match act:
            case ApproveAction(approve=label) | CancelAction(cancel=label) if label in self.labels:
                status = self._event(label).status
                if status is not Status.SCHEDULED:
                    return f"{label!r} is {status} by then: it is too late to {act.verb} it"
        return refusal.message

    def _drawn(self, pause: SpanRange) -> timedelta:
        return pause.least + (pause.most - pause.least) * self._chance.random()

    def _until(self, moment: datetime) -> Waiting:
        return Waiting(f"its next step at {moment:%H:%M:%S}", moment)


def _has_come(event: Event, until: Until) -> bool:
    """So far, or further: what has started is no longer waited for to be approved."""
    match until:
        case Until.APPROVED:
            return event.approved or event.status is not Status.SCHEDULED
        case Until.STARTED:
            return event.status is not Status.SCHEDULED
        case Until.GONE:
            return not event.status.live


def _hopeless(event: Event, until: Until) -> str:
    """Why it can never come to that."""
    if until is Until.APPROVED and not event.approved and event.status is not Status.SCHEDULED:
        return f"is {event.status} by then: nobody can approve it any more"
    if until is Until.STARTED and event.status is Status.CANCELED:
        return "is cancelled by then: it does not start any more"
    return ""
