"""The life of one event as this VM lives it: what was done for it, and how far that got."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from forenotice.agent.rules.policy import Phase
from forenotice.client.events import Event


class State(StrEnum):
    SEEN = "seen"
    PREPARING = "preparing"
    PREPARED = "prepared"
    APPROVED = "approved"
    STARTED = "started"
    RECOVERING = "recovering"
    UNDOING = "undoing"
    DONE = "done"

    @property
    def returning(self) -> bool:
        return self in (State.RECOVERING, State.UNDOING)


class Progress(StrEnum):
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    """The agent ended while it ran."""
    RETRYING = "retrying"
    DONE = "done"
    OBSERVED = "observed"
    """It would have been run."""
    FAILED = "failed"
    PASSED_ON = "passed on"
    """Another event still needs what was prepared; it recovers when that one ends."""

    @property
    def settled(self) -> bool:
        return self in SETTLED


SETTLED = frozenset({Progress.DONE, Progress.OBSERVED, Progress.FAILED, Progress.PASSED_ON})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """Of a handler at work; the number alone may later be another's."""

    number: int
    started: int
    """When its leader started, in ticks since the boot."""
    boot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One handler's part in one phase."""

    phase: Phase
    handler: str
    progress: Progress
    attempt: int
    """Counts from 1."""
    failures: int = 0
    """Attempts that ended badly; one that we interrupted ourselves is none."""
    begun_at: datetime
    since: datetime | None = None
    """When the first attempt began."""
    ended_at: datetime | None = None
    retry_at: datetime | None = None
    said: str = ""
    group: ProcessGroup | None = None
    """While it runs, where it is a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """How long this VM really stood still."""

    seconds: float
    resolution: float
    """How far off that may be."""
    by: str
    """Which clock showed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saga:
    event: Event
    """As it was last listed."""
    state: State
    seen_at: datetime
    ready_at: datetime | None = None
    approving_at: datetime | None = None
    """Before the approval was sent: from here on it may have arrived."""
    would_approve_at: datetime | None = None
    """When an agent that only observes would have approved."""
    approved_at: datetime | None = None
    started_at: datetime | None = None
    gone_at: datetime | None = None
    done_at: datetime | None = None
    names: tuple[str, ...] = ()
    """The VMs for which it was begun, the one that the agent runs on first."""
    boot: str = ""
    """Of this machine, when the event was last seen before its start; empty where that is not known."""
    lost: bool = False
    """What was prepared for it is not known: the journal is younger than its start."""
    why: str = ""
    """What it is waiting for, or how it ended, in a sentence."""
    steps: tuple[Step, ...] = ()
    memos: Mapping[str, str] = field(default_factory=dict)
    """What handlers want to be reminded of, by handler."""
    pause: Pause | None = None

    @property
    def id(self) -> str:
        return self.event.id.upper()

    @property
    def is_here(self) -> bool:
        """Whether it happens to the machine that the agent runs on, and not only to others that it acts for."""
        return any(map(self.event.names, self.names[:1]))

    @property
    def live(self) -> bool:
        return self.state is not State.DONE

    @property
    def since(self) -> datetime:
        """When it got as far as it is."""
        if self.state is State.PREPARING:
            return min(step.since or step.begun_at for step in self.steps if step.phase is Phase.PREPARE)
        moments = (self.seen_at, self.ready_at, self.approved_at, self.started_at, self.gone_at)
        return max(moment for moment in moments if moment)

    @property
    def out(self) -> bool:
        """Whether this VM is not to be given work: from the start of preparing until recovered."""
        return self.live and (bool(self.prepared_by) or self.state.returning or self.lost)

    def step(self, phase: Phase, handler: str) -> Step | None:
        return next((step for step in self.steps if step.phase is phase and step.handler == handler), None)

    def with_step(self, step: Step) -> "Saga":
        others = (other for other in self.steps if (other.phase, other.handler) != (step.phase, step.handler))
        return replace(self, steps=(*others, step))

    @property
    def running(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.progress is Progress.RUNNING)

    @property
    def prepared_by(self) -> frozenset[str]:
        """Whose preparation has begun: however it went, there is something to take back."""
        return frozenset(step.handler for step in self.steps if step.phase is Phase.PREPARE)

    def returned(self, handler: str) -> bool:
        return any(step.progress is Progress.DONE for step in self._back(handler))

    def left_to(self, other: "Saga", handler: str) -> bool:
        """Whether the other may have taken over what there is to take back."""
        return any(
            step.progress is Progress.PASSED_ON and step.begun_at >= other.seen_at for step in self._back(handler)
        )

    def left_since(self, other: "Saga", handler: str) -> bool:
        """Whether the other has to recover too, since this one really happened."""
        step = self.step(Phase.RECOVER, handler)
        return step is not None and step.begun_at >= other.seen_at

    def _back(self, handler: str) -> list[Step]:
        return [step for step in self.steps if step.handler == handler and step.phase in (Phase.RECOVER, Phase.UNDO)]


