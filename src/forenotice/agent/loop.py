"""The agent's one loop: takes messages, looks at every saga, writes and does what comes next."""

import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import ParamSpec

from forenotice.agent import freeze
from forenotice.agent.config import Config
from forenotice.agent.context import Context
from forenotice.agent.endpoint import ApprovalResult, Approver, EventList, Named, Poller
from forenotice.agent.freeze import Sampler
from forenotice.agent.handlers import GRACE, Work, facts
from forenotice.agent.network import Network
from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Phase
from forenotice.agent.rules.saga import ProcessGroup, Saga, SagaIndex, State, Step, memo
from forenotice.agent.rules.transitions import Approve, Begin, Displace, Effect, Stop, View
from forenotice.agent.sagas import Sagas
from forenotice.agent.workers import Ended, HandlerSet, Job, Workers
from forenotice.client import News
from forenotice.client.events import Document, Event
from forenotice.programs import process

BUSY_TURN, IDLE_TURN = 0.25, 2.0
LEAST_REST = 60
"""The loop rests this many times as long as its last turn took, so that hundreds of events cost little."""
WRITE_SECONDS = 10.0
"""In which a handler's memo must have been written."""
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class PeerReady:
    event: str
    name: str
    ready_at: datetime | None


@dataclass(frozen=True, slots=True)
class Note:
    """A change of its saga that a handler waits for until it is written."""

    job: Job
    change: Callable[[Saga], Saga | None]
    """None: the attempt is over."""
    forward: bool
    """The handler must not go on if it cannot be written."""
    written: "queue.SimpleQueue[bool]" = field(default_factory=queue.SimpleQueue)


class Signal(Enum):
    RELOAD = auto()
    QUIT = auto()


Message = News | Named | ApprovalResult | PeerReady | Note | Ended | Signal


@dataclass(slots=True, kw_only=True)
class Parts:
    sagas: Sagas
    poller: Poller
    approver: Approver
    workers: Workers
    network: Network
    sampler: Sampler
    context: Context


