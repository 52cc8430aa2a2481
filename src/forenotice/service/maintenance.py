"""Operators' commands about operations and events, and the preview of what scheduling would do."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

import msgspec

from forenotice.core import (
    announcements,
    errors,
    explanations,
    fleet,
    lifecycle,
    operations,
    placement,
    roles,
    selectors,
)
from forenotice.core.blockers import BlockerKind
from forenotice.core.draft import Draft, World
from forenotice.core.explanations import Explanation
from forenotice.core.operations import Kind, Status
from forenotice.service import views, visibility
from forenotice.service.calls import Call, command
from forenotice.service.service import Service, UnitOfWork, allowance_for
from forenotice.store.fleet import HostFilter
from forenotice.store.transaction import Reader
from forenotice.views import maintenance as shown
from forenotice.wire import document, versions

PART = re.compile(r"[!*?:]")
"""What a part of a selector of hosts has, and no name."""

NOT_YET_KNOWN = "not yet known"
"""In place of the id that an event will have."""


def schedule(
    service: Service,
    call: Call,
    *,
    kind: Kind,
    names: Sequence[str],
    notice: timedelta | None = None,
    duration: int | None = None,
    reason: str = "",
) -> shown.Operations:
    """One operation for each VM or host named, or host selected: all of them or none."""
    _require_sound(call, kind, names)
    call = call.because(reason)

    def work(unit: UnitOfWork) -> shown.Operations:
        meant = _selected(unit.transaction, call, kind, names)
        draft = unit.draft(_load(service, unit.transaction, kind, meant), call)
        made = _decide(draft, call, kind, meant, notice, duration)
        unit.keep(draft)
        # A tenant names VMs of its own scopes and sees all that it has asked for: nothing is to be left out.
        return shown.Operations(operations=[_view(draft, operation.id) for operation in made])

    return command(service, call, shown.Operations, work)


def preview(
    service: Service,
    call: Call,
    *,
    kind: Kind,
    names: Sequence[str],
    notice: timedelta | None = None,
    duration: int | None = None,
) -> shown.Preview:
    """The same decisions and the same refusals as by `schedule` at this moment; nothing is written or left out."""
    _require_sound(call, kind, names)
    with service.store.read() as reader:
        names = _selected(reader, call, kind, names)
        world = _load(service, reader, kind, names)
    draft = service.draft(
        world, by=call.actor, reason=call.reason, allowance=allowance_for(world), limits=service.limits
    )
    made = [operation.id for operation in _decide(draft, call, kind, names, notice, duration)]
    changes = draft.changes()
    told = {}
    """What the new events' scopes will read in the newest api-version, by the event's id."""
    for each in changes.documents:
        new = replace(each, events=tuple(event for event in each.events if event.operation in made))
        for event in msgspec.json.decode(document.render(new, versions.NEWEST))["Events"]:
            told[event["EventId"]] = {**event, "EventId": NOT_YET_KNOWN}
    # What is made will have other ids, so these are not shown.
    made_up = {*made, *told}

    def previewed(key: str) -> shown.PreviewedOperation:
        operation, known = draft.operation(key), _view(draft, key)
        found = explanations.explain_operation(draft, operation, service.expiry_from)
        if operation.status is Status.STARTED:
            found = _of_started(draft, operation, found)
        explained = views.explanation(visibility.explanation(draft, found, call.access.scopes))
        events = [
            shown.PreviewedEvent(**msgspec.structs.asdict(event) | {"id": "", "operation": ""}, told=told[event.id])
            for event in known.events
        ]
        return shown.PreviewedOperation(
            **msgspec.structs.asdict(known) | {"id": "", "events": events},
            earliest=explanations.start_at_the_earliest(draft, operation, service.expiry_from),
            latest=found.until,
            sentence=explained.sentence,
            sentences=explained.sentences,
            waiting_for=[
                {name: value for name, value in facts.items() if not (isinstance(value, str) and value in made_up)}
                for facts in explained.waiting_for
            ],
        )

    return shown.Preview(
        at=draft.now,
        kind=kind,
        operations=[previewed(key) for key in made],
        ends=[
            views.of(shown.EndedOperation, each)
            for key, each in changes.operations.items()
            if key not in made and not each.status.live
        ],
        cordons=[host.name for host in changes.hosts.values() if host is not None and host.cordoned],
    )


def _of_started(draft: Draft, operation: operations.Operation, found: Explanation) -> Explanation:
    """The driver does it then, except for VMs that have no target host."""
    waiting = tuple(facts for facts in found.waiting_for if facts["kind"] == BlockerKind.TARGET_HOST)
    sentences = ["It starts at once: it waits for no approval."]
    if waiting:
        sizes = {str(facts["vm"]): placement.size_in_the_way(draft, str(facts["vm"])) for facts in waiting}
        sentences.append(f"But {placement.without_target(draft, sizes)}.")
    return replace(found, sentences=tuple(sentences), until=operation.started_at, waiting_for=waiting)


def _require_sound(call: Call, kind: Kind, names: Sequence[str]) -> None:
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


def _selected(reader: Reader, call: Call, kind: Kind, names: Sequence[str]) -> Sequence[str]:
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


def _load(service: Service, reader: Reader, kind: Kind, names: Sequence[str]) -> World:
    targets = kind.traits.moves
    if kind.traits.of_host:
        arriving = [each for name in names for each in reader.operations.moving_to(name)]
        return reader.worlds.load(hosts=names, operations=arriving, targets=targets)
    return reader.worlds.to_schedule(names, targets=targets, asked_by=service.limits.any)


def _decide(
    draft: Draft, call: Call, kind: Kind, names: Sequence[str], notice: timedelta | None, duration: int | None
) -> list[operations.Operation]:
    """The operations, on a draft that is kept or thrown away."""
    if call.access.scopes is not None:
        named = World(vms={name: vm for name in names if (vm := draft.world.vms.get(name))})
        visible = visibility.visible(draft, call.access.scopes, named)
        for name in names:
            visible.vm(name)
    if kind.traits.of_host:
        for name in names:
            # Of all first: VMs of a host that fails may be on their way to the next by the time it is its turn.
            announcements.require_vms(draft, name)
    spec = partial(announcements.OperationSpec, kind=kind, notice=notice, duration=duration, reason=call.reason)
    return [announcements.schedule(draft, spec(name=name)) for name in names]


def approve(service: Service, call: Call, event_id: str) -> shown.Event:
    about: dict[str, str] = {}

    def work(unit: UnitOfWork) -> shown.Event:
        draft = unit.load(call, events=[event_id])
        event = draft.event(visibility.visible(draft, call.access.scopes).event(event_id).id)
        lifecycle.approve_as_operator(draft, event, call.actor)
        about.update(event=event.id, operation=event.operation, scope=event.scope)
        unit.keep(draft)
        visible = visibility.visible(draft, call.access.scopes)
        return views.event_of(visible.operation(event.operation), visible.event(event_id))

    return command(service, call, shown.Event, work, asked="event.approve", about=about)


def cancel_event(service: Service, call: Call, event_id: str) -> shown.Operation:
    """An operation is indivisible: with one of its events all are cancelled."""

    def work(unit: UnitOfWork) -> shown.Operation:
        draft = unit.load(call, events=[event_id])
        return _cancel(unit, draft, call, visibility.visible(draft, call.access.scopes).event(event_id).operation)

    return command(service, call, shown.Operation, work)


def cancel_operation(service: Service, call: Call, operation_id: str) -> shown.Operation:
    def work(unit: UnitOfWork) -> shown.Operation:
        draft = unit.load(call, operations=[operation_id])
        return _cancel(unit, draft, call, visibility.visible(draft, call.access.scopes).operation(operation_id).id)

    return command(service, call, shown.Operation, work)


def _cancel(unit: UnitOfWork, draft: Draft, call: Call, operation_id: str) -> shown.Operation:
    operation = draft.operation(operation_id)
    call.access.require_cancel(operation, draft.events_of(operation_id))
    lifecycle.cancel(draft, operation)
    unit.keep(draft)
    return _view(visibility.visible(draft, call.access.scopes), operation_id)


def _view(visible: Draft, operation_id: str) -> shown.Operation:
    return views.operation(visible.operation(operation_id), visible.events_of(operation_id))