def memo(saga: Saga, handler: str, known: Iterable[Saga]) -> str:
    """What a handler is reminded of: by this event, or else by another whose preparation has not been taken back.

    Whoever prepares on top of that finds everything done already, and could not tell what to bring back.
    """
    if handler in saga.memos:
        return saga.memos[handler]
    others = (other for other in known if handler in other.memos and not other.returned(handler))
    return next((other.memos[handler] for other in others if other.live or other.left_to(saga, handler)), "")


_Index = defaultdict[str, dict[str, Saga]]
"""Sagas by handler and id."""


class SagaIndex:
    def __init__(self, known: Iterable[Saga]) -> None:
        self._running, self._preparing, self._holding, self._left = (_Index(dict) for _ in range(4))
        for saga in known:
            self._add(saga)

    def update(self, saga: Saga) -> None:
        """It is no longer as it was."""
        for index in (self._running, self._preparing, self._holding, self._left):
            for handler in [handler for handler, sagas in index.items() if sagas.pop(saga.id, None) and not sagas]:
                del index[handler]
        self._add(saga)

    def _add(self, saga: Saga) -> None:
        for step in saga.steps:
            if step.phase is Phase.RECOVER and step.progress is Progress.PASSED_ON:
                self._left[step.handler][saga.id] = saga
            if saga.live and step.progress is Progress.RUNNING:
                self._running[step.handler][saga.id] = saga
                if step.phase is Phase.PREPARE:
                    self._preparing[step.handler][saga.id] = saga
            if step.phase is Phase.PREPARE and saga.live and not saga.state.returning:
                self._holding[step.handler][saga.id] = saga

    def busy(self, saga: Saga) -> frozenset[str]:
        """Handlers that are at work for another event."""
        return _elsewhere(self._running, saga)

    def held(self, saga: Saga) -> frozenset[str]:
        """Handlers whose preparation another event still needs."""
        return _elsewhere(self._holding, saga)

    def less_urgent(self, saga: Saga) -> frozenset[str]:
        """Handlers that prepare for an event which comes later than this one."""
        deadline = saga.event.deadline
        if deadline is None:
            return frozenset()
        return frozenset(
            handler
            for handler, sagas in self._preparing.items()
            if any(other.id != saga.id and (other.event.deadline or deadline) > deadline for other in sagas.values())
        )

    def owed(self, saga: Saga) -> frozenset[str]:
        """Handlers that must recover from another event, which really happened and left that to this one."""
        return frozenset(
            handler
            for handler, sagas in self._left.items()
            if any(other.id != saga.id and other.left_since(saga, handler) for other in sagas.values())
        )


def _elsewhere(index: _Index, saga: Saga) -> frozenset[str]:
    return frozenset(handler for handler, sagas in index.items() if len(sagas) > (saga.id in sagas))
