"""What stands between an operation and its start or its announcement. An empty list is the permission."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from forenotice.core import placement, rollouts, windows
from forenotice.core.draft import Draft
from forenotice.core.operations import Event, Kind, Operation, Status, is_excluded
from forenotice.core.rollouts import Rollout, RolloutStatus


class BlockerKind(StrEnum):
    APPROVAL = "approval"
    """A listening scope has not approved, and NotBefore is ahead."""
    NOTICE = "notice"
    """Silence alone does not bring degraded hardware forward."""
    START_UP = "start-up"
    """NotBefore has passed, but guests may not have seen it: the service has just started."""
    EDGE = "edge"
    """NotBefore has passed, but guests may not have seen it: the edge of its host has not shown it."""
    CLOCK = "clock"
    """The clock jumped ahead since it was announced, which does not count as notice."""
    UPDATE_DOMAIN = "update-domain"
    """Another update domain of the scope is down."""
    VM_BUSY = "vm-busy"
    """Another operation acts on one of the VMs."""
    EARLIER_DELETION = "earlier-deletion"
    """A deletion of the same group whose NotBefore is not later is not approved yet."""
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
    host: str | None = None
    rollout: str | None = None
    size: float | None = None
    """Of a VM that must move: hosts have not enough capacity left for that."""
    opens_at: datetime | None = None
    """For an announcement: when its window opens."""


def start_blockers(draft: Draft, operation: Operation, expiry_from: datetime) -> list[Blocker]:
    """Everything in the way of a Scheduled operation. Nothing starts by expiry alone before `expiry_from`."""
    events, rollout = draft.live_events_of(operation.id), operation.rollout
    found = [*_consent(draft, operation, events, expiry_from)]
    if operation.kind is Kind.DELETION:
        found += _earlier_deletions(draft, operation, events)
    if rollout is not None and draft.rollout(rollout).status is RolloutStatus.PAUSED:
        found.append(Blocker(kind=BlockerKind.ROLLOUT, rollout=rollout))
    if operation.kind.traits.maintenance:
        found += _maintenance_blockers(draft, operation, events)
    for name in operation.vms:
        for other in draft.live_operations_naming(name):
            if other.id != operation.id and other.status is Status.STARTED:
                found.append(Blocker(kind=BlockerKind.VM_BUSY, operation=other.id, vm=name))
    if operation.kind.traits.moves:
        targets = placement.choose(draft, operation, operation.vms)
        for name in operation.vms:
            if name not in targets:
                size = placement.size_in_the_way(draft, name)
                found.append(Blocker(kind=BlockerKind.TARGET_HOST, vm=name, size=size))
    return found


def announcement_blockers(draft: Draft, operation: Operation) -> list[Blocker]:
    """Everything in the way of telling guests of a Planned operation."""
    found = [*_arrivals(draft, operation.host)]
    for scope, vms in Counter(draft.vm(name).scope for name in operation.vms).items():
        if vms > draft.allowed_down(scope):
            # No end of anything helps: a policy, the group or its placement has changed since.
            found.append(Blocker(kind=BlockerKind.BUDGET, scope=scope))
    return [*found, *_windows_ahead(draft, operation.vms, operation.rollout, operation.notice)]


def host_blockers(draft: Draft, rollout: Rollout, host: str) -> Iterator[Blocker]:
    """Why maintenance of a rollout's host is not announced now: another operation, a budget or a window."""
    for operation in draft.live_operations_on(host):
        if operation.excludes_others or operation.kind is rollout.kind:
            yield Blocker(kind=BlockerKind.HOST_BUSY, operation=operation.id)
    yield from _arrivals(draft, host)
    for part in rollouts.parts(draft, host):
        allowed = draft.allowed_down(part.scope)
        live = draft.live_events_in(part.scope)
        excludes = {event.id: draft.operation(event.operation).excludes_others for event in live}
        planned = [event for event in live if excludes[event.id]]
        down = [event for event in live if excludes[event.id] or event.status is Status.STARTED]
        if part.vms > allowed:
            yield Blocker(kind=BlockerKind.BUDGET, scope=part.scope)
        elif excluding := [event for event in planned if is_excluded(part.update_domain, [event.update_domain])]:
            yield _held_by(BlockerKind.UPDATE_DOMAIN, _oldest(excluding))
        elif sum(len(event.resources) for event in down) + part.vms > allowed:
            yield _held_by(BlockerKind.BUDGET, _oldest(down))
    yield from _windows_ahead(draft, sorted(vm.name for vm in draft.vms_on(host)), rollout.id, rollout.notice)


