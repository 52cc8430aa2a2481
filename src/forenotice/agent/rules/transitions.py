"""What happens next in a saga: each turn gives the saga as it is to be written, and then what is to be done.

What is about to be done is in the saga first. A step that the journal shows as running when the agent starts was
interrupted, and is done again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from forenotice.agent.rules import policy as policies
from forenotice.agent.rules.policy import Phase, Policy, Rule
from forenotice.agent.rules.saga import ProcessGroup, Progress, Saga, State, Step
from forenotice.client.events import Event
from forenotice.core import backoff

MARGIN = timedelta(seconds=2)
"""What preparation leaves of the notice, for the approval."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=1), timedelta(seconds=30)
PERSISTENCE = timedelta(minutes=15)
"""For at least this long the agent tries to take back what was prepared."""
OBSERVED = "only observed: "
LOST = "STATE-LOST"
"""The id of a saga for everything that was prepared before the journal was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    now: datetime
    """By the endpoint's clock."""
    names: Sequence[str]
    listed: Event | None
    """As the last document shows it, if it does and if it names one of them."""
    rules: Sequence[Rule]
    policy: Policy
    peers: Mapping[str, datetime] = field(default_factory=dict)
    """Since when other VMs are ready for this event, by lower-case name."""
    unacknowledged: Mapping[str, str] = field(default_factory=dict)
    """Other VMs that have not acknowledged this VM's readiness, and why."""
    busy: Collection[str] = ()
    held: Collection[str] = ()
    less_urgent: Collection[str] = ()
    owed: Collection[str] = ()
    """Handlers that must recover from another event, even if this one is cancelled."""
    boot: str = ""
    may_approve: bool = True
    """No approval of it is under way."""
    observes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    step: Step
    deadline: datetime


@dataclass(frozen=True, slots=True)
class Stop:
    step: Step


@dataclass(frozen=True, slots=True)
class Displace:
    """This handler is to leave a less urgent event that it prepares for, and to begin there again later."""

    handler: str


@dataclass(frozen=True, slots=True)
class Approve:
    first: bool = True
    """No approval of it can have arrived yet."""


Work = tuple[Phase, Rule]
Effect = Begin | Stop | Displace | Approve


def appeared(event: Event, now: datetime, names: Sequence[str] = (), *, lost: bool = False) -> Saga:
    return Saga(event=event, state=State.SEEN, seen_at=now, names=tuple(names), lost=lost)


def again(saga: Saga, event: Event, now: datetime) -> Saga:
    """An event that was only missing for a while; an approval that was sent for it may have arrived."""
    return replace(appeared(event, now, saga.names), approving_at=saga.approving_at)


def reopened(saga: Saga) -> bool:
    """Whether an event that is listed although its saga is done was only missing for a while."""
    return not (saga.live or saga.started_at)


def after_loss(now: datetime) -> Saga:
    """The journal is new: handlers with `always_recover` recover from whatever was prepared before."""
    event = Event(id=LOST, status="Started", type="")
    return Saga(event=event, state=State.RECOVERING, seen_at=now, gone_at=now, lost=True)


def resumed(saga: Saga, boot: str | None) -> Saga:
    """After a restart. A program of the same boot may still run: it is ended first. None: nothing is to be ended."""
    for step in saga.running:
        if step.group is None or step.group.boot != boot:
            saga = interrupted(saga, step)
    return saga


def interrupted(saga: Saga, step: Step) -> Saga:
    """Not the handler's failure: it is begun again."""
    return saga.with_step(replace(step, progress=Progress.INTERRUPTED, group=None))


def with_group(saga: Saga, phase: Phase, handler: str, attempt: int, group: ProcessGroup | None) -> Saga | None:
    """Its program is about to run. None: that attempt is over."""
    step = saga.step(phase, handler)
    if step is None or step.progress is not Progress.RUNNING or step.attempt != attempt:
        return None
    return saga.with_step(replace(step, group=group))


def approved(saga: Saga, now: datetime) -> Saga:
    saga = replace(saga, approved_at=saga.approved_at or now)
    # The start may be seen before the response.
    if saga.state is not State.PREPARED:
        return saga
    return replace(saga, state=State.APPROVED, why="approved; waits for the start")


