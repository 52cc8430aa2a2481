"""What rollouts, budgets and windows promise, checked on every transaction; what is down is counted anew here."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from fractions import Fraction
from itertools import chain

from forenotice.core import windows
from forenotice.core.draft import Changes, World
from forenotice.core.fleet import Policy
from forenotice.core.operations import Event, Kind, Operation, Status
from forenotice.core.rollouts import Rollout, RolloutHost, RolloutHostStatus, RolloutStatus
from forenotice.core.timing import Timing
from forenotice.core.windows import Window

PLANNED = {Kind.HOST_UPDATE, Kind.HOST_REBOOT, Kind.LIVE_MIGRATION, Kind.DEGRADED_HARDWARE}
ENDS = {"event.completed", "event.canceled", "event.failed"}
FORWARD = {
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
        for event in _events_of(after, operation):
            for other, kind in _live_in(after, event.scope):
                waits = kind is Kind.DEGRADED_HARDWARE and other.status is Status.SCHEDULED
                if kind in PLANNED | {Kind.HARDWARE_FAILURE} and not waits:
                    assert other.update_domain == event.update_domain, "another update domain is down or announced"
            counted = [e for e, kind in _live_in(after, event.scope) if _is_out_or_announced(e, kind)]
            _require_within_budget(after, event.scope, _named(counted), _members(after, event.scope))

    def _moves_forward(self, before: Rollout | None, rollout: Rollout, now: datetime) -> None:
        if before is not None:
            assert rollout.status in FORWARD[before.status], (before.status, rollout.status)
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
        if entry.action in ENDS:
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
            else _windows(after, operation, _events_of(after, operation))
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


def _is_out_or_announced(event: Event, kind: Kind) -> bool:
    announced = kind in PLANNED - {Kind.DEGRADED_HARDWARE}
    return announced or event.status is Status.STARTED


def _windows(after: World, operation: Operation, events: Iterable[Event]) -> Iterator[tuple[Window, ...]]:
    yield from (after.scopes[event.scope].policy.windows for event in events)
    if operation.rollout is not None:
        yield after.rollouts[operation.rollout].options.windows


def _members(state: World, scope: str) -> int:
    return sum(vm.scope == scope for vm in state.vms.values())


def _named(events: Iterable[Event]) -> set[str]:
    return set(chain.from_iterable(event.resources for event in events))


def _events_of(state: World, operation: Operation) -> list[Event]:
    return [event for event in state.events.values() if event.operation == operation.id]


def _live_in(state: World, scope: str) -> list[tuple[Event, Kind]]:
    return [
        (event, state.operations[event.operation].kind)
        for event in state.events.values()
        if event.scope == scope and event.status.live
    ]
