"""Where a scenario is played: one group of VMs, its events and their lives, in memory, by the rules of core."""

import heapq
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from notbefore.core import approving, driving, ending, errors, fleet, listening, membership, scheduling, starting
from notbefore.core.approving import Approval
from notbefore.core.draft import Changes, Draft, World
from notbefore.core.driving import Finished, NotYet, Outcome, Task
from notbefore.core.fleet import Host, Listening, Policy, Scope, ScopeKind, Vm
from notbefore.core.journal import Entry
from notbefore.core.membership import VmSpec
from notbefore.core.operations import DEGRADED_NOTICE, Event, EventType, Kind, Operation, Status
from notbefore.core.timing import ENDED_APPROVABLE, Timing, whole_second_up
from notbefore.service.publishing import Members, Publisher

GROUP = "emulated"
KEY = fleet.group_key(GROUP)
NOBODY_WAITS = datetime.min.replace(tzinfo=UTC)
"""Here nothing is kept back after a start: guests have always been able to look."""
REMEMBERED = 512
"""Ended operations that are kept before those are forgotten that no approval can name any more."""
ENTRIES = 100_000
CLAIM = timedelta(seconds=15)
PROCESS = "emulator"

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


class Unheard:
    """A publisher for nobody: a rehearsal has no guests."""

    def documents(self, documents: Sequence[object]) -> None: ...

    def members(self, members: Sequence[Members]) -> None: ...

    def everything(self, members: Sequence[Members]) -> None: ...


