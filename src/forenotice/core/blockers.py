"""What stands between an operation and its start. Without blockers it may start; with them, they say why it waits."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from forenotice.core import budgets, placement, update_domains, windows
from forenotice.core.draft import Draft
from forenotice.core.operations import Event, Kind, Operation, Status
from forenotice.core.rollouts import RolloutStatus


class BlockerKind(StrEnum):
    APPROVAL = "approval"
    """A listening scope has not approved, and NotBefore is ahead."""
    NOTICE = "notice"
    """Silence alone does not bring degraded hardware forward."""
    START_UP = "start-up"
    """NotBefore has passed, but guests may not have seen it: the service has just started."""
    CLOCK = "clock"
    """The clock jumped ahead since it was announced, which does not count as notice."""
    UPDATE_DOMAIN = "update-domain"
    """Another update domain of the scope is down."""
    VM_BUSY = "vm-busy"
    """Another operation acts on one of the VMs."""
    EARLIER_DELETION = "earlier-deletion"
    """A deletion of the same group that was announced earlier is not approved yet."""
    TARGET_HOST = "target-host"
    """No host can take a VM that must move."""
    BUDGET = "budget"
    """Its group cannot spare so many VMs now."""
    WINDOW = "window"
    """Its group or its rollout allows planned starts at other times only."""
    HOST_BUSY = "host-busy"
    """Other planned maintenance of the host is announced or under way: a rollout waits for its end."""
    ROLLOUT = "rollout"
    """Its rollout is paused."""
    ANNOUNCEMENT = "announcement"
    """It is planned: guests are told when the opening of its window is near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    kind: BlockerKind
    until: datetime | None = None
    """When it is out of the way at the latest; None: unknown."""
    scope: str | None = None
    event: str | None = None
    operation: str | None = None
    vm: str | None = None
    rollout: str | None = None
    size: float | None = None
    """Of a VM that must move: hosts have not enough capacity left for that."""
    opens_at: datetime | None = None
    """For an announcement: when its window opens."""


def start_blockers(draft: Draft, operation: Operation, expiry_from: datetime) -> list[Blocker]:
    """Everything in the way of a Scheduled operation. Nothing starts by expiry alone before `expiry_from`."""
    events = draft.live_events_of(operation.id)
    return [
        *_consent(draft, operation, events, expiry_from),
        *(_earlier_deletions(draft, operation, events) if operation.kind is Kind.DELETION else ()),
        *_rollout(draft, operation),
        *(_maintenance_blockers(draft, operation, events) if operation.kind.traits.maintenance else ()),
        *_busy_vms(draft, operation),
        *(target_blockers(draft, operation) if operation.kind.traits.moves else ()),
    ]


def announcement_blockers(draft: Draft, operation: Operation) -> list[Blocker]:
    """Everything in the way of telling guests of a Planned operation."""
    return [
        *arrival_blockers(draft, operation.host),
        *_impossible_budgets(draft, operation),
        *window_blockers(draft, operation.vms, operation.rollout, operation.notice),
    ]


def window_blockers(draft: Draft, vms: Iterable[str], rollout: str | None, notice: timedelta) -> Iterator[Blocker]:
    """The windows that delay an announcement that would be made now."""
    demands = windows.all_demands(draft, vms, rollout)
    slot = windows.slot(draft, demands.values(), notice)
    if slot is not None and slot.announce_at <= draft.now:
        return
    for who in demands:
        scope, mine = (None, rollout) if who == rollout else (who, None)
        if slot is None:
            yield Blocker(kind=BlockerKind.WINDOW, scope=scope, rollout=mine)
        else:
            until, opens_at = slot.announce_at, slot.not_before
            yield Blocker(kind=BlockerKind.ANNOUNCEMENT, until=until, opens_at=opens_at, scope=scope, rollout=mine)


def arrival_blockers(draft: Draft, host: str) -> Iterator[Blocker]:
    for operation, _ in placement.arriving_at(draft, host):
        yield Blocker(kind=BlockerKind.HOST_BUSY, operation=operation.id)


def target_blockers(draft: Draft, operation: Operation) -> Iterator[Blocker]:
    """VMs that must move and that no host can take."""
    targets = placement.choose(draft, operation, operation.vms)
    for name in operation.vms:
        if name not in targets:
            yield Blocker(kind=BlockerKind.TARGET_HOST, vm=name, size=placement.size_in_the_way(draft, name))


