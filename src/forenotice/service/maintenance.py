"""Operators' commands about operations and events."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from forenotice.core import announcements, errors, fleet, lifecycle, operations, roles, selectors
from forenotice.core.budgets import UserLimits
from forenotice.core.draft import Draft, World
from forenotice.core.operations import Kind
from forenotice.service import views, visibility
from forenotice.service.calls import Call, command
from forenotice.service.service import Service, UnitOfWork
from forenotice.store.fleet import HostFilter
from forenotice.store.transaction import Reader
from forenotice.views.maintenance import Event, Operation, Operations

PART = re.compile(r"[!*?:]")
"""What a part of a selector of hosts has, and no name."""


def schedule(
    service: Service,
    call: Call,
    *,
    kind: Kind,
    names: Sequence[str],
    notice: timedelta | None = None,
    reason: str = "",
) -> Operations:
    """One operation for each VM or host named, or host selected: all of them or none."""
    require_sound(call, kind, names)
    call = call.because(reason)

    def work(unit: UnitOfWork) -> Operations:
        meant = selected(unit.transaction, call, kind, names)
        draft = unit.draft(load(unit.transaction, kind, meant, service.limits), call)
        made = decide(draft, call, kind=kind, names=meant, notice=notice)
        unit.keep(draft)
        # A tenant names VMs of its own scopes and sees all that it has asked for: nothing is to be left out.
        return Operations(operations=[_view(draft, operation.id) for operation in made])

    return command(service, call, Operations, work)


def require_sound(call: Call, kind: Kind, names: Sequence[str]) -> None:
    """Refuse what can be refused without a look at the fleet."""
    call.access.require_kind(kind)
    call.access.require_names(names)
    if not names:
        raise errors.RefusedError("no VM or host is named: name at least one")
    for name, times in Counter(names).items():
        if PART.search(name) and "," not in name:
            selectors.of_hosts(name)
        else:
            fleet.require_name("VM or host", name)
        if times > 1:
            raise errors.RefusedError(f"{name} is named twice: name each once")


def selected(reader: Reader, call: Call, kind: Kind, names: Sequence[str]) -> Sequence[str]:
    """The names as they are, unless they are parts of a selector of hosts: then the hosts, without empty ones."""
    if not kind.traits.of_host or all(map(fleet.NAME.fullmatch, names)):
        return names
    selector = selectors.of_hosts(",".join(names))
    named = reader.worlds.hosts(selector.named, ()).hosts
    if missing := [name for name in selector.named if name not in named]:
        raise errors.NotFoundError(f"there is no host {missing[0]!r}", host=missing[0])
    found = reader.hosts.page(None, max(roles.NAMES_AT_ONCE.values()) + 1, HostFilter(name=selector))
    chosen = [host.name for host, vms in found if vms or host.name in named]
    if not chosen:
        raise errors.NotFoundError(f"no host with VMs is selected by {selector.text!r}", hosts=selector.text)
    call.access.require_names(chosen)
    return chosen


def load(reader: Reader, kind: Kind, names: Sequence[str], limits: UserLimits) -> World:
    targets = kind.traits.moves
    if kind.traits.of_host:
        arriving = [each for name in names for each in reader.operations.moving_to(name)]
        return reader.worlds.load(hosts=names, operations=arriving, targets=targets)
    return reader.worlds.to_schedule(names, targets=targets, asked_by=limits.any)


def decide(
    draft: Draft, call: Call, *, kind: Kind, names: Sequence[str], notice: timedelta | None
) -> list[operations.Operation]:
    """The operations, on a draft of what `load` gave: whether it is kept or thrown away is the caller's affair."""
    if call.access.scopes is not None:
        named = World(vms={name: vm for name in names if (vm := draft.world.vms.get(name))})
        shown = visibility.visible(draft, call.access.scopes, named)
        for name in names:
            shown.vm(name)
    return [
        announcements.schedule(
            draft, announcements.OperationSpec(kind=kind, name=name, notice=notice, reason=call.reason)
        )
        for name in names
    ]


def approve(service: Service, call: Call, event_id: str) -> Event:
    about: dict[str, str] = {}

    def work(unit: UnitOfWork) -> Event:
        draft = unit.draft(unit.transaction.worlds.load(events=[event_id]), call)
        event = draft.event(visibility.visible(draft, call.access.scopes).event(event_id).id)
        lifecycle.approve_as_operator(draft, event, call.actor)
        about.update(event=event.id, operation=event.operation, scope=event.scope)
        unit.keep(draft)
        shown = visibility.visible(draft, call.access.scopes)
        return views.event_of(shown.operation(event.operation), shown.event(event_id))

    return command(service, call, Event, work, asked="event.approve", about=about)


def cancel_event(service: Service, call: Call, event_id: str) -> Operation:
    """An operation is indivisible: with one of its events all are cancelled."""

    def work(unit: UnitOfWork) -> Operation:
        draft = unit.draft(unit.transaction.worlds.load(events=[event_id]), call)
        return _cancel(unit, draft, call, visibility.visible(draft, call.access.scopes).event(event_id).operation)

    return command(service, call, Operation, work)


def cancel_operation(service: Service, call: Call, operation_id: str) -> Operation:
    def work(unit: UnitOfWork) -> Operation:
        draft = unit.draft(unit.transaction.worlds.load(operations=[operation_id]), call)
        return _cancel(unit, draft, call, visibility.visible(draft, call.access.scopes).operation(operation_id).id)

    return command(service, call, Operation, work)


def _cancel(unit: UnitOfWork, draft: Draft, call: Call, operation_id: str) -> Operation:
    operation = draft.operation(operation_id)
    call.access.require_cancel(operation, draft.events_of(operation_id))
    lifecycle.cancel(draft, operation)
    unit.keep(draft)
    return _view(visibility.visible(draft, call.access.scopes), operation_id)


def _view(shown: Draft, operation_id: str) -> Operation:
    return views.operation(shown.operation(operation_id), shown.events_of(operation_id))
