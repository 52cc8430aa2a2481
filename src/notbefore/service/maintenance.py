"""Operators' commands about operations and events."""

from collections.abc import Sequence
from datetime import timedelta

from notbefore.core import approving, ending, errors, scheduling
from notbefore.core.draft import Draft
from notbefore.core.operations import Kind
from notbefore.service import views
from notbefore.service.calls import Call, View, command
from notbefore.service.context import Service, Session

MAX_NAMES = 10_000


def schedule(
    service: Service,
    call: Call,
    *,
    kind: Kind,
    names: Sequence[str],
    notice: timedelta | None = None,
    reason: str = "",
) -> View:
    """One operation for each VM or host named: all of them or none."""
    if not names or len(names) > MAX_NAMES or len(set(names)) != len(names):
        raise errors.RefusedError(f"name from 1 to {MAX_NAMES} of them, each once")

    def work(session: Session) -> View:
        load = session.transaction.load
        targets = kind.traits.moves
        world = load(hosts=names, targets=targets) if kind.traits.of_host else load(vms=names, targets=targets)
        draft = session.draft(world, by=call.actor)
        made = [
            scheduling.schedule(draft, scheduling.Request(kind=kind, name=name, notice=notice, reason=reason))
            for name in names
        ]
        session.keep(draft)
        return {"operations": [views.operation(operation, draft.events_of(operation.id)) for operation in made]}

    return command(service, call, work)


def approve(service: Service, call: Call, event_id: str) -> View:
    def work(session: Session) -> View:
        draft = session.draft(session.transaction.load(events=[event_id]), by=call.actor)
        event = draft.event(event_id)
        if not event.status.live:
            raise errors.ConflictError(f"event {event.id} is over: {event.status}", event=event.id, status=event.status)
        approving.approve(draft, event, call.actor)
        session.keep(draft)
        return views.event_of(draft.operation(event.operation), draft.event(event_id))

    return command(service, call, work)


def cancel_event(service: Service, call: Call, event_id: str) -> View:
    """An operation is indivisible: with one of its events all are cancelled."""

    def work(session: Session) -> View:
        draft = session.draft(session.transaction.load(events=[event_id]), by=call.actor)
        return _cancel(session, draft, draft.event(event_id).operation)

    return command(service, call, work)


def cancel_operation(service: Service, call: Call, operation_id: str) -> View:
    def work(session: Session) -> View:
        draft = session.draft(session.transaction.load(operations=[operation_id]), by=call.actor)
        return _cancel(session, draft, operation_id)

    return command(service, call, work)


def _cancel(session: Session, draft: Draft, operation_id: str) -> View:
    ending.cancel(draft, draft.operation(operation_id))
    session.keep(draft)
    return views.operation(draft.operation(operation_id), draft.events_of(operation_id))
