"""What stands between an operation and its start. Without obstacles it may start; with them, they say why it waits."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from forenotice.core import budgets, calendar, placement, windows
from forenotice.core.draft import Draft
from forenotice.core.operations import Event, Kind, Operation, Status
from forenotice.core.rollouts import RolloutStatus


class ObstacleKind(StrEnum):
    APPROVAL = "approval"
    """A listening scope has not approved, and NotBefore is ahead."""
    NOTICE = "notice"
    """Silence alone does not bring degraded hardware forward."""
    START_UP = "start-up"
    """NotBefore has passed, but guests may not have seen it: the service has just started."""
    CLOCK = "clock"
    """The clock jumped ahead since it was announced, which does not count as notice."""
    UPDATE_DOMAIN = "update-domain"
    """Another update domain of the scope is out."""
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
class Obstacle:
    kind: ObstacleKind
    until: datetime | None = None
    """When it is out of the way at the latest; None: nobody knows."""
    scope: str | None = None
    event: str | None = None
    operation: str | None = None
    vm: str | None = None
    rollout: str | None = None
    size: float | None = None
    """Of a VM that must move: hosts have not enough capacity left for that."""
    opens_at: datetime | None = None
    """For an announcement: when its window opens."""


def obstacles(draft: Draft, operation: Operation, expiry_from: datetime) -> list[Obstacle]:
    """Everything in the way of a Scheduled operation. Nothing starts by expiry alone before `expiry_from`."""
    events = draft.live_events_of(operation.id)
    return [
        *_of_consent(draft, operation, events, expiry_from),
        *_of_earlier_deletions(draft, operation, events),
        *_of_rollout(draft, operation),
        *_of_windows(draft, operation),
        *_of_update_domains(draft, operation, events),
        *_of_budgets(draft, operation, events),
        *_of_busy_vms(draft, operation),
        *_of_targets(draft, operation),
    ]


def before_announcement(draft: Draft, operation: Operation) -> list[Obstacle]:
    """Everything in the way of telling guests of a Planned operation."""
    return [
        *_of_arrivals(draft, operation.host),
        *_of_impossible_budgets(draft, operation),
        *of_openings(draft, operation.vms, operation.rollout, operation.notice),
    ]


def of_openings(draft: Draft, vms: Iterable[str], rollout: str | None, notice: timedelta) -> Iterator[Obstacle]:
    """The windows that delay an announcement that would be made now."""
    demands = calendar.demands(draft, vms, rollout)
    slot = calendar.slot(draft, demands.values(), notice)
    if slot is not None and slot.told_at <= draft.now:
        return
    for who in demands:
        scope, mine = (None, rollout) if who == rollout else (who, None)
        if slot is None:
            yield Obstacle(kind=ObstacleKind.WINDOW, scope=scope, rollout=mine)
        else:
            yield Obstacle(
                kind=ObstacleKind.ANNOUNCEMENT,
                until=slot.told_at,
                opens_at=slot.not_before,
                scope=scope,
                rollout=mine,
            )


def _of_arrivals(draft: Draft, host: str) -> Iterator[Obstacle]:
    for operation, _ in placement.arriving_at(draft, host):
        yield Obstacle(kind=ObstacleKind.HOST_BUSY, operation=operation.id)


def _of_impossible_budgets(draft: Draft, operation: Operation) -> Iterator[Obstacle]:
    """Budgets that can never be met, because a policy, the group or its placement has changed since."""
    named = Counter(draft.vm(name).scope for name in operation.vms)
    for scope, vms in named.items():
        most = budgets.allowed(draft.scope(scope).policy, draft.size_of(scope))
        if most is not None and vms > most:
            yield Obstacle(kind=ObstacleKind.BUDGET, scope=scope)


def _of_consent(draft: Draft, operation: Operation, events: list[Event], expiry_from: datetime) -> Iterator[Obstacle]:
    ahead = draft.now < operation.expires_at
    unapproved = [event for event in events if not event.approved]
    if ahead:
        for event in unapproved:
            yield Obstacle(kind=ObstacleKind.APPROVAL, until=operation.expires_at, scope=event.scope, event=event.id)
        if unapproved and operation.clock_jumped:
            yield Obstacle(kind=ObstacleKind.CLOCK, until=operation.expires_at)
        if operation.kind is Kind.DEGRADED_HARDWARE and events and all(event.implied for event in events):
            yield Obstacle(kind=ObstacleKind.NOTICE, until=operation.expires_at)
    elif unapproved and draft.now < expiry_from:
        yield Obstacle(kind=ObstacleKind.START_UP, until=expiry_from)


def _of_earlier_deletions(draft: Draft, operation: Operation, events: list[Event]) -> Iterator[Obstacle]:
    if operation.kind is not Kind.DELETION:
        return
    for mine in events:
        for other in draft.awaited_deletions_in(mine.scope):
            deletion = draft.operation(other.operation)
            if deletion.id != operation.id and draft.now < deletion.expires_at and other.not_before <= mine.not_before:
                yield Obstacle(
                    kind=ObstacleKind.EARLIER_DELETION,
                    until=deletion.expires_at,
                    scope=other.scope,
                    event=other.id,
                    operation=other.operation,
                )


def _of_update_domains(draft: Draft, operation: Operation, events: list[Event]) -> Iterator[Obstacle]:
    if not operation.kind.traits.planned:
        return
    for mine in events:
        for other in draft.started_events_in(mine.scope):
            if other.update_domain == mine.update_domain:
                continue
            kind = draft.operation(other.operation).kind
            if kind.traits.planned or kind is Kind.HARDWARE_FAILURE:
                yield Obstacle(
                    kind=ObstacleKind.UPDATE_DOMAIN,
                    scope=other.scope,
                    event=other.id,
                    operation=other.operation,
                )


def _of_rollout(draft: Draft, operation: Operation) -> Iterator[Obstacle]:
    if operation.rollout is not None and draft.rollout(operation.rollout).status is RolloutStatus.PAUSED:
        yield Obstacle(kind=ObstacleKind.ROLLOUT, rollout=operation.rollout)


def _of_windows(draft: Draft, operation: Operation) -> Iterator[Obstacle]:
    if not operation.kind.traits.planned:
        return
    demands = calendar.demands(draft, operation.vms, operation.rollout)
    together = windows.next_open(demands.values(), draft.now)
    for who, wanted in demands.items():
        if not windows.is_open(wanted, draft.now):
            scope, rollout = (None, operation.rollout) if who == operation.rollout else (who, None)
            yield Obstacle(kind=ObstacleKind.WINDOW, until=together, scope=scope, rollout=rollout)


def _of_budgets(draft: Draft, operation: Operation, events: list[Event]) -> Iterator[Obstacle]:
    if not operation.kind.traits.planned:
        return
    for mine in events:
        policy = draft.scope(mine.scope).policy
        most = budgets.allowed(policy, draft.size_of(mine.scope)) if budgets.has_budget(policy) else None
        if most is None:
            continue
        started = draft.started_events_in(mine.scope)
        out = {name for other in started for name in other.resources}
        if len(out.union(mine.resources)) > most:
            # None: no end of anything helps.
            oldest = min(started, key=lambda other: (other.created_at, other.id), default=None)
            holding = oldest if len(mine.resources) <= most else None
            yield Obstacle(
                kind=ObstacleKind.BUDGET,
                scope=mine.scope,
                event=holding.id if holding else None,
                operation=holding.operation if holding else None,
            )


def _of_busy_vms(draft: Draft, operation: Operation) -> Iterator[Obstacle]:
    for name in operation.vms:
        for other in draft.live_operations_naming(name):
            if other.id != operation.id and other.status is Status.STARTED:
                yield Obstacle(kind=ObstacleKind.VM_BUSY, operation=other.id, vm=name)


def _of_targets(draft: Draft, operation: Operation) -> Iterator[Obstacle]:
    if not operation.kind.traits.moves:
        return
    targets = placement.choose(draft, operation, operation.vms)
    for name in operation.vms:
        if name not in targets:
            size = placement.size_in_the_way(draft, name)
            yield Obstacle(kind=ObstacleKind.TARGET_HOST, vm=name, size=size)