def refused(saga: Saga) -> Saga:
    """The endpoint refused the only approval that was sent: the event waits for its NotBefore, or is gone."""
    return replace(saga, approving_at=None)


def ended(
    saga: Saga, step: Step, rule: Rule | None, *, ok: bool, message: str, now: datetime, observed: bool = False
) -> Saga:
    done = replace(step, ended_at=now, message=message, group=None)
    if ok:
        return saga.with_step(replace(done, progress=Progress.OBSERVED if observed else Progress.DONE))
    failures = step.failures + 1
    if rule is None or (failures > rule.retries and not _persists(step, rule, now)):
        return saga.with_step(replace(done, progress=Progress.FAILED, failures=failures))
    retry_at = now + backoff.pause(failures, FIRST_PAUSE, LONGEST_PAUSE)
    return saga.with_step(replace(done, progress=Progress.RETRYING, failures=failures, retry_at=retry_at))


def _persists(step: Step, rule: Rule, now: datetime) -> bool:
    """A machine must not stay drained because a service that it recovers with was not up yet."""
    back = step.phase in (Phase.RECOVER, Phase.UNDO)
    return back and rule.blocks and now - (step.since or step.begun_at) < PERSISTENCE


def advance(saga: Saga, view: View) -> tuple[Saga, Sequence[Effect]]:
    turn = _Turn(saga, view)
    turn.look()
    while turn.take():
        pass
    if view.observes and turn.saga.why != saga.why:
        turn.saga = replace(turn.saga, why=OBSERVED + turn.saga.why.removeprefix(OBSERVED))
    return turn.saga, turn.effects


