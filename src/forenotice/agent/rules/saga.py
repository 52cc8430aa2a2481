"""The agent's work on one event: what was done for it and how far it got, and what sagas mean for each other."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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
    configs: Mapping[str, str] = field(default_factory=dict)
    """Of the handlers that prepared, as they were then; none once it is done."""
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


class SagaIndex:
    """What all other sagas mean for the handlers of one; an index, so that hundreds of events cost little."""

    def __init__(self, known: Iterable[Saga]) -> None:
        self._sagas: defaultdict[tuple[str, str], dict[str, Saga]] = defaultdict(dict)
        """By what a handler does for them, and its name."""
        for saga in known:
            self.update(saga)

    def update(self, saga: Saga) -> None:
        for sagas in self._sagas.values():
            sagas.pop(saga.id, None)
        for step in saga.steps:
            if step.phase is Phase.RECOVER and step.progress is Progress.PASSED_ON:
                self._sagas["passed on", step.handler][saga.id] = saga
            if saga.live and step.progress is Progress.RUNNING:
                self._sagas["runs", step.handler][saga.id] = saga
            if step.phase is Phase.PREPARE and saga.live and not saga.state.returning:
                self._sagas["holds", step.handler][saga.id] = saga

    def _others(self, what: str, saga: Saga) -> Iterator[tuple[str, Saga]]:
        for (kind, handler), sagas in self._sagas.items():
            if kind == what:
                yield from ((handler, other) for other in sagas.values() if other.id != saga.id)

    def busy(self, saga: Saga) -> frozenset[str]:
        """Handlers that run for another event."""
        return frozenset(handler for handler, _ in self._others("runs", saga))

    def held(self, saga: Saga) -> frozenset[str]:
        """Handlers whose preparation another event still needs."""
        return frozenset(
            handler
            for (kind, handler), sagas in self._sagas.items()
            if kind == "holds" and len(sagas) > (saga.id in sagas)
        )

    def less_urgent(self, saga: Saga) -> frozenset[str]:
        """Handlers that prepare for an event with a later NotBefore."""
        deadline = saga.event.deadline
        if deadline is None:
            return frozenset()
        return frozenset(
            handler
            for handler, other in self._others("runs", saga)
            if (step := other.step(Phase.PREPARE, handler)) and step in other.running
            if (other.event.deadline or deadline) > deadline
        )

    def owed(self, saga: Saga) -> frozenset[str]:
        """Handlers that must recover from another event, which really happened and passed that on to this one."""
        return frozenset(
            handler
            for handler, other in self._others("passed on", saga)
            if (step := other.step(Phase.RECOVER, handler)) and step.begun_at >= saga.seen_at
        )
