"""The agent's one loop: takes what has happened, looks at every saga, writes down and does what comes next."""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from forenotice.agent import freeze
from forenotice.agent.config import Config
from forenotice.agent.endpoint import Answered, Approver, EventList, Named, Polled, Poller
from forenotice.agent.freeze import Sampler
from forenotice.agent.handlers import GRACE, Work, facts
from forenotice.agent.log import Log
from forenotice.agent.metrics import Approval, Metrics
from forenotice.agent.network import Network
from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Phase
from forenotice.agent.rules.saga import ProcessGroup, Saga, SagaIndex, State, memo
from forenotice.agent.rules.transitions import Approve, Begin, Displace, Effect, Stop, View
from forenotice.agent.sagas import Sagas
from forenotice.agent.workers import Ended, HandlerSet, Job, Workers
from forenotice.client.events import Document, Event
from forenotice.clock import MachineClock
from forenotice.programs import process
from forenotice.programs import process as groups

BUSY_TURN, IDLE_TURN = 0.25, 2.0
LEAST_REST = 60
"""How many times as long as a turn took is waited for the next, if nothing happens: hundreds of events cost little."""
NONE: Mapping[str, str] = {}
WRITTEN_WITHIN = 10.0
"""Seconds in which a handler's memo must have been written."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A peer is ready, or is not."""

    event: str
    name: str
    ready_at: datetime | None


@dataclass(slots=True)
class Note:
    """A change of its saga for which a handler waits until it is written."""

    job: Job
    change: Callable[[Saga], Saga | None]
    """None: it is no longer wanted."""
    forward: bool
    """It is not to be done if it cannot be written."""
    written: bool = False
    answered: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Reload:
    pass


@dataclass(frozen=True, slots=True)
class Quit:
    pass


Message = Polled | Named | Answered | Heard | Note | Ended | Reload | Quit


@dataclass(slots=True, kw_only=True)
class Parts:
    """What the loop works with."""

    memory: Sagas
    polling: Poller
    approver: Approver
    workers: Workers
    front: Network
    sampler: Sampler
    clock: MachineClock
    log: Log
    metrics: Metrics
    boot: str = ""
    """Which boot of this machine this is; empty where that is not known."""


