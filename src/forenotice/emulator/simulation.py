"""One group of VMs with its events, simulated in memory by the rules of core."""

import heapq
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from forenotice import publication
from forenotice.core import (
    announcements,
    budgets,
    documents,
    driver_calls,
    errors,
    explanations,
    fleet,
    lifecycle,
    membership,
)
from forenotice.core.draft import Changes, Draft, World
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.explanations import Explanation
from forenotice.core.fleet import Host, Listening, Policy, Scope, ScopeKind, Vm
from forenotice.core.journal import Entry
from forenotice.core.lifecycle import Approval
from forenotice.core.membership import VmSpec
from forenotice.core.operations import DEGRADED_NOTICE, Event, EventType, Kind, Operation, Status
from forenotice.core.timing import ENDED_APPROVABLE, Timing, whole_second_up
from forenotice.publication import NullPublisher, Publication, Publisher

TAKES: Mapping[EventType, timedelta] = {
    EventType.FREEZE: timedelta(minutes=10),
    EventType.REBOOT: timedelta(minutes=10),
    EventType.REDEPLOY: timedelta(minutes=10),
    EventType.PREEMPT: timedelta(seconds=30),
    EventType.TERMINATE: timedelta(seconds=30),
}
"""How long Started lasts where nobody says: as measured on the real platform for the first three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a group is to be told. Durations are as people write them, before speed divides them."""

    kind: Kind
    resources: tuple[str, ...]
    notice: timedelta | None = None
    """None: as long as the kind needs at least."""
    takes: timedelta | None = None
    """How long it is Started."""
    description: str | None = None
    duration: int | None = None
    """DurationInSeconds."""

    @property
    def names(self) -> tuple[str, ...]:
        """Whom it names; refused unless it is something that a document may say."""
        names = tuple(sorted({fleet.require_name("VM", name) for name in self.resources}, key=fleet.natural_key))
        if not names:
            raise errors.RefusedError("an event names at least one VM: give its resources")
        for what, span in (("notice", self.notice), ("takes", self.takes)):
            if span is not None and span < timedelta(0):
                raise errors.RefusedError(f"{what} cannot be less than no time: give a duration such as 15m")
        if not isinstance(self.description, str | None):
            raise errors.RefusedError(f"a description is text, not {self.description!r}")
        if self.duration is not None and self.duration < -1:
            raise errors.RefusedError("an impact lasts no time or more; -1 seconds is for one of unknown length")
        return names

    @property
    def ahead(self) -> timedelta:
        """From its appearance to NotBefore."""
        usual = DEGRADED_NOTICE if self.kind is Kind.DEGRADED_HARDWARE else self.kind.traits.notice
        return usual if self.notice is None else self.notice

    @property
    def lasts(self) -> timedelta:
        return TAKES[self.kind.traits.type] if self.takes is None else self.takes

    def word(self, event: Event) -> Event:
        return replace(
            event,
            description=event.description if self.description is None else self.description,
            duration=event.duration if self.duration is None else self.duration,
        )


GROUP = "emulated"
KEY = fleet.group_key(GROUP)
NOBODY_WAITS = datetime.min.replace(tzinfo=UTC)
"""Here nothing is kept back after a start: guests have always been able to look."""
REMEMBERED = 512
"""Ended operations that are kept before those are forgotten that no approval can name any more."""
ENTRIES = 100_000
TICK = timedelta(microseconds=1)
CLAIM = timedelta(seconds=15)
PROCESS = "emulator"