class _Turn:
    def __init__(self, saga: Saga, view: View) -> None:
        self.saga = saga
        self.view = view
        self.effects: list[Effect] = []

    def look(self) -> None:
        """What the document shows of the event, while it is not over."""
        saga, listed = self.saga, self.view.listed
        if saga.state.returning or not saga.live:
            return
        if listed is None:
            self._gone()
            return
        if listed != saga.event:
            self.saga = replace(saga, event=listed)
        begun = listed.started or saga.started_at
        if self.view.boot not in ("", saga.boot) and not begun:
            self._booted()
        if begun and saga.state is not State.STARTED:
            self.saga = replace(self.saga, state=State.STARTED, started_at=saga.started_at or self.view.now)
            self._stop_all()

    def _booted(self) -> None:
        """This was not the announced reboot: what it undid of the preparation is prepared again."""
        if self.saga.boot:
            steps = tuple(
                replace(step, progress=Progress.INTERRUPTED, failures=0) if step.phase is Phase.PREPARE else step
                for step in self.saga.steps
            )
            self.saga = replace(self.saga, state=State.SEEN, ready_at=None, steps=steps)
        self.saga = replace(self.saga, boot=self.view.boot)

    def take(self) -> bool:
        """Go on within a state; whether it has become another."""
        before = self.saga.state
        match before:
            case State.SEEN | State.PREPARING:
                self._prepare()
            case State.PREPARED:
                self._approve()
            case State.STARTED:
                self._accompany()
            case State.RECOVERING:
                self._return(Phase.RECOVER)
            case State.UNDOING:
                self._return(Phase.UNDO)
        return self.saga.state is not before

    def _gone(self) -> None:
        """Recover if it may have happened, else undo."""
        saga, view = self.saga, self.view
        deadline = saga.event.deadline
        approved = saga.approving_at or (saga.ready_at and view.policy.peers_may_approve(saga.event, view.names))
        may_have_happened = not self._spared and (approved or deadline is None or view.now >= deadline)
        state = State.RECOVERING if saga.started_at or may_have_happened else State.UNDOING
        self.saga = replace(saga, state=state, gone_at=view.now)
        self._stop_all()

    @property
    def _spared(self) -> bool:
        """Whether this machine certainly has not rebooted, although that was announced."""
        saga = self.saga
        return saga.event.type == "Reboot" and saga.is_here and bool(saga.boot) and saga.boot == self.view.boot

    def _stop_all(self) -> None:
        self.effects += map(Stop, self.saga.running)

    def _prepare(self) -> None:
        event, begun, policy = self.saga.event, self.saga.prepared_by, self.view.policy
        if policy.needs_nothing(event) and not begun:
            self._ready("needs no preparation")
            return
        works = [
            (Phase.PREPARE, rule)
            for rule in self.view.rules
            if Phase.PREPARE in rule.phases and (rule.match.fits(event) or rule.name in begun)
        ]
        failed = self._failed([work for work in works if work[1].blocks])
        if not works and policy.approves and not policy.unprepared:
            self._say('not approved, because no handler prepares for it and approve = "always" is not set')
        elif failed:
            self._say(f"not approved, because preparation failed: {failed}")
        elif not self._stage_by_stage(works):
            self._ready("prepared")
        elif self.saga.prepared_by and self.saga.state is not State.PREPARING:
            self.saga = replace(self.saga, state=State.PREPARING)

    def _ready(self, why: str) -> None:
        self.saga = replace(self.saga, state=State.PREPARED, ready_at=self.view.now, why=why)

    def _approve(self) -> None:
        saga, view = self.saga, self.view
        ready_at = saga.ready_at or view.now
        why = policies.blocker(view.policy, saga.event, view.names, ready_at, view.peers, view.unacknowledged, view.now)
        if why:
            self._say(why)
        elif view.observes:
            self.saga = replace(saga, would_approve_at=saga.would_approve_at or view.now)
            self._say(self._observed_approval)
        else:
            self._say("ready; approving")
            if view.may_approve:
                self.saga = replace(self.saga, approving_at=saga.approving_at or view.now)
                self.effects.append(Approve(first=saga.approving_at is None))

    @property
    def _observed_approval(self) -> str:
        at = self.saga.would_approve_at
        return f"would have approved at {at:%Y-%m-%d %H:%M:%S} UTC" if at else "would not have approved"

    def _accompany(self) -> None:
        self._say("started; waits for its end")
        if not any(step.phase is Phase.PREPARE for step in self.saga.running):
            rules = (rule for rule in self.view.rules if Phase.ON_STARTED in rule.phases)
            self._stage_by_stage([(Phase.ON_STARTED, rule) for rule in rules if rule.match.fits(self.saga.event)])

    def _return(self, phase: Phase) -> None:
        if running := [step.handler for step in self.saga.running if step.phase in (Phase.PREPARE, Phase.ON_STARTED)]:
            self._say(f"waits until {', '.join(running)} has stopped")
            return
        works = [(self._way_back(rule, phase), rule) for rule in self.view.rules]
        works = [(way, rule) for way, rule in works if way in rule.phases and self._returns(rule, way)]
        for way, rule in works:
            runs = self.saga.step(way, rule.name) in self.saga.running
            if rule.name in self.view.held and not runs and not self._settled(way, rule):
                self._note(way, rule, Progress.PASSED_ON)
        if not self._stage_by_stage(works, backwards=True):
            why = self._result(phase, works)
            self.saga = replace(self.saga, state=State.DONE, done_at=self.view.now, why=why, configs={})

    def _way_back(self, rule: Rule, phase: Phase) -> Phase:
        """If another event really happened, the handler recovers from it, even if this one was cancelled."""
        return Phase.RECOVER if rule.name in self.view.owed and Phase.RECOVER in rule.phases else phase

    def _returns(self, rule: Rule, phase: Phase) -> bool:
        saga = self.saga
        if rule.name in saga.prepared_by or (saga.lost and rule.always_recover):
            return True
        only_recovers = Phase.PREPARE not in rule.phases and phase is Phase.RECOVER
        return only_recovers and saga.id != LOST and rule.match.fits(saga.event)

    def _result(self, phase: Phase, works: Sequence[Work]) -> str:
        observes = self.view.observes
        if phase is Phase.UNDO:
            text = f"cancelled before its start, and {'would have been ' if observes else ''}undone"
        else:
            text = "would have been recovered from" if observes else "recovered"
            if not (self.saga.started_at or self.saga.lost):
                text = f"gone without a visible start, and {text}"
            elif self._spared:
                text += ", although this machine did not reboot"
        steps = [self.saga.step(way, rule.name) for way, rule in works]
        if passed_on := [step.handler for step in steps if step and step.progress is Progress.PASSED_ON]:
            text += f"; {', '.join(passed_on)} when another event is over"
        if failed := self._failed(works):
            text = f"{text}, except for {failed}"
        return f"{self._observed_approval}; {text}" if observes and not self.saga.approving_at else text

    def _failed(self, works: Sequence[Work]) -> str:
        steps = [self.saga.step(phase, rule.name) for phase, rule in works]
        return "; ".join(f"{s.handler} ({s.message})" for s in steps if s and s.progress is Progress.FAILED)

    def _stage_by_stage(self, works: Sequence[Work], *, backwards: bool = False) -> bool:
        """Begin what can begin; whether something is left to be done or to end."""
        waiting = False
        for stage in sorted({rule.stage for _, rule in works}, reverse=backwards):
            left = [work for work in works if work[1].stage == stage and not self._settled(*work)]
            for phase, rule in left:
                self._try(phase, rule)
            waiting |= bool(left)
            if any(not self._only_persists(phase, rule) for phase, rule in left):
                break
        return waiting

    def _only_persists(self, phase: Phase, rule: Rule) -> bool:
        """Its retries are used up: it goes on trying, but others need not wait for it."""
        step = self.saga.step(phase, rule.name)
        return step is not None and step.failures > rule.retries

    def _try(self, phase: Phase, rule: Rule) -> None:
        step, now = self.saga.step(phase, rule.name), self.view.now
        if step is not None and step.progress is Progress.RUNNING:
            self._say_running(step)
        elif rule.name in self.view.busy:
            self._say(f"{rule.name} runs for another event")
            if phase is Phase.PREPARE and rule.name in self.view.less_urgent and self._is_tight(rule):
                self.effects.append(Displace(rule.name))
        elif step is not None and step.retry_at and timedelta(0) < step.retry_at - now <= LONGEST_PAUSE:
            self._say(f"{rule.name} failed ({step.message}) and will be retried")
        elif phase is Phase.PREPARE and step is None and (due := rule.due(self.saga.event)) and now < due:
            self._say(f"{rule.name} begins at {due:%Y-%m-%d %H:%M:%S} UTC")
        else:
            begun = self._note(phase, rule, Progress.RUNNING)
            self.effects.append(Begin(step=begun, deadline=self._deadline(phase, rule)))
            self._say_running(begun)

    def _say_running(self, step: Step) -> None:
        runs = "would run" if self.view.observes else "runs"
        self._say(f"{step.handler} {runs} ({step.phase}, attempt {step.attempt})")

    def _is_tight(self, rule: Rule) -> bool:
        """Whether it could no longer use all of its timeout."""
        deadline = self.saga.event.deadline
        return deadline is not None and deadline - MARGIN - self.view.now < rule.timeout

    def _deadline(self, phase: Phase, rule: Rule) -> datetime:
        limit = self.view.now + rule.timeout
        not_before = self.saga.event.deadline
        if phase is Phase.PREPARE and not_before and not_before - MARGIN > self.view.now:
            return min(limit, not_before - MARGIN)
        return limit

    def _note(self, phase: Phase, rule: Rule, progress: Progress) -> Step:
        before = self.saga.step(phase, rule.name)
        step = Step(
            phase=phase,
            handler=rule.name,
            progress=progress,
            attempt=before.attempt + 1 if before else 1,
            failures=before.failures if before else 0,
            begun_at=self.view.now,
            since=(before.since or before.begun_at) if before else self.view.now,
        )
        self.saga = self.saga.with_step(step)
        return step

    def _settled(self, phase: Phase, rule: Rule) -> bool:
        step = self.saga.step(phase, rule.name)
        return step is not None and step.progress.settled

    def _say(self, why: str) -> None:
        if why != self.saga.why:
            self.saga = replace(self.saga, why=why)