def _windows_ahead(draft: Draft, vms: Iterable[str], rollout: str | None, notice: timedelta) -> Iterator[Blocker]:
    """The windows that delay an announcement that would be made now."""
    demands = windows.all_demands(draft, vms, rollout)
    slot = windows.slot(draft, demands.values(), notice)
    if slot is not None and slot.announce_at <= draft.now:
        return
    for who in demands:
        found = _window(who, rollout, until=None)
        if slot is not None:
            found = replace(found, kind=BlockerKind.ANNOUNCEMENT, until=slot.announce_at, opens_at=slot.not_before)
        yield found


def _window(who: str, rollout: str | None, until: datetime | None) -> Blocker:
    """The window of a scope, or of the rollout."""
    if who == rollout:
        return Blocker(kind=BlockerKind.WINDOW, until=until, rollout=rollout)
    return Blocker(kind=BlockerKind.WINDOW, until=until, scope=who)


def _arrivals(draft: Draft, host: str) -> Iterator[Blocker]:
    for operation, _ in placement.arriving_at(draft, host):
        yield Blocker(kind=BlockerKind.HOST_BUSY, operation=operation.id)


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
    elif unapproved:
        if draft.now < expiry_from:
            yield Blocker(kind=BlockerKind.START_UP, until=expiry_from)
        shown = all(draft.edges.have_shown(event, operation.host) for event in unapproved)
        if not shown and draft.now < until + draft.edges.patience:
            yield Blocker(kind=BlockerKind.EDGE, until=until + draft.edges.patience, host=operation.host)


def _earlier_deletions(draft: Draft, operation: Operation, events: list[Event]) -> Iterator[Blocker]:
    for mine in events:
        for other in draft.awaited_deletions_in(mine.scope):
            until = draft.operation(other.operation).expires_at
            if other.operation != operation.id and draft.now < until and other.not_before <= mine.not_before:
                yield _held_by(BlockerKind.EARLIER_DELETION, other, until=until)


def _maintenance_blockers(draft: Draft, operation: Operation, events: list[Event]) -> Iterator[Blocker]:
    """Windows, update domains and budgets, which hold for planned maintenance only."""
    demands = windows.all_demands(draft, operation.vms, operation.rollout)
    together = windows.next_open(demands.values(), draft.now)
    for who, wanted in demands.items():
        if not windows.is_open(wanted, draft.now):
            yield _window(who, operation.rollout, until=together)
    for mine in events:
        for other in draft.started_events_in(mine.scope):
            excluded = is_excluded(mine.update_domain, [other.update_domain])
            if excluded and draft.operation(other.operation).excludes_others:
                yield _held_by(BlockerKind.UPDATE_DOMAIN, other)
    for mine in events:
        allowed, started = draft.allowed_down(mine.scope), draft.started_events_in(mine.scope)
        if len(mine.resources) > allowed:
            yield Blocker(kind=BlockerKind.BUDGET, scope=mine.scope)
        elif len({*mine.resources, *(name for other in started for name in other.resources)}) > allowed:
            yield _held_by(BlockerKind.BUDGET, _oldest(started))


def _oldest(events: Iterable[Event]) -> Event:
    return min(events, key=lambda event: (event.created_at, event.id))


def _held_by(kind: BlockerKind, other: Event, until: datetime | None = None) -> Blocker:
    return Blocker(kind=kind, until=until, scope=other.scope, event=other.id, operation=other.operation)