class Simulation:
    """Not thread-safe. Every `now` is at or after the one before."""

    def __init__(
        self,
        *,
        now: datetime,
        timing: Timing,
        publisher: Publisher | None = None,
        kind: ScopeKind = ScopeKind.AVAILABILITY_SET,
        listens: Listening = Listening.ALWAYS,
        after: "Simulation | None" = None,
    ) -> None:
        """`after` another one, incarnations go on from where they were."""
        self.timing = timing
        self.entries: deque[Entry] = deque(maxlen=ENTRIES)
        self.publisher: Publisher = publisher or NullPublisher()
        self._draft = self._new_draft(World(), now)
        self._due: list[tuple[datetime, str]] = []
        self._takes: dict[str, timedelta] = {}
        """Of live operations."""
        self._announced = 0
        self._last_created = now - TICK
        self._started: dict[str, Operation] = {}
        self._held: dict[str, Operation] = {}
        """Those that could have started but for others."""
        self._tried: set[str] | None = None
        """Of the held ones, those that were looked at since something changed for them; None: nothing has."""
        self._forget_at = now
        self._regrouped = False
        """Whether VMs or policy have changed since they were published."""
        self._past: dict[str, Event] = {}
        """What is over for so long that nobody can approve it any more."""
        membership.add_group(
            self._draft, GROUP, kind, Policy(listening=listens, terminate_notice=fleet.TERMINATE_NOTICE_MIN)
        )
        if after is not None:
            # What is shown changes only if something was.
            incarnation = after.scope.incarnation + bool(after.live)
            self._draft.put_scope(replace(self.scope, tag=after.scope.tag, incarnation=incarnation))
        self._keep()

    # What there is

    @property
    def scope(self) -> Scope:
        return self._draft.scope(KEY)

    @property
    def vms(self) -> list[Vm]:
        return self._draft.vms_in(KEY)

    @property
    def live(self) -> list[Event]:
        """Oldest first, as the document lists them."""
        return documents.in_order(self._draft.live_events_in(KEY))

    @property
    def events(self) -> list[Event]:
        """All that there ever were, oldest first."""
        return documents.in_order((*self._past.values(), *self._draft.world.events.values()))

    @property
    def recent(self) -> list[Event]:
        """Those that are live or were not long ago, oldest first."""
        return documents.in_order(self._draft.world.events.values())

    def event(self, event_id: str) -> Event:
        return self._past.get(event_id.upper()) or self._draft.event(event_id)

    def started_at(self, event: Event) -> datetime | None:
        """When it started; None: it has not, or that is long ago."""
        operation = self._draft.world.operations.get(event.operation)
        return None if operation is None else operation.started_at

    def takes(self, event: Event) -> timedelta:
        """How long a live one is Started, or will be."""
        return self._takes[event.operation]

    def explain(self, event_id: str, now: datetime) -> Explanation:
        """Why it waits, in the words of the service."""
        event = self.event(event_id)
        if not event.status.live:
            return explanations.of_ended("event", event)
        self._draft.now = now
        operation = self._draft.operation(event.operation)
        self._prepare(operation)
        found = explanations.explain_event(self._draft, event, NOBODY_WAITS)
        if operation.started_at is None:
            return found
        return replace(found, until=operation.started_at + self._takes[operation.id])

    @property
    def due(self) -> datetime | None:
        """When tick has something to do."""
        following = self.following
        return None if following is None else following.due_at

    @property
    def following(self) -> Operation | None:
        """The one that tick has something to do for next, at its `due_at`."""
        while self._due:
            at, key = self._due[0]
            operation = self._draft.world.operations.get(key)
            if operation is not None and operation.due_at == at:
                return operation
            heapq.heappop(self._due)
        return None

    def publication(self) -> Publication:
        return publication.of(self.scope, self.vms, self.live)

    # What is done

    def add_vm(self, name: str, now: datetime, *, update_domain: int = 0) -> None:
        """A VM that is there already must be as described."""
        known = self._draft.world.vms.get(name)
        if known is not None:
            if known.update_domain != update_domain:
                raise errors.ConflictError(f"{name} is in update domain {known.update_domain}, not {update_domain}")
            return
        self._draft.now = now
        hosts = _hosts(name)
        for host in hosts:
            if host not in self._draft.world.hosts:
                self._draft.put_host(Host(name=host))
        membership.add_vm(
            self._draft,
            VmSpec(name=name, host=hosts[0], group=GROUP, update_domain=update_domain, fault_domain=update_domain),
        )
        self._keep()

    def announce(self, announcement: Announcement, now: datetime) -> Event:
        """VMs that were not there are added, beside the others that it names."""
        names = announcement.names
        domain = self._one_domain(names)
        for name in names:
            self.add_vm(name, now, update_domain=domain)
        # Each a moment after the one before, so that documents and turns have them in the order of announcement.
        self._draft.now = self._last_created = max(now, self._last_created + TICK)
        self._announced += 1
        not_before = self._not_before(announcement, now)
        operation = Operation(
            id=f"operation-{self._announced:06}",
            kind=announcement.kind,
            host=self._draft.vm(names[0]).host,
            vms=names,
            status=Status.SCHEDULED,
            created_at=self._draft.now,
            not_before=not_before,
            due_at=not_before,
        )
        self._takes[operation.id] = self.timing.shortened(announcement.lasts)
        self._prepare(operation)
        announcements.announce(self._draft, operation)
        (event,) = self._draft.events_of(operation.id)
        self._draft.put_event(announcement.word(event))
        self._keep()
        self.tick(now)
        return self.event(event.id)

    def approve(self, event_id: str, by: str, now: datetime) -> None:
        """As an operator would."""
        self._draft.now = now
        lifecycle.approve_as_operator(self._draft, self.event(event_id), by)
        self._keep()
        self.tick(now)

    def cancel(self, event_id: str, now: datetime) -> None:
        self._draft.now = now
        lifecycle.cancel(self._draft, self._draft.operation(self.event(event_id).operation))
        self._keep()
        self.tick(now)

    def approve_as_guests(self, approvals: Sequence[Approval], now: datetime) -> list[errors.ForenoticeError | None]:
        """One answer for each; None is yes."""
        self._draft.now = now
        answers: list[errors.ForenoticeError | None] = []
        for approval in approvals:
            self._draft.by = f"vm:{approval.vm}"
            try:
                lifecycle.approve_as_guest(self._draft, approval)
                answers.append(None)
            except errors.ForenoticeError as refusal:
                answers.append(refusal)
        self._draft.by = ""
        self._keep()
        self.tick(now)
        return answers

    def hear(self, at: datetime, now: datetime) -> None:
        self._draft.now = now
        lifecycle.record_poll(self._draft, KEY, at)
        self._keep()
        self.tick(now)

    def tick(self, now: datetime) -> None:
        """Do whatever is due, each thing at its own moment; guests are shown the outcome."""
        while (due := self.due) is not None and due <= now:
            self._draft.now = max(due, self._draft.now)
            for operation in sorted(self._take_due(), key=_turn):
                self._step(operation.id)
            self._settle()
        self._draft.now = now
        self._keep()
        self._forget()

    # How

    def _new_draft(self, world: World, now: datetime) -> Draft:
        return Draft(world, now=now, timing=self.timing, new_id=lambda: str(uuid.uuid4()))

    def _one_domain(self, names: Sequence[str]) -> int:
        known = self._draft.world.vms
        domains = {known[name].update_domain for name in names if name in known}
        if len(domains) > 1:
            raise errors.RefusedError(
                f"{' and '.join(names)} are in different update domains: one event never names both, announce two"
            )
        return next(iter(domains), 0)

    def _not_before(self, announcement: Announcement, now: datetime) -> datetime:
        try:
            return whole_second_up(now + self.timing.shortened(announcement.ahead))
        except OverflowError:
            raise errors.RefusedError("that much notice is beyond the calendar: give less") from None

    def _take_due(self) -> Iterator[Operation]:
        while (due := self.due) is not None and due <= self._draft.now:
            yield self._draft.operation(heapq.heappop(self._due)[1])

    def _step(self, operation_id: str) -> None:
        """Looked at anew: an earlier step may have ended it."""
        draft = self._draft
        operation = draft.operation(operation_id)
        self._prepare(operation)
        if operation.status is Status.SCHEDULED:
            lifecycle.start_or_hold(draft, operation, NOBODY_WAITS)
            operation = draft.operation(operation_id)
        while operation.status is Status.STARTED and operation.due_at is not None and operation.due_at <= draft.now:
            acted_on = [draft.vm(name) for name in operation.vms]
            task = driver_calls.advance(draft, operation, PROCESS, draft.now + CLAIM)
            if task is not None:
                driver_calls.report(draft, draft.operation(operation_id), PROCESS, task.attempt, self._carry_out(task))
            for vm in acted_on:
                # An evicted or deleted VM comes back at once: whoever tests wants to ask on.
                if vm.name not in draft.world.vms:
                    draft.put_vm(vm)
            operation = draft.operation(operation_id)

    def _prepare(self, operation: Operation) -> None:
        """What moves has a place to go: each VM brings two hosts along. Spot VMs are evicted, others deleted."""
        if operation.kind in (Kind.EVICTION, Kind.DELETION) and operation.status is Status.SCHEDULED:
            for name in operation.vms:
                vm = self._draft.vm(name)
                if vm.spot != (operation.kind is Kind.EVICTION):
                    self._draft.put_vm(replace(vm, spot=not vm.spot))
        if operation.kind.traits.moves and operation.status.live:
            self._draft.world.occupancy = dict.fromkeys(_hosts(operation.vms[0]), 0)

    def _carry_out(self, task: Task) -> Outcome:
        done_at = task.started_at + self._takes[task.operation]
        return NotYet(again_at=done_at) if self._draft.now < done_at else Finished(done=task.vms, failures={})

    def _settle(self) -> None:
        """See when to look at what was decided, and whether what is held may start."""
        self._note(self._draft.changes(shown=False))
        if self._tried is None:
            return
        chosen = self._choose()
        self._tried.update(operation.id for operation in chosen)
        for operation in chosen:
            self._draft.put_operation(replace(operation, due_at=self._draft.now))
            heapq.heappush(self._due, (self._draft.now, operation.id))
        if not chosen:
            self._tried = None

    def _choose(self) -> list[Operation]:
        """Of the held ones that were not tried, those that nobody is in the way of, as far as is seen at once."""
        assert self._tried is not None
        busy = {name for operation in self._started.values() for name in operation.vms}
        out = {self._domain(operation) for operation in self._started.values() if budgets.excludes_others(operation)}
        chosen = []
        for operation in sorted(self._held.values(), key=_turn):
            planned = operation.kind.traits.planned
            in_the_way = not busy.isdisjoint(operation.vms) or (
                planned and budgets.is_excluded(self._domain(operation), out)
            )
            if operation.id not in self._tried and not in_the_way:
                chosen.append(operation)
                busy.update(operation.vms)
                if planned:
                    out.add(self._domain(operation))
        return chosen

    def _domain(self, operation: Operation) -> int:
        return self._draft.vm(operation.vms[0]).update_domain

    def _keep(self) -> None:
        self._settle()
        changes = self._draft.changes()
        self._note(changes)
        if self._regrouped:
            self._regrouped = False
            self.publisher.scopes([self.publication()])
        if changes.documents:
            self.publisher.documents(changes.documents)

    def _note(self, changes: Changes) -> None:
        self.entries.extend(changes.entries)
        self._regrouped |= bool(changes.members)
        if changes.woken or changes.room_made:
            self._tried = set()
        for key, operation in changes.operations.items():
            for known, belongs in (
                (self._started, operation.status is Status.STARTED),
                (self._held, operation.held and operation.status is Status.SCHEDULED),
            ):
                if belongs:
                    known[key] = operation
                else:
                    known.pop(key, None)
            if not operation.status.live:
                self._takes.pop(key, None)
            # What is held is looked at when something ends; only an earlier deletion also lets go by its time.
            if operation.due_at is not None and (key not in self._held or operation.kind is Kind.DELETION):
                heapq.heappush(self._due, (operation.due_at, key))

    def _forget(self) -> None:
        world = self._draft.world
        if len(world.operations) - len(self._takes) < REMEMBERED or self._draft.now < self._forget_at:
            return
        self._forget_at = self._draft.now + ENDED_APPROVABLE / 4
        kept = {
            key: operation
            for key, operation in world.operations.items()
            if operation.ended_at is None or self._draft.now - operation.ended_at <= ENDED_APPROVABLE
        }
        events = {key: event for key, event in world.events.items() if event.operation in kept}
        self._past |= {key: event for key, event in world.events.items() if key not in events}
        self._draft = self._new_draft(replace(world, operations=kept, events=events), self._draft.now)


def _turn(operation: Operation) -> tuple[datetime, datetime, str]:
    return operation.not_before, operation.created_at, operation.id


def _hosts(vm: str) -> tuple[str, str]:
    return f"host-of-{vm}", f"spare-of-{vm}"
