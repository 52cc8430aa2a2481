"""One group of VMs with its events, simulated in memory by the rules of core."""

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from forenotice import publication
from forenotice.core import (
    announcements,
    documents,
    driver_calls,
    errors,
    explanations,
    fleet,
    lifecycle,
    membership,
    operations,
)
from forenotice.core.draft import Changes, Draft, World
from forenotice.core.driver_calls import Finished, NotYet
from forenotice.core.explanations import Explanation
from forenotice.core.fleet import Host, Listening, Policy, Scope, ScopeKind, Vm
from forenotice.core.journal import Entry
from forenotice.core.lifecycle import StartRequests
from forenotice.core.membership import VmSpec
from forenotice.core.operations import DEGRADED_NOTICE, Event, EventType, Kind, Operation, Status
from forenotice.core.timing import ENDED_APPROVABLE, Timing, whole_second_up
from forenotice.publication import NullPublisher, Publication, Publisher
from forenotice.runtime import new_id
from forenotice.views import wording

GROUP = "emulated"
KEY = fleet.group_key(GROUP)
NO_GRACE = datetime.min.replace(tzinfo=UTC)
"""The service waits after its start until guests have had time to poll; an emulator does not."""
REMEMBERED = 512
"""Ended operations that are kept before those are forgotten that no approval can name any more."""
ENTRIES = 100_000
TICK = timedelta(microseconds=1)
CLAIM = timedelta(seconds=15)
PROCESS = "emulator"
TAKES: Mapping[EventType, timedelta] = {
    EventType.FREEZE: timedelta(minutes=10),
    EventType.REBOOT: timedelta(minutes=10),
    EventType.REDEPLOY: timedelta(minutes=10),
    EventType.PREEMPT: timedelta(seconds=30),
    EventType.TERMINATE: timedelta(seconds=30),
}
"""How long Started lasts by default: for the first three as measured on the real platform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """An event to be announced. Durations are as people write them, before speed divides them."""

    kind: Kind
    resources: tuple[str, ...]
    notice: timedelta | None = None
    """None: the least that the kind needs."""
    takes: timedelta | None = None
    """How long it is Started."""
    description: str | None = None
    duration: int | None = None
    """DurationInSeconds."""

    def validated_names(self) -> tuple[str, ...]:
        """The VMs; refused unless a document may say all this."""
        names = tuple(sorted({fleet.require_name("VM", name) for name in self.resources}, key=fleet.natural_key))
        if not names:
            raise errors.RefusedError("an event names at least one VM: give its resources")
        for what, span in (("notice", self.notice), ("takes", self.takes)):
            if span is not None and span < timedelta(0):
                raise errors.RefusedError(f"{what} cannot be negative: give a duration such as 15m")
        if not isinstance(self.description, str | None):
            raise errors.RefusedError(f"a description is text, not {self.description!r}")
        if self.duration is not None and self.duration < -1:
            raise errors.RefusedError("a duration is a number of seconds, or -1 where it is unknown")
        return names

    @property
    def ahead(self) -> timedelta:
        """From the announcement to NotBefore."""
        usual = DEGRADED_NOTICE if self.kind is Kind.DEGRADED_HARDWARE else self.kind.traits.minimum_notice
        return usual if self.notice is None else self.notice


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
        new_id: Callable[[], str] = new_id,
    ) -> None:
        """Incarnations go on from those of the simulation that came before (`after`)."""
        self.timing = timing
        self.entries: deque[Entry] = deque(maxlen=ENTRIES)
        self.publisher: Publisher = publisher or NullPublisher()
        self._new_id = new_id
        self._draft = Draft(World(), now=now, timing=timing, new_id=new_id)
        self._due: list[tuple[datetime, str]] = []
        self._takes: dict[str, timedelta] = {}
        self._announced = 0
        self._last_created = now - TICK
        self._started: dict[str, Operation] = {}
        self._held: dict[str, Operation] = {}
        """Operations whose time has come but that others block."""
        self._tried: set[str] | None = None
        """Of the held ones, those that were tried since something was released; None: nothing was."""
        self._forget_at = now
        self._members_changed = False
        self._past: dict[str, Event] = {}
        """Events that ended so long ago that nobody can approve them any more."""
        membership.add_group(
            self._draft, GROUP, kind, Policy(listening=listens, terminate_notice=fleet.TERMINATE_NOTICE_MIN)
        )
        if after is not None:
            incarnation = after.scope.incarnation + bool(after.live)
            self._draft.put_scope(replace(self.scope, tag=after.scope.tag, incarnation=incarnation))
        self._publish()

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
    def recent(self) -> list[Event]:
        """Events that are live or ended not long ago, oldest first."""
        return documents.in_order(self._draft.world.events.values())

    @property
    def events(self) -> list[Event]:
        """All events since the start, oldest first."""
        return documents.in_order((*self._past.values(), *self._draft.world.events.values()))

    def event(self, event_id: str) -> Event:
        return self._past.get(event_id.upper()) or self._draft.event(event_id)

    def started_at(self, event: Event) -> datetime | None:
        """None: it has not started, or that is long ago."""
        operation = self._draft.world.operations.get(event.operation)
        return None if operation is None else operation.started_at

    def takes(self, event: Event) -> timedelta:
        """How long a live event is Started, or will be."""
        return self._takes[event.operation]

    def explain(self, event_id: str, now: datetime) -> Explanation:
        """Why it waits, in the words of the service."""
        event = self.event(event_id)
        if not event.status.live:
            return explanations.of_ended("event", event)
        self._draft.now = now
        operation = self._draft.operation(event.operation)
        self._prepare(operation)
        found = explanations.explain_event(self._draft, event, NO_GRACE)
        if operation.started_at is None:
            return found
        return replace(found, until=operation.started_at + self._takes[operation.id])

    @property
    def due(self) -> datetime | None:
        """When `tick` has something to do."""
        return None if self.next_operation is None else self._due[0][0]

    @property
    def next_operation(self) -> Operation | None:
        """The operation that `tick` has something to do for next, at its `due_at`."""
        while self._due:
            at, key = self._due[0]
            operation = self._draft.world.operations.get(key)
            if operation is not None and operation.due_at == at:
                return operation
            heapq.heappop(self._due)
        return None

    def publication(self) -> Publication:
        return publication.of(self.scope, self.vms, self.live)

    # Commands

    def add_vm(self, name: str, now: datetime, *, update_domain: int = 0) -> None:
        """A VM that exists already must be as described."""
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
        self._publish()

    def announce(self, announcement: Announcement, now: datetime) -> Event:
        """VMs that do not exist yet are added, in the update domain of the others."""
        names = announcement.validated_names()
        domains = {vm.update_domain for vm in self.vms if vm.name in names}
        if len(domains) > 1:
            raise errors.RefusedError(
                f"{' and '.join(names)} are in different update domains: one event never names both, announce two"
            )
        for name in names:
            self.add_vm(name, now, update_domain=next(iter(domains), 0))
        try:
            not_before = whole_second_up(now + self.timing.shortened(announcement.ahead))
        except OverflowError:
            raise errors.RefusedError("that much notice is beyond the calendar: give less") from None
        # Each a moment after the one before, so that documents list them in the order of announcement.
        self._draft.now = self._last_created = max(now, self._last_created + TICK)
        self._announced += 1
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
        takes = TAKES[announcement.kind.traits.type] if announcement.takes is None else announcement.takes
        self._takes[operation.id] = self.timing.shortened(takes)
        self._prepare(operation)
        announcements.announce(self._draft, operation)
        (event,) = self._draft.events_of(operation.id)
        self._draft.put_event(
            replace(
                event,
                description=event.description if announcement.description is None else announcement.description,
                duration=event.duration if announcement.duration is None else announcement.duration,
            )
        )
        self.tick(now)
        return self.event(event.id)

    def sentence(self, entry: Entry) -> str | None:
        """What an entry says of its event; None: it is not about one."""
        if entry.event is None or not entry.action.startswith("event."):
            return None
        event = self.event(entry.event)
        return wording.sentence(replace(entry, data={"type": event.type, "resources": event.resources, **entry.data}))

    def approve(self, event_id: str, by: str, now: datetime) -> None:
        """As an operator would."""
        self._draft.now = now
        lifecycle.approve_as_operator(self._draft, self.event(event_id), by)
        self.tick(now)

    def cancel(self, event_id: str, now: datetime) -> None:
        self._draft.now = now
        lifecycle.cancel(self._draft, self._draft.operation(self.event(event_id).operation))
        self.tick(now)

    def approve_as_guests(
        self, approvals: Sequence[StartRequests], now: datetime
    ) -> list[errors.ForenoticeError | None]:
        self._draft.now = now
        results: list[errors.ForenoticeError | None] = []
        for approval in approvals:
            self._draft.by = f"vm:{approval.vm}"
            try:
                lifecycle.approve_as_guest(self._draft, approval)
                results.append(None)
            except errors.ForenoticeError as refusal:
                results.append(refusal)
        self._draft.by = ""
        self.tick(now)
        return results

    def record_poll(self, at: datetime, now: datetime) -> None:
        self._draft.now = now
        lifecycle.record_poll(self._draft, KEY, at)
        self.tick(now)

    def tick(self, now: datetime) -> None:
        """Do whatever is due, each thing at its own moment; guests are shown the outcome."""
        self._publish()
        while (due := self.due) is not None and due <= now:
            self._draft.now = max(due, self._draft.now)
            taken = []
            while (operation := self.next_operation) is not None and self._due[0][0] <= self._draft.now:
                heapq.heappop(self._due)
                taken.append(operation)
            for operation in sorted(taken, key=_order):
                self._step(operation.id)
            self._apply()
        self._draft.now = now
        self._publish()
        self._forget()

    # How

    def _step(self, operation_id: str) -> None:
        """The operation is read anew: an earlier step may have ended it."""
        draft = self._draft
        operation = draft.operation(operation_id)
        self._prepare(operation)
        if operation.status is Status.SCHEDULED:
            lifecycle.start_or_hold(draft, operation, NO_GRACE)
            operation = draft.operation(operation_id)
        while operation.status is Status.STARTED and operation.due_at is not None and operation.due_at <= draft.now:
            vms = [draft.vm(name) for name in operation.vms]
            task = driver_calls.advance(draft, operation, PROCESS, draft.now + CLAIM)
            if task is not None:
                done_at = task.started_at + self._takes[operation_id]
                finished = Finished(done=task.vms, failures={})
                outcome = NotYet(again_at=done_at) if draft.now < done_at else finished
                driver_calls.report(draft, draft.operation(operation_id), PROCESS, task.attempt, outcome)
            for vm in vms:
                # An evicted or deleted VM comes back at once, so that it can poll on.
                if vm.name not in draft.world.vms:
                    draft.put_vm(vm)
            operation = draft.operation(operation_id)

    def _prepare(self, operation: Operation) -> None:
        """Give each VM a second host to move to, and make it a spot VM if it is evicted and not if it is deleted."""
        if operation.kind in (Kind.EVICTION, Kind.DELETION) and operation.status is Status.SCHEDULED:
            for name in operation.vms:
                vm = self._draft.vm(name)
                if vm.spot != (operation.kind is Kind.EVICTION):
                    self._draft.put_vm(replace(vm, spot=not vm.spot))
        if operation.kind.traits.moves and operation.status.live:
            self._draft.world.occupancy = dict.fromkeys(_hosts(operation.vms[0]), 0)

    def _apply(self) -> None:
        """Take in what was decided, and retry held operations that may start now."""
        self._take_in(self._draft.changes(shown=False))
        if self._tried is None:
            return
        chosen = self._startable(self._tried)
        self._tried.update(operation.id for operation in chosen)
        for operation in chosen:
            self._draft.put_operation(replace(operation, due_at=self._draft.now))
            heapq.heappush(self._due, (self._draft.now, operation.id))
        if not chosen:
            self._tried = None

    def _startable(self, tried: set[str]) -> list[Operation]:
        """Held operations that no VM and no update domain obviously blocks; core decides. Trying all would be slow."""
        busy = {name for operation in self._started.values() for name in operation.vms}
        down = {self._domain(operation) for operation in self._started.values() if operation.excludes_others}
        chosen = []
        for operation in sorted(self._held.values(), key=_order):
            planned = operation.kind.traits.maintenance
            excluded = planned and operations.is_excluded(self._domain(operation), down)
            if operation.id not in tried and not excluded and busy.isdisjoint(operation.vms):
                chosen.append(operation)
                busy.update(operation.vms)
                if planned:
                    down.add(self._domain(operation))
        return chosen

    def _domain(self, operation: Operation) -> int:
        return self._draft.vm(operation.vms[0]).update_domain

    def _publish(self) -> None:
        self._apply()
        changes = self._draft.changes()
        self._take_in(changes)
        if self._members_changed:
            self._members_changed = False
            self.publisher.scopes([self.publication()])
        if changes.documents:
            self.publisher.documents(changes.documents)

    def _take_in(self, changes: Changes) -> None:
        self.entries.extend(changes.entries)
        self._members_changed |= bool(changes.members)
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
            # Held operations are retried when something ends; only an earlier deletion also lets go by its time.
            if operation.due_at is not None and (key not in self._held or operation.kind is Kind.DELETION):
                heapq.heappush(self._due, (operation.due_at, key))

    def _forget(self) -> None:
        world, now = self._draft.world, self._draft.now
        if len(world.operations) - len(self._takes) < REMEMBERED or now < self._forget_at:
            return
        self._forget_at = now + ENDED_APPROVABLE / 4
        kept = {
            key: operation
            for key, operation in world.operations.items()
            if operation.ended_at is None or now - operation.ended_at <= ENDED_APPROVABLE
        }
        events = {key: event for key, event in world.events.items() if event.operation in kept}
        self._past |= {key: event for key, event in world.events.items() if key not in events}
        world = replace(world, operations=kept, events=events)
        self._draft = Draft(world, now=now, timing=self.timing, new_id=self._new_id)


def _order(operation: Operation) -> tuple[datetime, datetime, str]:
    return operation.not_before, operation.created_at, operation.id


def _hosts(vm: str) -> tuple[str, str]:
    return f"host-of-{vm}", f"spare-of-{vm}"