class Loop:
    def __init__(
        self, inbox: "queue.SimpleQueue[Message]", config: Config, around: Parts, *, observe: bool = False
    ) -> None:
        self._inbox = inbox
        self._observe = observe
        self._around = around
        self._memory = around.memory
        self._log = around.log
        self._metrics = around.metrics
        self._listing = EventList()
        self._me = config.name
        self._quitting = False
        self._stirred = False
        """Something has happened since the last turn that a saga may have waited for."""
        self._due = 0.0
        """When a turn is made in any case, by the monotonic clock."""
        self._displaced: set[Job] = set()
        """Told to leave the event that they prepare for, for the sake of one that comes earlier."""
        self.configure(config)

    @property
    def me(self) -> str:
        """This VM's name; empty as long as it is not known."""
        return self._me

    @property
    def names(self) -> tuple[str, ...]:
        """The VMs that this agent acts for, its own first; none as long as that is not known."""
        return (self._me, *self._config.act_for) if self._me else ()

    def configure(self, config: Config) -> None:
        self._config = config
        self._handlers = HandlerSet(config.handlers)

    def run(self, *, reload: Callable[[], None], after_turn: Callable[[], None]) -> None:
        """Until told to quit."""
        self._memory.try_to_open()
        while not self._quitting:
            for message in self._received():
                self._guard(reload if isinstance(message, Reload) else partial(self._take, message))
            if not self._quitting and (self._stirred or time.monotonic() >= self._due):
                begun = time.thread_time()
                self._stirred = False
                self._guard(self._turn)
                self._guard(after_turn)
                usual = BUSY_TURN if self._memory.live else IDLE_TURN
                self._due = time.monotonic() + min(IDLE_TURN, max(usual, LEAST_REST * (time.thread_time() - begun)))
        self._finish()

    def _guard(self, act: Callable[[], None]) -> None:
        """A defect ends what it was met in, and no more: the agent goes on."""
        try:
            act()
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__, limit=-1)[0]
            reason = f"{type(error).__name__} in {place.name}, line {place.lineno}: {error}"
            self._log.trouble("A defect was met", action="agent.defect", reason=reason)

    def _received(self) -> list[Message]:
        found: list[Message] = []
        try:
            found.append(self._inbox.get(timeout=max(0.0, self._due - time.monotonic())))
            while True:
                found.append(self._inbox.get_nowait())
        except queue.Empty:
            return found

    def _take(self, message: Message) -> None:
        stirred = not isinstance(message, Note)
        match message:
            case Polled(news):
                self._around.polling.heard(news)
                if news.date is not None:
                    self._around.sampler.dated(news.date, news.asked_at, news.answered_at)
                stirred = self._listing.heard(news)
            case Named(me):
                if me != self._me:
                    self._log.info("This VM's name is known", action="agent.named", name=me)
                self._me = me
            case Answered():
                self._answered(message)
            case Heard(event, name, ready_at):
                self._memory.heard(event.upper(), name.lower(), ready_at)
            case Note():
                after = message.change(self._memory.sagas[message.job.saga])
                message.written = after is not None and self._memory.keep(after, {}, forward=message.forward)
                message.answered.set()
            case Ended():
                self._ended(message)
            case Quit():
                self._quitting = True
        self._stirred |= stirred

    def _answered(self, answer: Answered) -> None:
        self._around.approver.answered(answer)
        saga = self._memory.sagas[answer.saga]
        if answer.error:
            self._metrics.approved(Approval.REFUSED if answer.refused else Approval.ERROR)
            self._log.trouble("An approval did not succeed", action="approval.failed", reason=answer.error)
            if answer.refused and answer.first:
                self._keep(transitions.refused(saga))
            return
        self._metrics.approved(Approval.ACCEPTED)
        self._log.over("Approvals succeed again", action="approval.failed")
        self._log.info("An event is approved", action="approval.done", event_id=saga.id, type=saga.event.type)
        self._keep(transitions.approved(saga, self._now()))

    def _ended(self, ended: Ended) -> None:
        job, outcome = ended.job, ended.outcome
        if not self._around.workers.finish(ended):
            return
        saga = self._memory.sagas[job.saga]
        step = saga.step(job.phase, job.handler)
        if step is None or (self._quitting and not outcome.ok):
            # Ended by us: it stands as running in the journal, and is done again.
            return
        rule = next((rule for rule in self._handlers_of(saga).rules if rule.name == job.handler), None)
        interrupted = ended.interrupted or (job in self._displaced and not outcome.ok)
        if interrupted:
            after = transitions.interrupted(saga, step)
        else:
            after = transitions.ended(
                saga, step, rule, ok=outcome.ok, said=outcome.said, now=self._now(), observed=self._observe
            )
        self._displaced.discard(job)
        self._keep(after)
        say = self._log.info if outcome.ok or interrupted else self._log.warning
        if self._observe:
            words, action = "A handler would have run" if outcome.ok else "A handler could not run", "step.observed"
        elif interrupted:
            words, action = "A handler was stopped, and begins again", "step.interrupted"
        else:
            self._metrics.stepped(job.handler, job.phase, ok=outcome.ok, seconds=ended.seconds)
            words, action = ("A handler is done", "step.done") if outcome.ok else ("A handler failed", "step.failed")
        say(
            words,
            action=action,
            event_id=saga.id,
            handler=job.handler,
            phase=job.phase,
            attempt=job.attempt,
            seconds=round(ended.seconds, 3),
            said=outcome.said,
        )

    def _turn(self) -> None:
        if not self._memory.open:
            self._memory.try_to_open()
        self._memory.write_what_is_left()
        for ended in self._around.workers.give_up():
            self._ended(ended)
        self._end_what_was_left()
        document = self._listing.document
        if document is not None and self.names and self._settle_loss(document):
            self._welcome(document)
        self._others = SagaIndex(self._memory.sagas.values())
        for saga in sorted(self._memory.live, key=_urgency):
            if saga.state.returning or self._listing.knows(saga.id):
                self._guard(partial(self._look_at, saga))
        near = freeze.watch(self._memory.live, self._around.sampler, self._listing.asked_at)
        self._around.polling.hurry(near)
        self._tell_peers()

    def _end_what_was_left(self) -> None:
        """Programs of an agent that was killed: each is ended before anything else is done in its stead."""
        for saga in self._memory.live:
            for step in saga.running:
                job = Job(saga.id, step.phase, step.handler, step.attempt)
                if step.group is not None and not self._around.workers.knows(job):
                    act = partial(_end_group, step.group, facts.marks(saga.event, step))
                    # Tried again in the next turn, should there be no thread to be had.
                    self._guard(partial(self._around.workers.end, job, act))

    def _settle_loss(self, document: Document) -> bool:
        """A new journal: what was prepared before it is recovered from, after whatever is going on just now."""
        if not self._memory.is_new():
            return True
        first = None
        if any(rule.always_recover for rule in self._handlers.rules):
            started = [event for event in document.events if event.started and self._is_mine(event)]
            now = self._now()
            first = (
                transitions.appeared(started[0], now, self.names, lost=True) if started else transitions.after_loss(now)
            )
        return self._memory.mark_old(first)

    def _welcome(self, document: Document) -> None:
        for event in document.events:
            known = self._memory.sagas.get(event.id.upper())
            if not self._is_mine(event) or (known and not transitions.reopened(known)):
                continue
            now = self._now()
            saga = transitions.again(known, event, now) if known else transitions.appeared(event, now, self.names)
            if self._memory.begin(saga):
                self._metrics.saw(event.type)
                self._log.info(
                    "An event has appeared",
                    action="saga.seen",
                    event_id=event.id,
                    type=event.type,
                    not_before=event.not_before_text,
                    resources=event.resources,
                )

    def _look_at(self, saga: Saga) -> None:
        handlers, others = self._handlers_of(saga), self._others
        view = View(
            now=self._now(),
            names=self.names or saga.names,
            listed=self._listed(saga),
            rules=handlers.rules,
            policy=self._config.policy,
            peers=self._memory.peers.get(saga.id, {}),
            untold=self._around.front.untold(saga.id),
            busy=others.busy(saga),
            held=others.held(saga),
            less_urgent=others.less_urgent(saga),
            owed=others.owed(saga),
            boot=self._around.boot,
            may_approve=self._around.approver.may_send(saga.id),
            observes=self._observe,
        )
        if view.listed is None:
            saga = freeze.measured(saga, self._around.sampler, self._log, self._metrics)
        after, effects = transitions.advance(saga, view)
        if after is self._memory.sagas[saga.id] and not effects:
            return
        preparing = [
            effect.step.handler
            for effect in effects
            if isinstance(effect, Begin) and effect.step.phase is Phase.PREPARE
        ]
        forward = bool(preparing) or any(isinstance(effect, Approve) for effect in effects)
        if self._keep(after, handlers.written(preparing), forward=forward):
            if after.steps is not saga.steps or after.state is not saga.state:
                others.update(after)
            for effect in effects:
                self._guard(partial(self._do, effect, after, handlers))

    def _keep(self, saga: Saga, configs: Mapping[str, str] = NONE, *, forward: bool = False) -> bool:
        """Whether what comes next may be done."""
        before = self._memory.sagas[saga.id]
        if not self._memory.keep(saga, configs, forward=forward):
            return False
        if before.boot and saga.boot != before.boot:
            self._log.warning(
                "This machine has rebooted before the event started, and prepares again",
                action="saga.rebooted",
                event_id=saga.id,
            )
        if saga.state is not before.state:
            self._log.info(
                "An event has moved on",
                action="saga.moved",
                event_id=saga.id,
                state=saga.state,
                why=saga.why,
                seconds=max(0.0, round((self._now() - before.since).total_seconds(), 3)),
            )
        elif saga.why != before.why:
            self._log.info("An event waits", action="saga.waits", event_id=saga.id, state=saga.state, why=saga.why)
        return True

    def _do(self, effect: Effect, saga: Saga, handlers: HandlerSet) -> None:
        match effect:
            case Begin(step=step, deadline=deadline):
                job = Job(saga.id, step.phase, step.handler, step.attempt)
                work = Work(
                    handler=step.handler,
                    phase=step.phase,
                    event=saga.event,
                    me=self._me,
                    attempt=step.attempt,
                    deadline=deadline,
                    seconds_left=(deadline - self._now()).total_seconds(),
                    pause=saga.pause.seconds if saga.pause else None,
                    memo=memo(saga, step.handler, self._memory.sagas.values()),
                    remember=lambda text: self._remember(job, text),
                    born=lambda pid: self._born(job, pid),
                    stop=threading.Event(),
                )
                say = self._log.debug if self._observe else self._log.info
                say(
                    "A handler is asked what it would do" if self._observe else "A handler begins",
                    action="step.begun",
                    event_id=saga.id,
                    handler=step.handler,
                    phase=step.phase,
                    stage=handlers.stage(step.handler),
                    attempt=step.attempt,
                    seconds_left=round(work.seconds_left, 3),
                )
                try:
                    self._around.workers.begin(job, handlers.handler(step.handler), work)
                except Exception as error:
                    # No thread to be had, for one: it counts as a failure, and is tried again.
                    self._inbox.put(self._around.workers.unbegun(job, error))
            case Stop(phase=phase, handler=handler):
                if (running := saga.step(phase, handler)) is not None:
                    self._around.workers.stop(Job(saga.id, phase, handler, running.attempt))
            case Displace(handler):
                self._displace(handler, saga)
            case Approve(first):
                self._around.approver.send(saga.id, saga.event, first=first)

    def _displace(self, handler: str, sake: Saga) -> None:
        jobs = [
            Job(saga.id, step.phase, step.handler, step.attempt)
            for saga in self._memory.live
            for step in saga.running
            if saga.id != sake.id and step.handler == handler and step.phase is Phase.PREPARE
        ]
        self._displaced.update(jobs)
        for job in jobs:
            self._around.workers.stop(job)

    def _remember(self, job: Job, text: str) -> None:
        """In the handler's thread, as are the next two."""
        self._note(job, lambda saga: replace(saga, memos={**saga.memos, job.handler: text}), forward=True)

    def _born(self, job: Job, pid: int) -> None:
        started = groups.started(pid)
        group = None if started is None else ProcessGroup(number=pid, started=started, boot=self._around.boot)
        note = partial(transitions.born, phase=job.phase, handler=job.handler, attempt=job.attempt, group=group)
        self._note(job, note, forward=job.phase is Phase.PREPARE)

    def _note(self, job: Job, change: Callable[[Saga], Saga | None], *, forward: bool) -> None:
        note = Note(job, change, forward)
        self._inbox.put(note)
        if not note.answered.wait(WRITTEN_WITHIN) or not note.written:
            raise OSError("the journal cannot be written")

    def _tell_peers(self) -> None:
        self._memory.forget_strangers()
        shared = (saga for saga in self._memory.live if len(saga.event.resources) > 1)
        self._around.front.tell({saga.id: (saga.event.resources, self._ready_at(saga)) for saga in shared})

    def _ready_at(self, saga: Saga) -> datetime | None:
        """As others may rely on it."""
        acts = self._config.policy.approves and not self._observe
        ready = acts and saga.state in (State.PREPARED, State.APPROVED, State.STARTED)
        return saga.ready_at if ready else None

    def _finish(self) -> None:
        """Handlers are asked to end; what they do not get done is done again by the next agent."""
        self._around.workers.stop_all()
        deadline = time.monotonic() + GRACE + 1
        while self._around.workers.busy and (left := deadline - time.monotonic()) > 0:
            try:
                self._guard(partial(self._take, self._inbox.get(timeout=left)))
            except queue.Empty:
                break
        self._around.sampler.end()
        self._memory.close()

    def _handlers_of(self, saga: Saga) -> HandlerSet:
        return self._handlers.joined_by(self._memory.configs.get(saga.id, {}))

    def _listed(self, saga: Saga) -> Event | None:
        """By the names that it began under too: what this VM is called may only be guessed just now."""
        listed = self._listing.find(saga.id)
        return listed if listed and any(map(listed.names, (*self.names, *saga.names))) else None

    def _is_mine(self, event: Event) -> bool:
        return any(event.names(name) for name in self.names)

    def _now(self) -> datetime:
        return self._around.clock.now() + self._around.polling.ahead


def _end_group(group: ProcessGroup, marks: Mapping[str, str]) -> bool:
    return process.end_group(group.number, group.started, marks)


def _urgency(saga: Saga) -> datetime:
    return saga.event.deadline or saga.seen_at
