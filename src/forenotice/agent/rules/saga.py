"""The agent's work on one event: what was done for it and how far it got, and what sagas mean for each other."""

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
    RETRYING = "retrying"
    DONE = "done"
    OBSERVED = "observed"
    FAILED = "failed"
    PASSED_ON = "passed on"
    """Another event still needs the preparation; the handler recovers when that one ends."""

    @property
    def settled(self) -> bool:
        return self in (Progress.DONE, Progress.OBSERVED, Progress.FAILED, Progress.PASSED_ON)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """Of a running handler; its number alone may later belong to another group."""

    number: int
    started: int
    """When its leader started, in ticks since the boot."""
    boot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    phase: Phase
    handler: str
    progress: Progress
    attempt: int
    failures: int = 0
    """Without attempts that the agent interrupted."""
    begun_at: datetime
    since: datetime | None = None
    ended_at: datetime | None = None
    retry_at: datetime | None = None
    message: str = ""
    group: ProcessGroup | None = None
    """While it runs as a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    seconds: float
    resolution: float
    """How far off that may be."""
    by: str


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
    """Of this machine, when the event was last seen before its start; empty if unknown."""
    lost: bool = False
    """What was prepared for it is unknown: the journal is younger than its start."""
    why: str = ""
    """What it waits for, or how it ended, in a sentence."""
    steps: tuple[Step, ...] = ()
    memos: Mapping[str, str] = field(default_factory=dict)
    pause: Pause | None = None

    @property
    def id(self) -> str:
        return self.event.id.upper()

    @property
    def is_here(self) -> bool:
        """Whether it concerns the machine that the agent runs on, and not only others that it acts for."""
        return any(map(self.event.names, self.names[:1]))

    @property
    def live(self) -> bool:
        return self.state is not State.DONE

    @property
    def since(self) -> datetime:
        if self.state is State.PREPARING:
            return min(step.since or step.begun_at for step in self.steps if step.phase is Phase.PREPARE)
        moments = (self.seen_at, self.ready_at, self.approved_at, self.started_at, self.gone_at)
        return max(moment for moment in moments if moment)

    @property
    def out(self) -> bool:
        """Whether this VM should get no work: from the start of preparing until recovered."""
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
        """Handlers whose preparation has begun: even after a failure there is something to take back."""
        return frozenset(step.handler for step in self.steps if step.phase is Phase.PREPARE)

    def _back(self, handler: str) -> list[Step]:
        return [step for step in self.steps if step.handler == handler and step.phase in (Phase.RECOVER, Phase.UNDO)]

    def holds_memo(self, handler: str, saga: "Saga") -> bool:
        """Whether its memo is about a preparation that is not taken back, or that the other saga took over."""
        back = self._back(handler)
        if handler not in self.memos or any(step.progress is Progress.DONE for step in back):
            return False
        passed_on = (step for step in back if step.progress is Progress.PASSED_ON)
        return self.live or any(step.begun_at >= saga.seen_at for step in passed_on)


def memo(saga: Saga, handler: str, known: Iterable[Saga]) -> str:
    """A handler's memo: of this saga, or else of another whose preparation was not taken back.

    A handler that prepares again finds everything prepared, and could not tell what to bring back.
    """
    if handler in saga.memos:
        return saga.memos[handler]
    return next((other.memos[handler] for other in known if other.holds_memo(handler, saga)), "")


_Index = defaultdict[str, dict[str, Saga]]


class SagaIndex:
    """What all other sagas mean for the handlers of one; an index, so that hundreds of events cost little."""

    def __init__(self, known: Iterable[Saga]) -> None:
        self._running, self._preparing, self._holding, self._passed_on = (_Index(dict) for _ in range(4))
        for saga in known:
            self._add(saga)

    def update(self, saga: Saga) -> None:
        for index in (self._running, self._preparing, self._holding, self._passed_on):
            for handler in [handler for handler, sagas in index.items() if sagas.pop(saga.id, None) and not sagas]:
                del index[handler]
        self._add(saga)

    def _add(self, saga: Saga) -> None:
        for step in saga.steps:
            if step.phase is Phase.RECOVER and step.progress is Progress.PASSED_ON:
                self._passed_on[step.handler][saga.id] = saga
            if saga.live and step.progress is Progress.RUNNING:
                self._running[step.handler][saga.id] = saga
                if step.phase is Phase.PREPARE:
                    self._preparing[step.handler][saga.id] = saga
            if step.phase is Phase.PREPARE and saga.live and not saga.state.returning:
                self._holding[step.handler][saga.id] = saga

    def busy(self, saga: Saga) -> frozenset[str]:
        """Handlers that run for another event."""
        return _elsewhere(self._running, saga)

    def held(self, saga: Saga) -> frozenset[str]:
        """Handlers whose preparation another event still needs."""
        return _elsewhere(self._holding, saga)

    def less_urgent(self, saga: Saga) -> frozenset[str]:
        """Handlers that prepare for an event with a later NotBefore."""
        deadline = saga.event.deadline
        if deadline is None:
            return frozenset()
        return frozenset(
            handler
            for handler, sagas in self._preparing.items()
            if any(other.id != saga.id and (other.event.deadline or deadline) > deadline for other in sagas.values())
        )

    def owed(self, saga: Saga) -> frozenset[str]:
        """Handlers that must recover from another event, which really happened and passed that on to this one."""
        return frozenset(
            handler
            for handler, sagas in self._passed_on.items()
            for other in sagas.values()
            if other.id != saga.id
            if (step := other.step(Phase.RECOVER, handler)) and step.begun_at >= saga.seen_at
        )


def _elsewhere(index: _Index, saga: Saga) -> frozenset[str]:
    return frozenset(handler for handler, sagas in index.items() if len(sagas) > (saga.id in sagas))
