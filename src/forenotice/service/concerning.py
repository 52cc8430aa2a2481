"""What is live about one VM, host or group: each event with why it waits, and what whoever asks may do."""

from forenotice.core import documents, explanations
from forenotice.core.draft import Draft
from forenotice.core.fleet import group_key
from forenotice.core.operations import Event, Status
from forenotice.core.roles import Access
from forenotice.service import overview, views
from forenotice.service.calls import View
from forenotice.service.context import Service, new_id
from forenotice.store.transaction import Reader

MOST = 20


def vm(service: Service, name: str, access: Access) -> View:
    with service.store.read() as reader:
        # Of each kind one can wait for a VM, and one be under way: that is never more.
        found = reader.list_events(None, MOST + 1, live=True, vm=name, seen=access.scopes)
        return _explained(service, reader, _urgent(found), access)


def group(service: Service, name: str, access: Access) -> View:
    with service.store.read() as reader:
        found = reader.overview.live(MOST + 1, scope=group_key(name), seen=access.scopes)
        return _explained(service, reader, {life.id: life.operation for life in found}, access)


def host(service: Service, name: str, access: Access) -> View:
    """For whoever may see hosts."""
    with service.store.read() as reader:
        return _explained(service, reader, reader.places.told_on(name, MOST + 1), access)


def planned(service: Service, access: Access, *, host: str | None = None) -> View:
    """Planned operations with the time when guests are told; none for those with limited scopes."""
    with service.store.read() as reader:
        known = reader.list_operations(None, MOST + 1, True, status=Status.PLANNED, host=host, seen=access.scopes)
        draft = Draft(
            reader.load_to_explain(operations=[each.id for each in known[:MOST]]),
            now=service.clock.now(),
            timing=service.timing,
            new_id=new_id,
        )
    items = [
        {
            **views.operation(each, []),
            "why": views.explanation(explanations.explain_operation(draft, each, service.expiry_from)),
        }
        for each in known[:MOST]
    ]
    return {"items": items, "more": len(known) > MOST}


def _urgent(events: list[Event]) -> dict[str, str]:
    in_order = documents.in_order(events)
    ordered = sorted(in_order, key=lambda event: (event.status is not Status.STARTED, event.not_before))
    return {event.id: event.operation for event in ordered}


def _explained(service: Service, reader: Reader, events: dict[str, str], access: Access) -> View:
    shown = dict(list(events.items())[:MOST])
    return {"items": overview.with_reasons(service, reader, shown, access), "more": len(events) > MOST}
