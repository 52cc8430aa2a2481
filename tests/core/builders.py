"""A small site in memory: it loads and applies as the store does, and watches the invariants over every transaction."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from tests.core.invariants import RolloutWatch, Watch

from forenotice.core import (
    announcements,
    driver_calls,
    explanations,
    lifecycle,
    membership,
    rollout_plan,
    rollout_progress,
    rollouts,
)
from forenotice.core.blockers import BlockerKind, host_blockers
from forenotice.core.draft import NO_LIMITS, Changes, Draft, World
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.edges import KnownEdges
from forenotice.core.explanations import Explanation
from forenotice.core.fleet import Host, Listening, Policy, Scope, ScopeKind, Vm, group_key, standalone_key
from forenotice.core.journal import Entry
from forenotice.core.lifecycle import StartRequests
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Event, Kind, Operation, Source, Status
from forenotice.core.rollout_plan import Plan
from forenotice.core.rollout_progress import GateCheck
from forenotice.core.rollouts import (
    GateResult,
    Options,
    Rollout,
    RolloutHost,
    RolloutHostStatus,
    RolloutSpec,
    RolloutStatus,
)
from forenotice.core.timing import Timing

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
CLAIM = timedelta(seconds=15)
ALWAYS = Policy(listening=Listening.ALWAYS)
NOTICE = 15 * MINUTE
UPDATE = timedelta(seconds=9)
Gate = Callable[[GateCheck], bool]


def always_green(_: GateCheck) -> bool:
    return True


CANDIDATES = 2
"""Hosts whose wave it is that are looked at together: few, so that there are pages."""


class Site:
    """Each method that changes something is one transaction."""

    def __init__(self, *, timing: Timing | None = None, speed: float = 1.0) -> None:
        self.now = NOW
        self.timing = timing or Timing(speed=speed)
        self.expiry_from = NOW
        self.limits = NO_LIMITS
        self.shown: dict[str, datetime | None] = {}
        """By host, up to when its edge has shown the journal."""
        self.edges = KnownEdges(shown=self.shown)
        self.lost: dict[str, datetime] = {}
        """By host, since when its edge is lost."""
        self.state = World()
        self.rollout_hosts: dict[tuple[str, str], RolloutHost] = {}
        self.journal: list[Entry] = []
        self.watch = Watch(self.timing)
        self.watch_rollouts = RolloutWatch(self.timing)
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:08x}-feed-4abc-8def-{self._ids:012x}"

    # Transactions

    @contextmanager
    def transaction(self, *, by: str = "", allowance: timedelta = timedelta(0), **wanted: Any) -> Iterator[Draft]:
        """What the block decides is kept, unless it raises."""
        world = self.load(**wanted)
        draft = Draft(
            world,
            now=self.now,
            timing=self.timing,
            new_id=self.new_id,
            by=by,
            allowance=allowance,
            limits=self.limits,
            edges=self.edges,
        )
        yield draft
        self.keep(draft)

    def look(self, **wanted: Any) -> Draft:
        """A draft whose decisions are not kept."""
        return Draft(self.load(**wanted), now=self.now, timing=self.timing, new_id=self.new_id, edges=self.edges)

    def keep(self, draft: Draft) -> Changes:
        changes = draft.changes()
        before = _copy(self.state)
        _put(self.state.hosts, changes.hosts)
        _put(self.state.vms, changes.vms)
        _put(self.state.scopes, changes.scopes)
        _put(self.state.operations, changes.operations)
        _put(self.state.events, changes.events)
        _put(self.state.rollouts, changes.rollouts)
        _put(self.state.drift, changes.drift)
        gone = {*(name for name, vm in changes.vms.items() if vm is None)}
        for key in [key for key in self.state.drift if key[1] in gone]:
            del self.state.drift[key]
        self.rollout_hosts.update(changes.rollout_hosts)
        self.journal.extend(changes.entries)
        self._wake(changes)
        self._note_unheard()
        self.watch.observe(before, self.state, changes, self.edges, now=self.now, expiry_from=self.expiry_from)
        self.watch_rollouts.observe(before, self.state, changes, self.rollout_hosts, now=self.now)
        return changes

    def _wake(self, changes: Changes) -> None:
        for operation in list(self.state.operations.values()):
            scopes = {event.scope for event in self.events(operation.id) if event.status.live}
            woken = operation.status is Status.SCHEDULED and scopes & set(changes.woken)
            on_host = {vm.scope for vm in self.state.vms.values() if vm.host == operation.host}
            replanned = operation.status is Status.PLANNED and on_host & set(changes.replanned)
            if replanned or (operation.held and (changes.room_made or woken)):
                self.state.operations[operation.id] = replace(operation, due_at=self.now)
        for rollout in list(self.state.rollouts.values()):
            asleep = rollout.opened_at is not None and rollout.due_at is not None and rollout.due_at > self.now
            if changes.woken and asleep:
                self.state.rollouts[rollout.id] = replace(rollout, due_at=self.now)

    def load(
        self,
        *,
        hosts: Collection[str] = (),
        vms: Collection[str] = (),
        scopes: Collection[str] = (),
        operations: Collection[str] = (),
        events: Collection[str] = (),
        addresses: Collection[str] = (),
        rollouts: Collection[str] = (),
        targets: bool = False,
        members: bool = False,
        ended_since: datetime | None = None,
        everything: bool = False,
    ) -> World:
        """The part of the state that the store's contract promises for these names, and not more."""
        state = self.state
        owners = {identity: vm.name for vm in state.vms.values() for identity in vm.known_by}
        if everything:
            live = _pick(state.operations, {o.id for o in state.operations.values() if o.status.live})
            told = {e.id for e in state.events.values() if e.operation in live}
            running = _pick(state.rollouts, {r.id for r in state.rollouts.values() if r.status.live})
            told_of = _pick(state.events, told)
            return replace(_copy(state), operations=live, events=told_of, addresses=owners, rollouts=running)
        owned = {address: owners[address] for address in addresses if address in owners}
        known_vms = {*vms, *owned.values()} & state.vms.keys()
        known = {state.events[e.upper()].operation for e in events if e.upper() in state.events}
        known |= set(operations) & state.operations.keys()
        near = {*hosts, *(state.vms[v].host for v in vms if v in state.vms), *(state.operations[o].host for o in known)}
        near |= {target for o in known for target in state.operations[o].targets.values()}
        known |= {o.id for o in state.operations.values() if o.status.live and o.host in near}
        known_vms |= {v.name for v in state.vms.values() if v.host in near}
        told = {e.id for e in state.events.values() if e.operation in known}
        keys = {*scopes, *(state.vms[v].scope for v in known_vms), *(state.events[e].scope for e in told)}
        for event in state.events.values():
            recent = ended_since is not None and event.ended_at is not None and event.ended_at >= ended_since
            if event.scope in keys and (event.status.live or recent):
                known.add(event.operation)
        told = {e.id for e in state.events.values() if e.operation in known}
        if members or targets:
            known_vms |= {v.name for v in state.vms.values() if v.scope in keys and v.group is not None}
        occupancy: dict[str, int] = {}
        awaiting: set[str] = set()
        used: dict[str, float] = {}
        incoming: dict[str, tuple[str, float | None]] = {}
        if targets:
            announced = [o for o in self.live() if o.status is not Status.PLANNED]
            busy = {o.host for o in announced if o.kind.traits.keeps_others_away}
            closed = busy | state.lost_edges
            open_hosts = [h.name for h in state.hosts.values() if not h.cordoned and h.name not in closed]
            occupancy = {name: sum(vm.host == name for vm in state.vms.values()) for name in open_hosts}
            limited = [name for name in open_hosts if state.hosts[name].capacity is not None]
            used = {
                name: sum(1 if vm.size is None else vm.size for vm in state.vms.values() if vm.host == name)
                for name in limited
            }
            incoming = {
                name: (host, state.vms[name].size)
                for o in self.live()
                if o.status is Status.STARTED
                for name, host in o.targets.items()
                if name not in o.done and state.hosts[host].capacity is not None
            }
            awaiting = {o.host for o in self.live() if o.kind.traits.maintenance and o.kind.traits.moves}
            awaiting |= {o.host for o in self.live() if o.status is Status.PLANNED}
            awaiting |= {host.host for host in self.rollout_hosts.values() if host.status is RolloutHostStatus.WAITING}
        parts_of = {rollout for o in known if (rollout := state.operations[o].rollout)}
        budgeted = [key for key in keys & state.scopes.keys() if state.scopes[key].policy.has_budget]
        return World(
            hosts=_pick(state.hosts, near | occupancy.keys()),
            vms=_pick(state.vms, known_vms),
            scopes=_pick(state.scopes, keys),
            operations=_pick(state.operations, known),
            events=_pick(state.events, told),
            occupancy=occupancy,
            lost_edges=set(state.lost_edges) if targets else set(),
            awaiting=awaiting,
            used=used,
            incoming=incoming,
            addresses=owned,
            asked_by=Counter(o.by for o in self.live() if o.kind.traits.source is Source.USER),
            rollouts=_pick(state.rollouts, {*rollouts, *parts_of}),
            sizes={key: sum(vm.scope == key for vm in state.vms.values()) for key in budgeted},
        )

    def load_to_approve(self, scopes: Collection[str], vms: Collection[str], ended_since: datetime) -> World:
        """Less than `load`, because a guest waits for it: other scopes' events are not there."""
        told, awaited = {}, set()
        for event in self.state.events.values():
            if event.scope in scopes and (event.ended_at is None or event.ended_at >= ended_since):
                told[event.id] = event
            elif event.scope not in scopes and event.status.live and not event.approved:
                awaited.add(event.operation)
        operations = _pick(self.state.operations, {event.operation for event in told.values()})
        asking = _pick(self.state.vms, set(vms))
        return World(vms=asking, events=told, operations=operations, awaited_elsewhere=awaited & operations.keys())

    # The fleet

    def add_host(self, name: str, **described: Any) -> Host:
        with self.transaction(hosts=[name]) as draft:
            return membership.add_host(draft, Host(name=name, **described))

    def set_capacity(self, name: str, capacity: float | None) -> None:
        with self.transaction(hosts=[name]) as draft:
            membership.set_host(draft, replace(draft.host(name), capacity=capacity))

    def add_hosts(self, names: str) -> None:
        for name in names:
            self.add_host(name)

    def cordon(self, name: str, cordoned: bool = True) -> None:
        with self.transaction(hosts=[name]) as draft:
            membership.set_host(draft, replace(draft.host(name), cordoned=cordoned))

    def remove_host(self, name: str) -> None:
        moving = [o.id for o in self.state.operations.values() if o.status.live and name in o.targets.values()]
        with self.transaction(hosts=[name], operations=moving) as draft:
            membership.remove_host(draft, name)
        self.forget_edge(name)

    def add_group(
        self, name: str, kind: ScopeKind = ScopeKind.AVAILABILITY_SET, policy: Policy = ALWAYS, **changes: Any
    ) -> Scope:
        with self.transaction(scopes=[group_key(name)]) as draft:
            return membership.add_group(draft, name, kind, replace(policy, **changes))

    def remove_group(self, name: str) -> None:
        with self.transaction(scopes=[group_key(name)], members=True) as draft:
            membership.remove_group(draft, name)

    def set_policy(self, key: str, **changes: Any) -> None:
        with self.transaction(scopes=[key]) as draft:
            membership.set_policy(draft, key, replace(draft.scope(key).policy, **changes))

    def add_vm(self, name: str, host: str, *, policy: Policy = ALWAYS, **facts: Any) -> Vm:
        """A group has its own policy; a standalone VM gets this one."""
        spec = VmSpec(name=name, host=host, **facts)
        with self.transaction(
            vms=[name],
            hosts=[host],
            operations=self.moving_to([host]),
            scopes=[standalone_key(name), *([group_key(spec.group)] if spec.group else [])],
            addresses=[*spec.addresses, *([spec.vm_id.lower()] if spec.vm_id else [])],
            members=True,
        ) as draft:
            vm = membership.add_vm(draft, spec)
            if vm.group is None:
                membership.set_policy(draft, vm.scope, policy)
            return vm

    def set_vm(self, name: str, /, **changes: Any) -> Vm:
        group = changes.get("group")
        with self.transaction(
            vms=[name],
            hosts=[changes["host"]] if "host" in changes else [],
            operations=self.moving_to([changes["host"]]) if "host" in changes else [],
            scopes=[standalone_key(name), *([group_key(group)] if group else [])],
            addresses=changes.get("addresses", ()),
            members=True,
        ) as draft:
            return membership.set_vm(draft, name, changes)

    def remove_vm(self, name: str) -> None:
        with self.transaction(vms=[name]) as draft:
            membership.remove_vm(draft, name)

    # Edges

    def beat(self, host: str, shown: datetime | None = None) -> None:
        """Its edge has shown the journal up to then, or up to now; what is held there is looked at."""
        self.shown[host] = shown or self.now
        for operation in self.live():
            if operation.host == host and operation.held:
                self.state.operations[operation.id] = replace(operation, due_at=self.now)

    def lose(self, host: str) -> None:
        self.lost.setdefault(host, self.now)
        self._note_unheard()

    def forget_edge(self, host: str) -> None:
        self.shown.pop(host, None)
        self.find(host)

    def find(self, host: str) -> None:
        if self.lost.pop(host, None):
            self._note_unheard()
            self._wake(Changes(room_made=True))

    def _note_unheard(self) -> None:
        """As the store tells with each scope."""
        self.state.lost_edges = set(self.lost)
        for key, scope in self.state.scopes.items():
            lost = [at for vm in self.state.vms.values() if vm.scope == key and (at := self.lost.get(vm.host))]
            if scope.unheard_since != (since := min(lost, default=None)):
                self.state.scopes[key] = replace(scope, unheard_since=since)

    # Operations

    def schedule(
        self,
        kind: Kind,
        *names: str,
        notice: timedelta | None = None,
        duration: int | None = None,
        allowance: timedelta = timedelta(0),
        by: str = "op",
    ) -> Operation:
        """One operation for each name, all in one transaction; gives the first."""
        wanted: dict[str, Any] = {"hosts" if kind.traits.of_host else "vms": names, "targets": kind.traits.moves}
        if kind.traits.of_host:
            wanted["operations"] = self.moving_to(names)
        elif kind.traits.source is Source.USER:
            scopes = {self.state.vms[name].scope for name in names if name in self.state.vms}
            wanted["hosts"] = {vm.host for vm in self.state.vms.values() if vm.scope in scopes}
        with self.transaction(by=by, allowance=allowance, **wanted) as draft:
            spec = partial(announcements.OperationSpec, kind=kind, notice=notice, duration=duration)
            made = [announcements.schedule(draft, spec(name=name)) for name in names]
        return self.state.operations[made[0].id]

    def start(self, kind: Kind, name: str) -> Operation:
        """An operation that all approve, and that starts now."""
        operation = self.schedule(kind, name)
        self.approve_all(operation)
        self.tick()
        assert self.operation(operation).status is Status.STARTED
        return self.operation(operation)

    def approve(self, scope: str, *event_ids: str, by: str | None = None) -> Changes:
        """Some VM of the scope approves, unless it is said who."""
        by = by or next((vm.name for vm in self.state.vms.values() if vm.scope == scope), "nobody")
        world = self.load_to_approve([scope], [by], ended_since=self.now - HOUR)
        draft = Draft(world, now=self.now, timing=self.timing, new_id=self.new_id)
        lifecycle.approve_as_guest(draft, StartRequests(vm=by, scope=scope, event_ids=tuple(event_ids)))
        return self.keep(draft)

    def approve_as_operator(self, event_id: str, by: str = "operator") -> Changes:
        draft = self.look(events=[event_id])
        lifecycle.approve_as_operator(draft, draft.event(event_id), by)
        return self.keep(draft)

    def approve_all(self, operation: Operation) -> None:
        for event in self.events(operation.id):
            self.approve_as_operator(event.id)

    def hear(self, key: str) -> Changes:
        draft = self.look(scopes=[key])
        lifecycle.record_poll(draft, key, self.now)
        return self.keep(draft)

    def cancel(self, operation_id: str) -> None:
        with self.transaction(operations=[operation_id]) as draft:
            lifecycle.cancel(draft, draft.operation(operation_id))

    # Time

    def wait(self, duration: timedelta) -> None:
        self.now += duration

    def jump(self, by: timedelta) -> None:
        """The clock jumps ahead, which is neither notice nor silence; as the service accounts for it."""
        for operation in self.live():
            known = self.state.operations
            if operation.status is Status.SCHEDULED and operation.expires_at > self.now:
                known[operation.id] = replace(operation, clock_jumped=operation.clock_jumped + by)
            elif operation.claimed_until is not None and operation.claimed_until > self.now:
                known[operation.id] = replace(operation, claimed_until=operation.claimed_until + by)
        for key, scope in self.state.scopes.items():
            if scope.last_heard is not None:
                self.state.scopes[key] = replace(scope, last_heard=scope.last_heard + by)
        self.now += by
        self.expiry_from = self.now + self.timing.startup_grace

    def due(self) -> list[str]:
        def turn(operation: Operation) -> tuple[datetime, datetime, str]:
            return operation.not_before, operation.created_at, operation.id

        return [operation.id for operation in sorted(self.live(), key=turn) if _is_due(operation, self.now)]

    def tick(self, reports: Mapping[str, Outcome] | None = None, *, process: str = "p") -> list[Task]:
        """In one transaction: take drivers' answers, start what may start, and say what drivers must do next."""
        reports = reports or {}
        turns = self.due() + [key for key in reports if key not in self.due()]
        arriving = self.moving_to([self.operation(key).host for key in turns])
        waits = any(driver_calls.waits_for_a_host(self.operation(key)) for key in turns)
        announced = [o.host for o in self.live() if waits and o.kind.traits.keeps_others_away]
        with self.transaction(operations=[*turns, *arriving], hosts=announced, targets=True) as draft:
            for key, outcome in reports.items():
                driver_calls.report(draft, draft.operation(key), process, draft.operation(key).attempt + 1, outcome)
            return [task for key in turns if (task := self._step(draft, key, process))]

    def _step(self, draft: Draft, key: str, process: str) -> Task | None:
        if _is_due(draft.operation(key), self.now) and draft.operation(key).status is Status.PLANNED:
            announcements.announce_in_time(draft, draft.operation(key))
            return None
        if _is_due(draft.operation(key), self.now) and draft.operation(key).status is Status.SCHEDULED:
            lifecycle.start_or_hold(draft, draft.operation(key), self.expiry_from)
        if _is_due(draft.operation(key), self.now) and draft.operation(key).status is Status.STARTED:
            return driver_calls.advance(draft, draft.operation(key), process, self.now + CLAIM)
        return None

    def report(self, operation_id: str, outcome: Outcome, *, process: str = "p", attempt: int | None = None) -> Changes:
        draft = self.look(operations=[operation_id], targets=True)
        operation = draft.operation(operation_id)
        driver_calls.report(draft, operation, process, operation.attempt + 1 if attempt is None else attempt, outcome)
        return self.keep(draft)

    def succeed(self, task: Task, *, process: str = "p") -> Changes:
        return self.report(task.operation, success(task), process=process)

    def fail(self, task: Task, why: str = "no answer", *, process: str = "p") -> Changes:
        return self.report(task.operation, failure(task, why), process=process)

    def run(self, duration: timedelta) -> None:
        """Let time pass, with drivers that succeed at once."""
        end = self.now + duration
        while True:
            tasks = self.tick()
            while tasks:
                tasks = self.tick({task.operation: success(task) for task in tasks})
            moments = [max(o.due_at or end, o.claimed_until or self.now) for o in self.live()]
            if min(moments, default=end) >= end:
                break
            self.now = max(self.now, min(moments))
        self.now = end
        self.tick()

    # What is

    def moving_to(self, hosts: Collection[str]) -> list[str]:
        return [each.id for each in self.live() if set(each.targets.values()) & set(hosts)]

    def live(self) -> list[Operation]:
        return [operation for operation in self.state.operations.values() if operation.status.live]

    def operation(self, known: Operation | str) -> Operation:
        return self.state.operations[known if isinstance(known, str) else known.id]

    def events(self, operation: Operation | str) -> list[Event]:
        key = operation if isinstance(operation, str) else operation.id
        return [event for event in self.state.events.values() if event.operation == key]

    def event(self, operation: Operation | str) -> Event:
        (event,) = self.events(operation)
        return event

    def listed(self, key: str) -> list[Event]:
        return [event for event in self.state.events.values() if event.scope == key and event.status.live]

    def scope(self, key: str) -> Scope:
        return self.state.scopes[key]

    def vm(self, name: str) -> Vm:
        return self.state.vms[name]

    def explain(self, event: Event) -> Explanation:
        draft = self.look(events=[event.id], targets=True)
        return explanations.explain_event(draft, draft.event(event.id), self.expiry_from)

    def actions(self, **about: str) -> list[str]:
        """What the journal tells of something."""
        return [e.action for e in self.journal if all(getattr(e, noun) == name for noun, name in about.items())]

    # Rollouts

    def plan(self, kind: Kind = Kind.HOST_UPDATE, hosts: str = "*", options: Options = Options()) -> Plan:  # noqa: B008
        return rollout_plan.plan(self.look(everything=True), RolloutSpec(kind=kind, hosts=hosts, options=options))

    def begin(self, kind: Kind = Kind.HOST_UPDATE, hosts: str = "*", options: Options = Options()) -> Rollout:  # noqa: B008
        spec = RolloutSpec(kind=kind, hosts=hosts, options=options)
        fleet = self.look(everything=True)
        rollout_plan.plan(fleet, spec)
        order = rollouts.assign_waves(fleet, rollouts.chosen_hosts(spec, fleet.world.hosts))
        with self.transaction(by="op") as draft:
            domains = {host: rollouts.update_domains(rollouts.parts(fleet, host)) for host in order}
            return rollout_progress.begin(draft, spec, order, domains)

    def pause(self, rollout: Rollout | str, why: str = "paused by op") -> None:
        key = self.rollout(rollout).id
        with self.transaction(rollouts=[key], operations=self.live_of(key)) as draft:
            rollout_progress.pause(draft, draft.rollout(key), why)

    def resume(self, rollout: Rollout | str, *, retry: bool = False) -> None:
        key = self.rollout(rollout).id
        with self.transaction(rollouts=[key], operations=self.live_of(key)) as draft:
            rollout_progress.resume(draft, draft.rollout(key))
        self._change_hosts(key, RolloutHostStatus.FAILED if retry else None, RolloutHostStatus.WAITING)
        self.watch_rollouts.forget_answers(key)

    def cancel_rollout(self, rollout: Rollout | str) -> None:
        key = self.rollout(rollout).id
        with self.transaction(rollouts=[key], operations=self.live_of(key)) as draft:
            rollout_progress.cancel(draft, draft.rollout(key))
        self._change_hosts(key, RolloutHostStatus.WAITING, RolloutHostStatus.SKIPPED)

    def _change_hosts(self, rollout: str, before: RolloutHostStatus | None, after: RolloutHostStatus) -> None:
        for each in self.hosts_of(rollout):
            if each.status is before:
                self.rollout_hosts[each.rollout, each.host] = replace(each, status=after, operation=None)

    def roll(self) -> list[GateCheck]:
        """The next step of every rollout that is due; gives the gates that must be asked."""
        return [asked for key in self.due_rollouts() if (asked := self.step_of(key))]

    def step_of(self, rollout: str) -> GateCheck | None:
        known = self.hosts_of(rollout)
        under_way = [each for each in known if each.status is RolloutHostStatus.UNDER_WAY]
        ended = [(each, self.operation(each.operation or "")) for each in under_way]
        ended = sorted((each for each in ended if not each[1].status.live), key=lambda each: str(each[1].ended_at))
        with self.transaction(rollouts=[rollout]) as draft:
            rollout_progress.settle(draft, rollout, ended)
            next_wave = min(
                (each.wave for each in known if each.status is RolloutHostStatus.WAITING),
                default=None,
            )
            busy = len(under_way) - len(ended)
            wave = rollout_progress.next_step(draft, rollout, busy, next_wave)
        return None if wave is None else self._take(rollout, wave, self.rollout(rollout).options.batch - busy)

    def _take(self, rollout: str, wave: int, free: int) -> GateCheck | None:
        most, taken, after = min(free, CANDIDATES), 0, ""
        while taken < most and (rollout_hosts := self.waiting(rollout, wave, after)[:CANDIDATES]):
            after = rollout_hosts[-1].host
            hosts = [each.host for each in rollout_hosts]
            with self.transaction(rollouts=[rollout], hosts=hosts, operations=self.moving_to(hosts)) as draft:
                found = rollout_progress.take(draft, rollout, rollout_hosts, most - taken)
            if isinstance(found, GateCheck):
                return found
            taken += found
            if self.rollout(rollout).status is not RolloutStatus.RUNNING:
                return None
        left = [each for each in self.hosts_of(rollout) if each.status is RolloutHostStatus.UNDER_WAY]
        wave_is_over = not left and not self.waiting(rollout, wave)
        if wave_is_over or taken == most < free:
            self.state.rollouts[rollout] = replace(self.rollout(rollout), due_at=self.now)
        return None

    def hear_gate(self, ask: GateCheck, green: bool = True, said: str = "ok") -> None:
        with self.transaction(rollouts=[ask.rollout]) as draft:
            rollout_progress.record_gate(
                draft, ask.rollout, ask.wave, GateResult(green=green, status=said, at=self.now)
            )
        self.watch_rollouts.answers[ask.rollout, ask.wave] = green

    def carry_on(
        self,
        *,
        until: datetime | None = None,
        gate: Gate = always_green,
        takes: timedelta = timedelta(0),
        most: int = 1000,
    ) -> int:
        """Let time pass until nothing is to come, with drivers that take so long and succeed; gives the steps."""
        for steps in range(most):
            self.settle_now(gate, takes)
            moment = self.next_moment()
            if moment is None or (until is not None and moment > until):
                self.now = max(self.now, until or self.now)
                return steps
            assert moment > self.now, "something is due now for ever"
            self.now = moment
        raise AssertionError("it goes on for ever")

    def settle_now(self, gate: Gate = always_green, takes: timedelta = timedelta(0)) -> None:
        """All that happens at this moment."""
        for _ in range(100):
            tasks = self.tick()
            while tasks:
                tasks = self.tick({task.operation: self._outcome(task, takes) for task in tasks})
            for ask in self.roll():
                self.hear_gate(ask, gate(ask))
            if not self.due() and not self.due_rollouts():
                return
        raise AssertionError("something is due now for ever")

    def _outcome(self, task: Task, takes: timedelta) -> Outcome:
        over_at = task.started_at + takes
        return success(task) if over_at <= self.now else NotYet(again_at=over_at)

    def next_moment(self) -> datetime | None:
        """When something is due of itself; what is looked at once a minute in any case is left for then."""
        rollouts = self.state.rollouts.values()
        moments = [max(o.due_at or self.now, o.claimed_until or self.now) for o in self.live() if not o.held]
        closed = [r for r in rollouts if r.opened_at is None]
        asked = [r for r in closed if r.gate_result or r.opens_at > self.now or not self.told_at(r)]
        moments += [r.due_at for r in asked if r.due_at is not None]
        moments += [moment for r in rollouts if r.due_at is not None for moment in self.told_at(r)]
        held = [o.due_at for o in self.live() if o.due_at is not None]
        held += [r.due_at for r in rollouts if r.due_at is not None]
        return min(moments or held, default=None)

    def told_at(self, rollout: Rollout) -> list[datetime]:
        """When guests of its next hosts are told, where windows put that off."""
        waiting = [each.host for each in self.waiting(rollout.id, rollout.wave)]
        draft = self.look(rollouts=[rollout.id], hosts=waiting)
        found = [each for host in waiting for each in host_blockers(draft, rollout, host)]
        return [each.until for each in found if each.kind is BlockerKind.ANNOUNCEMENT and each.until is not None]

    # What is known of rollouts

    def rollout(self, known: Rollout | str) -> Rollout:
        return self.state.rollouts[known if isinstance(known, str) else known.id]

    def due_rollouts(self) -> list[str]:
        def wave(rollout: Rollout) -> tuple[datetime, datetime]:
            return rollout.due_at or self.now, rollout.created_at

        known = sorted(self.state.rollouts.values(), key=wave)
        return [rollout.id for rollout in known if rollout.due_at is not None and rollout.due_at <= self.now]

    def hosts_of(self, rollout: Rollout | str) -> list[RolloutHost]:
        key = self.rollout(rollout).id
        return sorted(
            (each for each in self.rollout_hosts.values() if each.rollout == key),
            key=lambda each: each.host,
        )

    def rollout_host(self, rollout: Rollout | str, host: str) -> RolloutHost:
        return self.rollout_hosts[self.rollout(rollout).id, host]

    def waiting(self, rollout: str, wave: int, after: str = "") -> list[RolloutHost]:
        mine = self.hosts_of(rollout)
        return [s for s in mine if s.status is RolloutHostStatus.WAITING and s.wave == wave and s.host > after]

    def live_of(self, rollout: str) -> list[str]:
        return [operation.id for operation in self.live() if operation.rollout == rollout]

    def on(self, host: str) -> Operation:
        """The one that is live there."""
        (operation,) = [operation for operation in self.live() if operation.host == host]
        return operation

    def explain_rollout(self, rollout: Rollout | str) -> Explanation:
        known = self.rollout(rollout)
        live, waiting = self.live_of(known.id), self.waiting(known.id, known.wave)
        hosts = [each.host for each in waiting]
        draft = self.look(rollouts=[known.id], operations=live, hosts=hosts, targets=True)
        return explanations.explain_rollout(draft, known, live, waiting, self.expiry_from)

    def explain_operation(self, operation: Operation | str) -> Explanation:
        draft = self.look(operations=[self.operation(operation).id], targets=True)
        return explanations.explain_operation(draft, self.operation(operation), self.expiry_from)