class Loop:
    def __init__(self, inbox: "queue.SimpleQueue[Message]", config: Config, parts: Parts) -> None:
        self._inbox = inbox
        self._context = context = parts.context
        self._observe = context.observe
        self._parts = parts
        self._sagas, self._workers = parts.sagas, parts.workers
        self._log, self._metrics, self._monotonic = context.log, context.metrics, context.runtime.monotonic
        self._events = EventList()
        self.me = config.name
        """This VM's name; empty while it is unknown."""
        self._quitting = False
        self._stirred = False
        """Something has happened since the last turn that a saga may have waited for."""
        self._due = 0.0
        """When the next turn is made in any case, by the monotonic clock."""
        self._displaced: set[Job] = set()
        """Told to leave the event that they prepare for, for a more urgent one."""
        self.configure(config)

    @property
    def names(self) -> tuple[str, ...]:
        """The VMs that this agent acts for, its own first; none while that is unknown."""
        return (self.me, *self._config.act_for) if self.me else ()

    def configure(self, config: Config) -> None:
        self._config = config
        self._handlers = HandlerSet(config.handlers)

    def run(self, *, reload: Callable[[], None], after_turn: Callable[[], None]) -> None:
        self._sagas.try_to_open()
        while not self._quitting:
            for message in self._received():
                if message is Signal.RELOAD:
                    self._guard(reload)
                else:
                    self._guard(self._take, message)
            if not self._quitting and (self._stirred or self._monotonic() >= self._due):
                begun = time.thread_time()
                self._stirred = False
                self._guard(self._turn)
                self._guard(after_turn)
                usual = BUSY_TURN if self._sagas.live else IDLE_TURN
                self._due = self._monotonic() + min(IDLE_TURN, max(usual, LEAST_REST * (time.thread_time() - begun)))
        self._finish()

    def _guard(self, act: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """A defect ends what it occurred in, and no more: the agent goes on."""
        try:
            act(*args, **kwargs)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__, limit=-1)[0]
            reason = f"{type(error).__name__} in {place.name}, line {place.lineno}: {error}"
            self._log.trouble("A defect occurred", action="agent.defect", reason=reason)

    def _received(self) -> list[Message]:
        found: list[Message] = []
        try:
            found.append(self._inbox.get(timeout=max(0.0, self._due - self._monotonic())))
            while True:
                found.append(self._inbox.get_nowait())
        except queue.Empty:
            return found

    def _take(self, message: Message) -> None:
        stirred = not isinstance(message, Note)
        match message:
            case News():
                self._parts.poller.record(message)
                if message.date is not None:
                    self._parts.sampler.dated(message.date, message.asked_at, message.answered_at)
                stirred = self._events.record(message)
            case Named(me):
                if me != self.me:
                    self._log.info("This VM's name is known", action="agent.named", name=me)
                self.me = me
            case ApprovalResult():
                self._approved(message)
            case PeerReady(event, name, ready_at):
                self._sagas.peer_ready(event.upper(), name.lower(), ready_at)
            case Note():
                after = message.change(self._sagas.sagas[message.job.saga])
                message.written.put(after is not None and self._sagas.keep(after, forward=message.forward))
            case Ended():
                self._ended(message)
            case Signal.QUIT:
                self._quitting = True
        self._stirred |= stirred

    def _approved(self, result: ApprovalResult) -> None:
        self._parts.approver.record(result)
        saga = self._sagas.sagas[result.saga]
        if result.error:
            self._metrics.count("approvals_total", "refused" if result.refused else "error")
            self._log.trouble("An approval did not succeed", action="approval.failed", reason=result.error)
            if result.refused and result.first:
                self._keep(transitions.refused(saga))
            return
        self._metrics.count("approvals_total", "accepted")
        self._log.over("Approvals succeed again", action="approval.failed")
        self._log.info("An event is approved", action="approval.done", event_id=saga.id, type=saga.event.type)
        self._keep(transitions.approved(saga, self._now()))

    def _ended(self, ended: Ended) -> None:
        job, outcome = ended.job, ended.outcome
        if not self._workers.finish(ended):
            return
        saga = self._sagas.sagas[job.saga]
        step = saga.step(job.phase, job.handler)
        if step is None or (self._quitting and not outcome.ok):
            # Ended by us: the journal shows it as running, and the next agent does it again.
            return
        interrupted = outcome.interrupted or (job in self._displaced and not outcome.ok)
        self._displaced.discard(job)
        if interrupted:
            after = transitions.interrupted(saga, step)
            text, action = "A handler was stopped, and begins again", "step.interrupted"
        else:
            rule = next((rule for rule in self._handlers_of(saga).rules if rule.name == job.handler), None)
            after = transitions.ended(
                saga, step, rule, ok=outcome.ok, message=outcome.message, now=self._now(), observed=self._observe
            )
            text, action = ("A handler is done", "step.done") if outcome.ok else ("A handler failed", "step.failed")
        self._keep(after)
        if self._observe:
            text, action = "A handler would have run" if outcome.ok else "A handler could not run", "step.observed"
        elif not interrupted:
            self._metrics.stepped(job.handler, job.phase, ok=outcome.ok, seconds=ended.seconds)
        level = self._log.info if outcome.ok or interrupted else self._log.warning
        level(
            text,
            action=action,
            event_id=saga.id,
            handler=job.handler,
            phase=job.phase,
            attempt=job.attempt,
            seconds=round(ended.seconds, 3),
            output=outcome.message,
        )

    def _turn(self) -> None:
        if not self._sagas.open:
            self._sagas.try_to_open()
        self._sagas.write_unwritten()
        for ended in self._workers.give_up():
            self._ended(ended)
        self._end_abandoned()
        document = self._events.document
        if document is not None and self.names and self._settle_loss(document):
            self._begin_sagas(document)
        self._index = SagaIndex(self._sagas.sagas.values())
        for saga in sorted(self._sagas.live, key=lambda saga: saga.event.deadline or saga.seen_at):
            if saga.state.returning or self._events.knows(saga.id):
                self._guard(self._look_at, saga)
        self._parts.poller.hurry(freeze.watch(self._sagas.live, self._parts.sampler, self._events.asked_at))
        self._announce()

    def _end_abandoned(self) -> None:
        """Programs of an agent that was killed: each is ended before its handler begins again."""
        for saga in self._sagas.live:
            for step in saga.running:
                job = _job(saga, step)
                if step.group is not None and not self._workers.knows(job):
                    marks = facts.marks(saga.event, step)
                    act = partial(
                        process.end_group, step.group.number, step.group.started, marks, self._context.runtime
                    )
                    # Tried again in the next turn, if the system has no more threads.
                    self._guard(self._workers.end, job, act)

    def _settle_loss(self, document: Document) -> bool:
        """A new journal: handlers recover from what was prepared before it, after whatever is going on now."""
        if not self._sagas.is_new():
            return True
        first = None
        if any(rule.always_recover for rule in self._handlers.rules):
            started = [event for event in document.events if event.started and self._is_mine(event)]
            now = self._now()
            first = transitions.after_loss(now)
            if started:
                first = transitions.appeared(started[0], now, self.names, lost=True)
        return self._sagas.mark_old(first)

    def _begin_sagas(self, document: Document) -> None:
        for event in document.events:
            known = self._sagas.sagas.get(event.id.upper())
            if not self._is_mine(event) or (known and not transitions.reopened(known)):
                continue
            now = self._now()
            saga = transitions.again(known, event, now) if known else transitions.appeared(event, now, self.names)
            if self._sagas.begin(saga):
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
        handlers, index, parts = self._handlers_of(saga), self._index, self._parts
        view = View(
            now=self._now(),
            names=self.names or saga.names,
            listed=self._listed(saga),
            rules=handlers.rules,
            policy=self._config.policy,
            peers=self._sagas.peers.get(saga.id, {}),
            unacknowledged=parts.network.unacknowledged(saga.id),
            busy=index.busy(saga),
            held=index.held(saga),
            less_urgent=index.less_urgent(saga),
            owed=index.owed(saga),
            boot=self._context.boot,
            may_approve=parts.approver.may_send(saga.id),
            observes=self._observe,
        )
        if view.listed is None:
            saga = freeze.measured(saga, parts.sampler, self._context)
        after, effects = transitions.advance(saga, view)
        if after is self._sagas.sagas[saga.id] and not effects:
            return
        begun = [effect.step for effect in effects if isinstance(effect, Begin)]
        if preparing := [step.handler for step in begun if step.phase is Phase.PREPARE]:
            after = replace(after, configs={**after.configs, **handlers.written(preparing)})
        forward = bool(preparing) or any(isinstance(effect, Approve) for effect in effects)
        if self._keep(after, forward=forward):
            if after.steps is not saga.steps or after.state is not saga.state:
                index.update(after)
            for effect in effects:
                self._guard(self._do, effect, after, handlers)

    def _keep(self, saga: Saga, *, forward: bool = False) -> bool:
        """Whether what comes next may be done."""
        before = self._sagas.sagas[saga.id]
        if not self._sagas.keep(saga, forward=forward):
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
            case Begin():
                self._begin(effect, saga, handlers)
            case Stop(step=step):
                self._workers.stop(_job(saga, step))
            case Displace(handler):
                for other in self._sagas.live:
                    found = other.step(Phase.PREPARE, handler)
                    if other.id != saga.id and found and found in other.running:
                        self._displaced.add(_job(other, found))
                        self._workers.stop(_job(other, found))
            case Approve(first):
                self._parts.approver.send(saga.id, saga.event, first=first)

    def _begin(self, begin: Begin, saga: Saga, handlers: HandlerSet) -> None:
        step, config = begin.step, handlers.configs[begin.step.handler]
        job = _job(saga, step)
        work = Work(
            handler=step.handler,
            phase=step.phase,
            event=saga.event,
            me=self.me,
            attempt=step.attempt,
            deadline=begin.deadline,
            seconds_left=(begin.deadline - self._now()).total_seconds(),
            pause=saga.pause.seconds if saga.pause else None,
            memo=memo(saga, step.handler, self._sagas.sagas.values()),
            remember=partial(self._remember, job),
            on_start=partial(self._on_start, job),
            stop=threading.Event(),
        )
        level = self._log.debug if self._observe else self._log.info
        level(
            "A handler is asked what it would do" if self._observe else "A handler begins",
            action="step.begun",
            event_id=saga.id,
            handler=step.handler,
            phase=step.phase,
            stage=config.stage,
            attempt=step.attempt,
            seconds_left=round(work.seconds_left, 3),
        )
        self._workers.begin(job, config, work)

    def _remember(self, job: Job, text: str) -> None:
        """In the handler's thread, as are the next two."""
        self._note(job, lambda saga: replace(saga, memos={**saga.memos, job.handler: text}), forward=True)

    def _on_start(self, job: Job, pid: int) -> None:
        started = process.started(pid)
        group = None if started is None else ProcessGroup(number=pid, started=started, boot=self._context.boot)
        change = partial(transitions.with_group, phase=job.phase, handler=job.handler, attempt=job.attempt, group=group)
        self._note(job, change, forward=job.phase is Phase.PREPARE)

    def _note(self, job: Job, change: Callable[[Saga], Saga | None], *, forward: bool) -> None:
        note = Note(job, change, forward)
        self._inbox.put(note)
        try:
            written = note.written.get(timeout=WRITE_SECONDS)
        except queue.Empty:
            written = False
        if not written:
            raise OSError("the journal cannot be written")

    def _announce(self) -> None:
        """To peers: since when this VM is ready for each event that it shares with them."""
        self._sagas.forget_unseen()
        acts = self._config.policy.approves and not self._observe
        ready = (State.PREPARED, State.APPROVED, State.STARTED) if acts else ()
        self._parts.network.announce(
            {
                saga.id: (saga.event.resources, saga.ready_at if saga.state in ready else None)
                for saga in self._sagas.live
                if len(saga.event.resources) > 1
            }
        )

    def _finish(self) -> None:
        """Ask handlers to end; the next agent does again what they do not complete."""
        self._workers.stop_all()
        deadline = self._monotonic() + GRACE + 1
        while self._workers.busy and (left := deadline - self._monotonic()) > 0:
            try:
                self._guard(self._take, self._inbox.get(timeout=left))
            except queue.Empty:
                break
        self._parts.sampler.end()
        self._sagas.close()

    def _handlers_of(self, saga: Saga) -> HandlerSet:
        return self._handlers.joined_by(saga.configs)

    def _listed(self, saga: Saga) -> Event | None:
        """Also by the names that it began under: this VM's name may be only a guess now."""
        listed = self._events.find(saga.id)
        return listed if listed and any(map(listed.names, (*self.names, *saga.names))) else None

    def _is_mine(self, event: Event) -> bool:
        return any(event.names(name) for name in self.names)

    def _now(self) -> datetime:
        return self._context.clock.now() + self._parts.poller.ahead


def _job(saga: Saga, step: Step) -> Job:
    return Job(saga.id, step.phase, step.handler, step.attempt)