def _impossible_budgets(draft: Draft, operation: Operation) -> Iterator[Blocker]:
    """Budgets that can never be met, because a policy, the group or its placement has changed since."""
    for scope, vms in Counter(draft.vm(name).scope for name in operation.vms).items():
        most = budgets.allowed(draft.scope(scope).policy, draft.size_of(scope))
        if most is not None and vms > most:
            yield Blocker(kind=BlockerKind.BUDGET, scope=scope)


def _consent(draft: Draft, operation: Operation, events: list[Event], expiry_from: datetime) -> Iterator[Blocker]:
    until = operation.expires_at
    unapproved = [event for event in events if not event.approved]
    if draft.now < until:
        for event in unapproved:
            yield Blocker(kind=BlockerKind.APPROVAL, until=until, scope=event.scope, event=event.id)
        if unapproved and operation.clock_jumped:
            yield Blocker(kind=BlockerKind.CLOCK, until=until)
        if operation.kind is Kind.DEGRADED_HARDWARE and events and all(event.implied for event in events):
            yield Blocker(kind=BlockerKind.NOTICE, until=until)
    elif unapproved and draft.now < expiry_from:
        yield Blocker(kind=BlockerKind.START_UP, until=expiry_from)


def _earlier_deletions(draft: Draft, operation: Operation, events: list[Event]) -> Iterator[Blocker]:
    for mine in events:
        for other in draft.awaited_deletions_in(mine.scope):
            until = draft.operation(other.operation).expires_at
            if other.operation != operation.id and draft.now < until and other.not_before <= mine.not_before:
                yield _held_by(BlockerKind.EARLIER_DELETION, other, until=until)


def _rollout(draft: Draft, operation: Operation) -> Iterator[Blocker]:
    if operation.rollout is not None and draft.rollout(operation.rollout).status is RolloutStatus.PAUSED:
        yield Blocker(kind=BlockerKind.ROLLOUT, rollout=operation.rollout)


def _maintenance_blockers(draft: Draft, operation: Operation, events: list[Event]) -> Iterator[Blocker]:
    """Windows, update domains and budgets, which hold for planned maintenance only."""
    demands = windows.all_demands(draft, operation.vms, operation.rollout)
    together = windows.next_open(demands.values(), draft.now)
    for who, wanted in demands.items():
        if not windows.is_open(wanted, draft.now):
            scope, rollout = (None, operation.rollout) if who == operation.rollout else (who, None)
            yield Blocker(kind=BlockerKind.WINDOW, until=together, scope=scope, rollout=rollout)
    for mine in events:
        for other in draft.started_events_in(mine.scope):
            excluded = update_domains.is_excluded(mine.update_domain, [other.update_domain])
            if excluded and update_domains.excludes_others(draft.operation(other.operation)):
                yield _held_by(BlockerKind.UPDATE_DOMAIN, other)
    for mine in events:
        yield from _budget(draft, mine)


def _budget(draft: Draft, mine: Event) -> Iterator[Blocker]:
    policy = draft.scope(mine.scope).policy
    most = budgets.allowed(policy, draft.size_of(mine.scope)) if budgets.has_budget(policy) else None
    if most is None:
        return
    started = draft.started_events_in(mine.scope)
    down = {name for other in started for name in other.resources}
    if len(mine.resources) > most:
        # No end of anything helps.
        yield Blocker(kind=BlockerKind.BUDGET, scope=mine.scope)
    elif len(down.union(mine.resources)) > most:
        yield _held_by(BlockerKind.BUDGET, min(started, key=lambda other: (other.created_at, other.id)))


def _held_by(kind: BlockerKind, other: Event, until: datetime | None = None) -> Blocker:
    return Blocker(kind=kind, until=until, scope=other.scope, event=other.id, operation=other.operation)


def _busy_vms(draft: Draft, operation: Operation) -> Iterator[Blocker]:
    for name in operation.vms:
        for other in draft.live_operations_naming(name):
            if other.id != operation.id and other.status is Status.STARTED:
                yield Blocker(kind=BlockerKind.VM_BUSY, operation=other.id, vm=name)