def success(task: Task) -> Finished:
    return Finished(done=task.vms, failures={})


def failure(task: Task, why: str = "no answer") -> Finished:
    return Finished(failures=dict.fromkeys(task.vms, why))


def row(hosts: str = "abcd", **policy: Any) -> Site:
    """Availability set `web`: `web-0` on a, `web-1` on b, `web-2` on c, an update domain each; d is spare."""
    site = Site()
    site.add_hosts(hosts)
    site.add_group("web", **policy)
    for number, host in enumerate("abc"):
        site.add_vm(f"web-{number}", host, group="web", update_domain=number, fault_domain=number)
    return site


def _is_due(operation: Operation, now: datetime) -> bool:
    claimed = operation.claimed_until is not None and operation.claimed_until > now
    return operation.due_at is not None and operation.due_at <= now and not claimed


def _pick(things: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: thing for key, thing in things.items() if key in keys}


def _put(kept: dict[Any, Any], changed: Mapping[Any, Any]) -> None:
    for key, thing in changed.items():
        if thing is None:
            kept.pop(key, None)
        else:
            kept[key] = thing


def _copy(state: World) -> World:
    return World(
        hosts=dict(state.hosts),
        vms=dict(state.vms),
        scopes=dict(state.scopes),
        operations=dict(state.operations),
        events=dict(state.events),
        rollouts=dict(state.rollouts),
        drift=dict(state.drift),
        lost_edges=set(state.lost_edges),
    )


def is_nothing(changes: Changes) -> bool:
    fleet = changes.hosts or changes.vms or changes.scopes or changes.members or changes.drift
    return not (fleet or changes.operations or changes.events or changes.entries or changes.documents or changes.woken)
