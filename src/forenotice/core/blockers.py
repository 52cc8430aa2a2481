"""What stands between an operation and its start. Without blockers it may start; with them, they say why it waits."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from forenotice.core import budgets, placement, windows
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
class Blocker:
    kind: BlockerKind
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


def start_blockers(draft: Draft, operation: Operation, expiry_from: datetime) -> list[Blocker]:
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


def announcement_blockers(draft: Draft, operation: Operation) -> list[Blocker]:
    """Everything in the way of telling guests of a Planned operation."""
    return [
        *_of_arrivals(draft, operation.host),
        *_of_impossible_budgets(draft, operation),
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
            yield Blocker(
                kind=BlockerKind.ANNOUNCEMENT,
                until=slot.announce_at,
                opens_at=slot.not_before,
                scope=scope,
                rollout=mine,
            )


def _of_arrivals(draft: Draft, host: str) -> Iterator[Blocker]:
    for operation, _ in placement.arriving_at(draft, host):
        yield Blocker(kind=BlockerKind.HOST_BUSY, operation=operation.id)


def _of_impossible_budgets(draft: Draft, operation: Operation) -> Iterator[Blocker]:
    """Budgets that can never be met, because a policy, the group or its placement has changed since."""
    named = Counter(draft.vm(name).scope for name in operation.vms)
    for scope, vms in named.items():
        most = budgets.allowed(draft.scope(scope).policy, draft.size_of(scope))
        if most is not None and vms > most:
            yield Blocker(kind=BlockerKind.BUDGET, scope=scope)


def _of_consent(draft: Draft, operation: Operation, events: list[Event], expiry_from: datetime) -> Iterator[Blocker]:
    ahead = draft.now < operation.expires_at
    unapproved = [event for event in events if not event.approved]
    if ahead:
        for event in unapproved:
            yield Blocker(kind=BlockerKind.APPROVAL, until=operation.expires_at, scope=event.scope, event=event.id)
        if unapproved and operation.clock_jumped:
            yield Blocker(kind=BlockerKind.CLOCK, until=operation.expires_at)
        if operation.kind is Kind.DEGRADED_HARDWARE and events and all(event.implied for event in events):
            yield Blocker(kind=BlockerKind.NOTICE, until=operation.expires_at)
    elif unapproved and draft.now < expiry_from:
        yield Blocker(kind=BlockerKind.START_UP, until=expiry_from)


def _of_earlier_deletions(draft: Draft, operation: Operation, events: list[Event]) -> Iterator[Blocker]:
    if operation.kind is not Kind.DELETION:
        return
    for mine in events:
        for other in draft.awaited_deletions_in(mine.scope):
            deletion = draft.operation(other.operation)
            if deletion.id != operation.id and draft.now < deletion.expires_at and other.not_before <= mine.not_before:
                yield Blocker(
                    kind=BlockerKind.EARLIER_DELETION,
                    until=deletion.expires_at,
                    scope=other.scope,
                    event=other.id,
                    operation=other.operation,
                )


def _of_update_domains(draft: Draft, operation: Operation, events: list[Event]) -> Iterator[Blocker]:
    if not operation.kind.traits.planned:
        return
    for mine in events:
        for other in draft.started_events_in(mine.scope):
            if other.update_domain == mine.update_domain:
                continue
            kind = draft.operation(other.operation).kind
            if kind.traits.planned or kind is Kind.HARDWARE_FAILURE:
                yield Blocker(
                    kind=BlockerKind.UPDATE_DOMAIN,
                    scope=other.scope,
                    event=other.id,
                    operation=other.operation,
                )


def _of_rollout(draft: Draft, operation: Operation) -> Iterator[Blocker]:
    if operation.rollout is not None and draft.rollout(operation.rollout).status is RolloutStatus.PAUSED:
        yield Blocker(kind=BlockerKind.ROLLOUT, rollout=operation.rollout)


def _of_windows(draft: Draft, operation: Operation) -> Iterator[Blocker]:
    if not operation.kind.traits.planned:
        return
    demands = windows.all_demands(draft, operation.vms, operation.rollout)
    together = windows.next_open(demands.values(), draft.now)
    for who, wanted in demands.items():
        if not windows.is_open(wanted, draft.now):
            scope, rollout = (None, operation.rollout) if who == operation.rollout else (who, None)
            yield Blocker(kind=BlockerKind.WINDOW, until=together, scope=scope, rollout=rollout)


def _of_budgets(draft: Draft, operation: Operation, events: list[Event]) -> Iterator[Blocker]:
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
            yield Blocker(
                kind=BlockerKind.BUDGET,
                scope=mine.scope,
                event=holding.id if holding else None,
                operation=holding.operation if holding else None,
            )


def _of_busy_vms(draft: Draft, operation: Operation) -> Iterator[Blocker]:
    for name in operation.vms:
        for other in draft.live_operations_naming(name):
            if other.id != operation.id and other.status is Status.STARTED:
                yield Blocker(kind=BlockerKind.VM_BUSY, operation=other.id, vm=name)


def _of_targets(draft: Draft, operation: Operation) -> Iterator[Blocker]:
    if not operation.kind.traits.moves:
        return
    targets = placement.choose(draft, operation, operation.vms)
    for name in operation.vms:
        if name not in targets:
            size = placement.size_in_the_way(draft, name)
            yield Blocker(kind=BlockerKind.TARGET_HOST, vm=name, size=size)