class Stage:
    """Not thread-safe. Every `now` is at or after the one before."""

    def __init__(
        self,
        *,
        now: datetime,
        timing: Timing,
        publisher: Publisher | None = None,
        kind: ScopeKind = ScopeKind.AVAILABILITY_SET,
        listens: Listening = Listening.ALWAYS,
        after: "Stage | None" = None,
    ) -> None:
        """`after` another one, incarnations go on from where they were."""
        self.timing = timing
        self.entries: deque[Entry] = deque(maxlen=ENTRIES)
        self._publisher = publisher or Unheard()
        self._draft = self._new_draft(World(), now)
        self._due: list[tuple[datetime, str]] = []
        self._takes: dict[str, timedelta] = {}
        """Of live operations."""
        self._announced = 0
        self._held: set[str] = set()
        self._ended = False
        """Whether something has ended since held operations were looked at."""
        self._regrouped = False
        """Whether VMs or policy have changed since they were published."""
        self._past: dict[str, Event] = {}
        """What is over for so long that nobody can approve it any more."""
        membership.add_group(
            self._draft, GROUP, kind, Policy(listening=listens, terminate_notice=fleet.TERMINATE_NOTICE_MIN)
        )
        if after is not None:
            before = after.scope
            self._draft.put_scope(replace(self.scope, tag=before.tag, incarnation=before.incarnation + 1))
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
        return sorted(self._draft.live_events_in(KEY), key=lambda event: (event.created_at, event.id))

    @property
    def events(self) -> list[Event]:
        """All that there ever were, oldest first."""
        found = (*self._past.values(), *self._draft.world.events.values())
        return sorted(found, key=lambda event: (event.created_at, event.id))

    def event(self, event_id: str) -> Event:
        return self._past.get(event_id.upper()) or self._draft.event(event_id)

    @property
    def due(self) -> datetime | None:
        """When tick has something to do."""
        while self._due:
            at, key = self._due[0]
            operation = self._draft.world.operations.get(key)
            if operation is not None and operation.due_at == at:
                return at
            heapq.heappop(self._due)
        return None

    def members(self) -> Members:
        return Members(key=KEY, scope=self.scope, vms=tuple(self.vms), events=tuple(self.live))

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
        kind = announcement.kind
        names = tuple(sorted(dict.fromkeys(announcement.resources)))
        if not names:
            raise errors.RefusedError("an event names at least one VM: give its resources")
        domain = self._one_domain(names)
        for name in names:
            self.add_vm(name, now, update_domain=domain)
        self._draft.now = now
        self._announced += 1
        operation = Operation(
            # By number, so that those of one moment have their turn in the order in which they were announced.
            id=f"operation-{self._announced:06}",
            kind=kind,
            host=self._draft.vm(names[0]).host,
            vms=names,
            status=Status.SCHEDULED,
            created_at=now,
            not_before=self._not_before(announcement, now),
        )
        takes = TAKES[kind.traits.type] if announcement.takes is None else announcement.takes
        self._takes[operation.id] = self.timing.shortened(takes)
        self._prepare(operation)
        scheduling.announce(self._draft, operation)
        (event,) = self._draft.events_of(operation.id)
        self._draft.put_event(_worded(event, announcement))
        self._keep()
        self.tick(now)
        return self.event(event.id)

    def approve(self, event_id: str, by: str, now: datetime) -> None:
        """As an operator would."""
        self._draft.now = now
        approving.approve_as_operator(self._draft, self.event(event_id), by)
        self._keep()
        self.tick(now)

    def cancel(self, event_id: str, now: datetime) -> None:
        self._draft.now = now
        ending.cancel(self._draft, self._draft.operation(self.event(event_id).operation))
        self._keep()
        self.tick(now)

    def approve_as_guests(self, approvals: Sequence[Approval], now: datetime) -> list[errors.NotbeforeError | None]:
        """One answer for each; None is yes."""
        self._draft.now = now
        answers: list[errors.NotbeforeError | None] = []
        for approval in approvals:
            self._draft.by = f"vm:{approval.vm}"
            try:
                approving.approve_as_guest(self._draft, approval)
                answers.append(None)
            except errors.NotbeforeError as refusal:
                answers.append(refusal)
        self._draft.by = ""
        self._keep()
        self.tick(now)
        return answers

    def hear(self, at: datetime, now: datetime) -> None:
        self._draft.now = now
        listening.hear(self._draft, KEY, at)
        self._keep()
        self.tick(now)

    def tick(self, now: datetime) -> None:
        """Do whatever is due, each thing at its own moment; guests are shown the outcome."""
        while (due := self.due) is not None and due <= now:
            self._draft.now = max(due, self._draft.now)
            turns = sorted(self._take_due(), key=lambda each: (each.not_before, each.created_at, each.id))
            for operation in turns:
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
        kind = announcement.kind
        usual = DEGRADED_NOTICE if kind is Kind.DEGRADED_HARDWARE else kind.traits.notice
        notice = usual if announcement.notice is None else announcement.notice
        return whole_second_up(now + self.timing.shortened(notice))

    def _take_due(self) -> Iterator[Operation]:
        while (due := self.due) is not None and due <= self._draft.now:
            yield self._draft.operation(heapq.heappop(self._due)[1])

    def _step(self, operation_id: str) -> None:
        """Looked at anew: an earlier step may have ended it."""
        draft = self._draft
        operation = draft.operation(operation_id)
        self._prepare(operation)
        if operation.status is Status.SCHEDULED:
            starting.start_or_hold(draft, operation, NOBODY_WAITS)
            operation = draft.operation(operation_id)
        while operation.status is Status.STARTED and operation.due_at is not None and operation.due_at <= draft.now:
            acted_on = [draft.vm(name) for name in operation.vms]
            task = driving.advance(draft, operation, PROCESS, draft.now + CLAIM)
            if task is not None:
                driving.report(draft, draft.operation(operation_id), PROCESS, task.attempt, self._carry_out(task))
            for vm in acted_on:
                # An evicted or deleted VM comes back at once: whoever tests wants to ask on.
                if vm.name not in draft.world.vms:
                    draft.put_vm(vm)
            operation = draft.operation(operation_id)

    def _prepare(self, operation: Operation) -> None:
        """What moves has a place to go: each VM brings two hosts along."""
        if operation.kind.traits.moves and operation.status.live:
            self._draft.world.occupancy = dict.fromkeys(_hosts(operation.vms[0]), 0)

    def _carry_out(self, task: Task) -> Outcome:
        done_at = task.started_at + self._takes[task.operation]
        return NotYet(again_at=done_at) if self._draft.now < done_at else Finished(done=task.vms, failures={})

    def _settle(self) -> None:
        """See when to look at what was decided; when something ends, what was held because of it may start."""
        self._note(self._draft.changes(shown=False))
        if self._ended:
            self._ended = False
            for operation_id in self._held:
                operation = replace(self._draft.operation(operation_id), due_at=self._draft.now)
                self._draft.put_operation(operation)
                self._queue(operation)

    def _keep(self) -> None:
        self._settle()
        changes = self._draft.changes()
        self._note(changes)
        if self._regrouped:
            self._regrouped = False
            self._publisher.members([self.members()])
        if changes.documents:
            self._publisher.documents(changes.documents)

    def _note(self, changes: Changes) -> None:
        self.entries.extend(changes.entries)
        self._regrouped |= bool(changes.members)
        for operation in changes.operations.values():
            self._queue(operation)
            self._held.discard(operation.id)
            if operation.held:
                self._held.add(operation.id)
            elif not operation.status.live:
                self._takes.pop(operation.id, None)
                self._ended = True

    def _queue(self, operation: Operation) -> None:
        if operation.due_at is not None:
            heapq.heappush(self._due, (operation.due_at, operation.id))

    def _forget(self) -> None:
        world = self._draft.world
        if len(world.operations) - len(self._takes) < REMEMBERED:
            return
        kept = {
            key: operation
            for key, operation in world.operations.items()
            if operation.ended_at is None or self._draft.now - operation.ended_at <= ENDED_APPROVABLE
        }
        events = {key: event for key, event in world.events.items() if event.operation in kept}
        self._past |= {key: event for key, event in world.events.items() if key not in events}
        self._draft = self._new_draft(replace(world, operations=kept, events=events), self._draft.now)


def _hosts(vm: str) -> tuple[str, str]:
    return f"host-of-{vm}", f"spare-of-{vm}"


def _worded(event: Event, announcement: Announcement) -> Event:
    return replace(
        event,
        description=event.description if announcement.description is None else announcement.description,
        duration=event.duration if announcement.duration is None else announcement.duration,
    )
