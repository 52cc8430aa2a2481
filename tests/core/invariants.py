"""What always holds (DESIGN.md), checked on every transaction with the record of the whole run."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import chain, groupby

from forenotice.core import documents, windows
from forenotice.core.draft import Changes, World
from forenotice.core.edges import KnownEdges
from forenotice.core.fleet import Policy
from forenotice.core.operations import Event, EventType, Kind, Operation, Status
from forenotice.core.rollouts import Rollout, RolloutHost, RolloutHostStatus, RolloutStatus
from forenotice.core.timing import Timing
from forenotice.core.windows import Window

# As the protocol has them (docs/dev/rules.md), not as the code has them.
NOTICE = {
    EventType.FREEZE: timedelta(minutes=15),
    EventType.REBOOT: timedelta(minutes=15),
    EventType.REDEPLOY: timedelta(minutes=10),
    EventType.PREEMPT: timedelta(seconds=30),
    EventType.TERMINATE: timedelta(minutes=5),
}
PLANNED = {Kind.HOST_UPDATE, Kind.HOST_REBOOT, Kind.LIVE_MIGRATION, Kind.DEGRADED_HARDWARE}
MOVING = {Kind.REDEPLOY, Kind.LIVE_MIGRATION, Kind.DEGRADED_HARDWARE, Kind.HARDWARE_FAILURE}
USERS = {Kind.RESTART, Kind.REDEPLOY, Kind.DELETION}
FORWARD = {
    Status.PLANNED: {Status.PLANNED, Status.SCHEDULED, Status.CANCELED},
    Status.SCHEDULED: {Status.SCHEDULED, Status.STARTED, Status.CANCELED},
    Status.STARTED: {Status.STARTED, Status.COMPLETED, Status.FAILED},
    Status.COMPLETED: {Status.COMPLETED},
    Status.CANCELED: {Status.CANCELED},
    Status.FAILED: {Status.FAILED},
}
FIXED = ("operation", "scope", "type", "source", "description", "duration", "created_at", "update_domain")
ALLOWANCE = timedelta(seconds=62)
"""A minute, lest a short window be missed, and what is rounded up."""
ENDS = ("completed", "canceled", "failed")


class Watch:
    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.said: Counter[tuple[str, str]] = Counter()
        """How often the journal said what about which event or operation."""
        self.ids: set[str] = set()
        self.tags: set[str] = set()
        self.broken = False

    def observe(
        self,
        before: World,
        after: World,
        changes: Changes,
        edges: KnownEdges,
        *,
        now: datetime,
        expiry_from: datetime,
    ) -> None:
        self.broken = True
        for entry in changes.entries:
            assert entry.at == now
            self.said[entry.action, entry.event or entry.operation or ""] += 1
        for operation in after.operations.values():
            _is_consistent(after, operation, self.timing.retries.tries)
            if operation.status is Status.SCHEDULED:
                _is_looked_at_in_time(after, operation, now, expiry_from)
        for operation in changes.operations.values():
            if operation.id in before.operations:
                was = before.operations[operation.id].status
                assert operation.status in FORWARD[was], (was, operation.status)
            if operation.status is Status.STARTED and not _was(before, operation, Status.STARTED):
                self._may_start(before, after, operation, now, expiry_from)
                _guests_have_seen_it(after, operation, edges, now)
            if _was(before, operation, Status.STARTED) and not operation.status.live:
                _was_shown(after, before.operations[operation.id], now)
            self._was_noted("operation", operation.id, operation.status)
            _goes_where_it_may(before, operation)
        for event in changes.events.values():
            known = before.events.get(event.id)
            if known is None:
                self._is_new(after, event, now)
            else:
                _moves_forward(known, event)
            self._was_noted("event", event.id, event.status)
            assert self.said["event.approved", event.id] <= 1
        self._documents(before, after, changes)
        _domains_stay_apart(after)
        _nobody_comes_where_there_is_no_room(before, after)
        _one_at_a_time(after)
        self.broken = False

    def _may_start(
        self, before: World, after: World, operation: Operation, now: datetime, expiry_from: datetime
    ) -> None:
        events = [event for event in _of(after, operation.id) if event.status.live]
        assert {event.status for event in events} <= {Status.STARTED}, "it starts whole or not at all"
        if operation.kind is Kind.HARDWARE_FAILURE:
            return
        if not all(event.approved for event in events):
            assert operation.expires_at <= now, "unapproved, and before its notice is over"
            assert expiry_from <= now, "guests may not have seen it since start-up"
        if operation.kind is Kind.DEGRADED_HARDWARE and all(event.implied for event in events):
            assert operation.expires_at <= now, "silence brought degraded hardware forward"
        for other in after.operations.values():
            if other.status is Status.STARTED and other.id != operation.id:
                assert not set(other.vms) & set(operation.vms), "two operations act on one VM"
        if operation.kind in PLANNED:
            for event in events:
                assert {event.update_domain} >= set(_domains_out(after, event.scope, {Kind.HARDWARE_FAILURE, *PLANNED}))
        if operation.kind is Kind.DELETION:
            for event in events:
                for earlier in _unapproved_deletions(after, event.scope):
                    assert not now < earlier.not_before <= event.not_before, "an earlier deletion is not approved"
        if operation.kind in MOVING:
            assert set(operation.targets) == set(operation.vms), "it starts whole or not at all"

    def _is_new(self, after: World, event: Event, now: datetime) -> None:
        assert event.id not in self.ids, "an EventId is never reused"
        assert event.id == event.id.upper()
        self.ids.add(event.id)
        operation = after.operations[event.operation]
        notice = NOTICE[event.type]
        if event.type is EventType.TERMINATE:
            wanted = after.scopes[event.scope].policy.terminate_notice
            assert wanted is not None
            notice = wanted
        if operation.kind is not Kind.HARDWARE_FAILURE:
            assert event.not_before >= now + self.timing.shortened(notice), "too little notice"
            self._is_not_told_too_early(event, operation, now)
        assert event.not_before.microsecond == 0
        assert event.not_before == operation.not_before
        vms = [after.vms[name] for name in event.resources]
        assert vms
        assert {(vm.scope, vm.host, vm.update_domain) for vm in vms} == {
            (event.scope, operation.host, event.update_domain)
        }
        if event.type is EventType.TERMINATE:
            assert not vms[0].spot
        if event.type is EventType.PREEMPT:
            assert vms[0].spot
        if event.status is Status.STARTED:
            assert event.approved or operation.kind is Kind.HARDWARE_FAILURE
            assert operation.kind in USERS | {Kind.HARDWARE_FAILURE}, "only these are born Started"

    def _is_not_told_too_early(self, event: Event, operation: Operation, now: datetime) -> None:
        """A window puts off what is told, not only what is done."""
        notice = self.timing.shortened(operation.notice)
        assert event.not_before <= now + notice + ALLOWANCE, "guests are told long before it can start"

    def _was_noted(self, noun: str, key: str, status: Status) -> None:
        said = {action: self.said[f"{noun}.{action}", key] for action in ("scheduled", "started", *ENDS)}
        planned = self.said[f"{noun}.planned", key]
        unannounced = planned and status in (Status.PLANNED, Status.CANCELED)
        assert noun == "operation" or not planned, "an event is never Planned"
        assert said["scheduled"] == 1 or unannounced, said
        assert said["scheduled"] == 0 or status is not Status.PLANNED, said
        assert said["started"] <= 1, said
        assert said["started"] == 1 or status is not Status.STARTED, said
        ended = {action: said[action] for action in ENDS}
        assert ended == {action: int(status.value.lower() == action) for action in ENDS}, said

    def _documents(self, before: World, after: World, changes: Changes) -> None:
        published = {document.scope: document for document in changes.documents}
        for key, scope in after.scopes.items():
            known = before.scopes.get(key)
            if known is None:
                assert scope.tag not in self.tags, "a tag tells scopes apart that had one name"
                self.tags.add(scope.tag)
                continue
            assert (scope.tag, scope.kind) == (known.tag, known.kind)
            if _shown(before, key) == _shown(after, key):
                assert scope.incarnation == known.incarnation, "nothing to see, yet a new incarnation"
                assert key not in published
            else:
                assert scope.incarnation > known.incarnation, "a visible change in an old incarnation"
                assert published[key] == documents.document(scope, _live_in(after, key))
        assert published.keys() <= after.scopes.keys()


def _is_consistent(after: World, operation: Operation, tries: int) -> None:
    events = _of(after, operation.id)
    live = operation.status.live
    assert {event.status for event in events if event.status.live} <= {operation.status}
    assert live or not any(event.status.live for event in events)
    assert live == (operation.due_at is not None), "what lives is looked at again, what is over is not"
    assert live == (operation.ended_at is None)
    assert live or (operation.claimed_by, operation.claimed_until, operation.held) == (None, None, False)
    assert len(set(operation.done)) == len(operation.done)
    assert set(operation.done) <= set(operation.vms)
    assert operation.attempt <= tries
    assert not operation.waiting or operation.status is Status.STARTED, "a driver waits only for what has started"
    assert set(operation.waiting) <= set(operation.vms) - set(operation.done)
    if operation.status is Status.PLANNED:
        assert not events, "guests are told of what is Planned"
        assert operation.kind in PLANNED
        assert set(operation.vms) == {vm.name for vm in after.vms.values() if vm.host == operation.host}
    if live:
        named = [name for event in events if event.status.live for name in event.resources]
        assert len(named) == len(set(named))
        assert not events or set(named) == set(operation.vms)
        for name in set(operation.vms) - set(operation.done):
            assert after.vms[name].host == operation.host


def _is_looked_at_in_time(after: World, operation: Operation, now: datetime, expiry_from: datetime) -> None:
    events = [event for event in _of(after, operation.id) if event.status.live]
    assert operation.due_at is not None
    latest = max(operation.expires_at, expiry_from)
    if operation.held:
        latest = now + timedelta(seconds=60)
    elif all(event.approved for event in events) and not (
        operation.kind is Kind.DEGRADED_HARDWARE and all(event.implied for event in events)
    ):
        latest = now
    if operation.kind in PLANNED and not operation.held:
        wanted = [after.scopes[event.scope].policy.windows for event in events]
        if operation.rollout is not None:
            wanted.append(after.rollouts[operation.rollout].options.windows)
        latest = windows.next_open(wanted, max(latest, now)) or now
    assert operation.due_at <= max(latest, now), "it is approved, or its time has come, but nobody looks"


def _guests_have_seen_it(after: World, operation: Operation, edges: KnownEdges, now: datetime) -> None:
    for event in _of(after, operation.id):
        waited_for = event.status.live and not event.approved and operation.kind is not Kind.HARDWARE_FAILURE
        if waited_for and operation.host in edges.shown and now < operation.expires_at + edges.patience:
            shown = edges.shown[operation.host]
            assert shown is not None, "the edge has not told what it shows"
            assert shown >= event.created_at, "the edge has not shown it"


def _was_shown(after: World, operation: Operation, now: datetime) -> None:
    assert operation.started_at is not None
    failed = any(
        other.kind is Kind.HARDWARE_FAILURE and other.host == operation.host and other.created_at == now
        for other in after.operations.values()
    )
    assert failed or now - operation.started_at >= timedelta(seconds=2), "Started was shown too briefly"


def _goes_where_it_may(before: World, operation: Operation) -> None:
    known = before.operations.get(operation.id)
    for vm, host in operation.targets.items():
        if known is not None and known.targets.get(vm) == host:
            continue
        assert operation.kind in MOVING
        assert host != operation.host
        assert not before.hosts[host].cordoned
        assert host not in before.lost_edges, "a VM moves where its guest could not be told of anything"


def _nobody_comes_where_there_is_no_room(before: World, after: World) -> None:
    known = _housed(before)
    for host, vms in _housed(after).items():
        capacity = after.hosts[host].capacity
        if capacity is not None and vms - known.get(host, set()):
            sizes = [Fraction(1 if (size := after.vms[name].size) is None else str(size)) for name in vms]
            assert sum(sizes) <= Fraction(str(capacity)), f"{host} is filled beyond its capacity"


def _housed(world: World) -> dict[str, set[str]]:
    """By host, the VMs that it has and those on their way to it."""
    found: dict[str, set[str]] = {}
    for vm in world.vms.values():
        found.setdefault(vm.host, set()).add(vm.name)
    for operation in world.operations.values():
        for name in operation.targets if operation.status is Status.STARTED else ():
            if name not in operation.done:
                found.setdefault(operation.targets[name], set()).add(name)
    return found


def _moves_forward(before: Event, after: Event) -> None:
    assert after.status in FORWARD[before.status], (before.status, after.status)
    assert all(getattr(before, name) == getattr(after, name) for name in FIXED)
    assert after.not_before >= before.not_before, "a promise is never cut short"
    assert set(after.resources) <= set(before.resources)
    assert before.status is Status.SCHEDULED or after.resources == before.resources
    assert before.ended_at is None or after == before, "what is over stays as it is"
    if before.approved and not before.implied:
        assert (after.approved_at, after.approved_by) == (before.approved_at, before.approved_by)


def _domains_stay_apart(after: World) -> None:
    def place(name: str) -> tuple[str, str]:
        return after.vms[name].scope, after.vms[name].host

    for _, names in groupby(sorted(after.vms, key=place), key=place):
        assert len({(after.vms[name].update_domain, after.vms[name].fault_domain) for name in names}) == 1
    addresses = [address for vm in after.vms.values() for address in vm.addresses]
    assert len(set(addresses)) == len(addresses)


def _one_at_a_time(after: World) -> None:
    for key in after.scopes:
        assert len(set(_domains_out(after, key, PLANNED))) <= 1, "two update domains in planned maintenance"
    started = [operation for operation in after.operations.values() if operation.status is Status.STARTED]
    acted_on = Counter(name for operation in started for name in set(operation.vms) - set(operation.done))
    assert all(count == 1 for count in acted_on.values()), acted_on


def _domains_out(state: World, key: str, kinds: set[Kind]) -> Iterator[int]:
    for event in _live_in(state, key):
        if event.status is Status.STARTED and state.operations[event.operation].kind in kinds:
            yield event.update_domain


def _unapproved_deletions(state: World, key: str) -> Iterator[Event]:
    for event in _live_in(state, key):
        if event.type is EventType.TERMINATE and event.status is Status.SCHEDULED and not event.approved:
            yield event


def _was(before: World, operation: Operation, status: Status) -> bool:
    return operation.id in before.operations and before.operations[operation.id].status is status


def _of(state: World, operation_id: str) -> list[Event]:
    return [event for event in state.events.values() if event.operation == operation_id]


def _live_in(state: World, key: str) -> list[Event]:
    return [event for event in state.events.values() if event.scope == key and event.status.live]


def _shown(state: World, key: str) -> list[tuple[object, ...]]:
    return [
        (event.id, event.status, event.type, event.resources, event.status is Status.SCHEDULED and event.not_before)
        for event in sorted(_live_in(state, key), key=lambda event: (event.created_at, event.id))
    ]


# Rollouts, budgets and windows; what is down is counted anew here.

ROLLOUTS_FORWARD = {
    RolloutStatus.RUNNING: set(RolloutStatus),
    RolloutStatus.PAUSED: {RolloutStatus.PAUSED, RolloutStatus.RUNNING, RolloutStatus.CANCELING},
    RolloutStatus.CANCELING: {RolloutStatus.CANCELING, RolloutStatus.CANCELED},
    RolloutStatus.CANCELED: {RolloutStatus.CANCELED},
    RolloutStatus.COMPLETED: {RolloutStatus.COMPLETED},
}


class RolloutWatch:
    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.broken = False
        self.waves: dict[str, int] = {}
        """Of each rollout, the wave of what it announced last."""
        self.answers: dict[tuple[str, int], bool] = {}
        """What a gate said last of a wave, since the rollout was started or resumed."""

    def forget_answers(self, rollout: str) -> None:
        for known, wave in list(self.answers):
            if known == rollout:
                del self.answers[known, wave]

    def observe(
        self,
        before: World,
        after: World,
        changes: Changes,
        rollout_hosts: Mapping[tuple[str, str], RolloutHost],
        *,
        now: datetime,
    ) -> None:
        self.broken = True
        _starts_keep_budgets_and_windows(before, after, changes, now)
        for entry in changes.entries:
            if entry.action == "rollout.wave_began" and after.rollouts[entry.rollout or ""].options.gate is not None:
                wave = int(str(entry.data["wave"])) - 1
                assert self.answers.get((entry.rollout or "", wave)), "the gate is not green"
        for operation in changes.operations.values():
            known = before.operations.get(operation.id)
            if known is None or known.not_before != operation.not_before:
                _not_before_is_in_its_windows(after, operation)
            if known is None and operation.rollout is not None:
                running = before.rollouts[operation.rollout].status is RolloutStatus.RUNNING
                assert running, "only a running rollout announces"
                each = rollout_hosts[operation.rollout, operation.host]
                self._is_announced_in_turn(before, after, operation, each, now)
        for rollout in changes.rollouts.values():
            self._moves_forward(before.rollouts.get(rollout.id), rollout, now)
            _has_an_end(
                after,
                rollout,
                [each for each in rollout_hosts.values() if each.rollout == rollout.id],
            )
        for rollout in after.rollouts.values():
            under_way = [o for o in after.operations.values() if o.rollout == rollout.id and o.status.live]
            assert len(under_way) <= rollout.options.batch, "more hosts at once than the batch"
            assert rollout.status.live or not under_way, "it is over, but something of it is not"
        self.broken = False

    def _is_announced_in_turn(
        self, before: World, after: World, operation: Operation, each: RolloutHost, now: datetime
    ) -> None:
        rollout = after.rollouts[each.rollout]
        assert (each.status, each.operation) == (RolloutHostStatus.UNDER_WAY, operation.id)
        mine = [o for o in after.operations.values() if o.rollout == rollout.id and o.id in before.operations]
        last = self.waves.setdefault(rollout.id, each.wave)
        self.waves[rollout.id] = each.wave
        if last != each.wave:
            assert not any(other.status.live for other in mine), "the wave before it is not over"
            ended = max(other.ended_at or now for other in mine)
            assert now >= ended + self.timing.shortened(rollout.options.pause), "the pause is not over"
        assert rollout.wave == each.wave, "another wave has begun"
        assert rollout.opened_at is not None, "the wave has not begun"
        for event in _of(after, operation.id):
            live = [(other, after.operations[other.operation].kind) for other in _live_in(after, event.scope)]
            for other, kind in live:
                waits = kind is Kind.DEGRADED_HARDWARE and other.status is Status.SCHEDULED
                if kind in PLANNED | {Kind.HARDWARE_FAILURE} and not waits:
                    assert other.update_domain == event.update_domain, "another update domain is down or announced"
            announced = PLANNED - {Kind.DEGRADED_HARDWARE}
            counted = [each for each, kind in live if kind in announced or each.status is Status.STARTED]
            _require_within_budget(after, event.scope, _named(counted), _members(after, event.scope))

    def _moves_forward(self, before: Rollout | None, rollout: Rollout, now: datetime) -> None:
        if before is not None:
            assert rollout.status in ROLLOUTS_FORWARD[before.status], (before.status, rollout.status)
            if before.opened_at is None and rollout.opened_at is not None:
                assert now >= rollout.opens_at
        assert rollout.status.live == (rollout.ended_at is None)
        if rollout.status is not RolloutStatus.PAUSED:
            assert rollout.status.live == (rollout.due_at is not None), "it runs, but nobody looks"


def _starts_keep_budgets_and_windows(before: World, after: World, changes: Changes, now: datetime) -> None:
    """In the order of the journal: what a tick starts after planned maintenance was not out when that started."""
    out = {event.id: event for event in before.events.values() if event.status is Status.STARTED}
    removed: Counter[str | None] = Counter()
    for entry in changes.entries:
        if entry.action == "vm.removed":
            removed[entry.scope] += 1
        if entry.action.removeprefix("event.") in ENDS:
            out.pop(entry.event or "", None)
        if entry.action != "event.started":
            continue
        event = after.events[entry.event or ""]
        out[event.id] = event
        operation = after.operations[event.operation]
        if operation.kind in PLANNED:
            started = (e for e in out.values() if e.scope == event.scope)
            members = _members(before, event.scope) - removed[event.scope]
            _require_within_budget(before, event.scope, _named(started), members)
            for wanted in _windows(after, operation, [event]):
                assert windows.is_open(wanted, now), "a planned start outside its window"
            if operation.rollout is not None:
                status = before.rollouts[operation.rollout].status
                assert status in (RolloutStatus.RUNNING, RolloutStatus.CANCELING), "a paused rollout starts nothing"


def _not_before_is_in_its_windows(after: World, operation: Operation) -> None:
    if operation.kind in PLANNED:
        scopes = {vm.scope for vm in after.vms.values() if vm.name in operation.vms}
        for wanted in (
            [after.scopes[scope].policy.windows for scope in scopes]
            if operation.status is Status.PLANNED
            else _windows(after, operation, _of(after, operation.id))
        ):
            assert windows.is_open(wanted, operation.not_before), "NotBefore is outside a window"


def _has_an_end(after: World, rollout: Rollout, rollout_hosts: list[RolloutHost]) -> None:
    if rollout.status is RolloutStatus.COMPLETED:
        assert not any(
            each.status in (RolloutHostStatus.WAITING, RolloutHostStatus.UNDER_WAY) for each in rollout_hosts
        )
    for each in rollout_hosts:
        if each.status is RolloutHostStatus.DONE:
            assert after.operations[each.operation or ""].status is Status.COMPLETED


def _require_within_budget(state: World, scope: str, names: set[str], members: int) -> None:
    most = most_down(state.scopes[scope].policy, members)
    assert len(names) <= most, f"{len(names)} of {members} VMs of {scope} are down, and {most} may be"


def most_down(policy: Policy, members: int) -> Fraction:
    limits = [Fraction(members)]
    if policy.max_unavailable is not None:
        number, percent, _ = policy.max_unavailable.partition("%")
        limits.append(Fraction(int(number), 100) * members if percent else Fraction(int(number)))
    if policy.min_available is not None:
        limits.append(Fraction(members - policy.min_available))
    return min(limits)


def _windows(after: World, operation: Operation, events: Iterable[Event]) -> Iterator[tuple[Window, ...]]:
    yield from (after.scopes[event.scope].policy.windows for event in events)
    if operation.rollout is not None:
        yield after.rollouts[operation.rollout].options.windows


def _members(state: World, scope: str) -> int:
    return sum(vm.scope == scope for vm in state.vms.values())


def _named(events: Iterable[Event]) -> set[str]:
    return set(chain.from_iterable(event.resources for event in events))
