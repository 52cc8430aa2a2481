"""What operators look at."""

from datetime import datetime
from typing import Any

from notbefore.core import errors, explaining, fleet
from notbefore.core.draft import Draft, World
from notbefore.core.operations import Kind
from notbefore.service import views
from notbefore.service.calls import View
from notbefore.service.context import Service, new_id


def hosts(service: Service, *, after: str | None = None, limit: int = 100) -> View:
    with service.store.read() as reader:
        found = reader.list_hosts(after, limit)
    return _page([views.host(host, vms) for host, vms in found], limit, "name")


def host(service: Service, name: str) -> View:
    with service.store.read() as reader:
        draft = _draft(service, reader.load(hosts=[name]))
    return views.host(draft.host(name), len(draft.vms_on(name)))


def vms(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    host: str | None = None,
    group: str | None = None,
) -> View:
    with service.store.read() as reader:
        found = reader.list_vms(after, limit, host=host, scope=None if group is None else fleet.group_key(group))
        scopes = reader.scopes({vm.scope for vm in found})
    now = service.clock.now()
    return _page([views.vm(vm, scopes[vm.scope], now, service.timing) for vm in found], limit, "name")


def vm(service: Service, name: str) -> View:
    with service.store.read() as reader:
        draft = _draft(service, reader.load(vms=[name]))
    found = draft.vm(name)
    return views.vm(found, draft.scope(found.scope), draft.now, service.timing)


def groups(service: Service, *, after: str | None = None, limit: int = 100) -> View:
    with service.store.read() as reader:
        found = reader.list_groups(after, limit)
    now = service.clock.now()
    return _page([views.group(scope, vms, now, service.timing) for scope, vms in found], limit, "name")


def group(service: Service, name: str) -> View:
    key = fleet.group_key(name)
    with service.store.read() as reader:
        draft = _draft(service, reader.load(scopes=[key], members=True))
    return views.group(draft.scope(key), len(draft.vms_in(key)), draft.now, service.timing)


def operations(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    live: bool | None = None,
    host: str | None = None,
    kind: Kind | None = None,
) -> View:
    with service.store.read() as reader:
        found = reader.list_operations(after, limit, live=live, host=host, kind=kind)
        draft = _draft(service, reader.load(operations=[operation.id for operation in found]))
    return _page([views.operation(each, draft.events_of(each.id)) for each in found], limit, "id")


def operation(service: Service, operation_id: str) -> View:
    with service.store.read() as reader:
        draft = _draft(service, reader.load(operations=[operation_id]))
    return views.operation(draft.operation(operation_id), draft.events_of(operation_id))


def events(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    live: bool | None = None,
    group: str | None = None,
    vm: str | None = None,
) -> View:
    scope = None if group is None else fleet.group_key(group)
    with service.store.read() as reader:
        found = reader.list_events(after, limit, live=live, scope=scope, vm=vm)
        draft = _draft(service, reader.load(operations=[event.operation for event in found]))
    return _page([views.event_of(draft.operation(each.operation), each) for each in found], limit, "id")


def event(service: Service, event_id: str) -> View:
    with service.store.read() as reader:
        draft = _draft(service, reader.load(events=[event_id]))
    found = draft.event(event_id)
    return views.event_of(draft.operation(found.operation), found)


def explain(service: Service, event_id: str) -> View:
    with service.store.read() as reader:
        world = reader.load(events=[event_id])
        if any(operation.kind.traits.moves for operation in world.operations.values()):
            world = reader.load(events=[event_id], targets=True)
    draft = _draft(service, world)
    return views.explanation(explaining.explain(draft, draft.event(event_id), service.expiry_from))


def history(service: Service, *, after: int = 0, limit: int = 100, newest_first: bool = False, **filters: Any) -> View:
    """Filters as in the store's journal."""
    since, until = filters.get("since"), filters.get("until")
    for bound in (since, until):
        if isinstance(bound, datetime) and bound.tzinfo is None:
            raise errors.RefusedError("a time needs its zone: write 2026-01-31T12:00:00Z")
    with service.store.read() as reader:
        found = reader.journal(after=after, limit=limit, newest_first=newest_first, **filters)
    return _page([views.entry(seq, entry) for seq, entry in found], limit, "seq")


def _page(items: list[View], limit: int, key: str) -> View:
    return {"items": items, "next": items[-1][key] if len(items) == limit else None}


def _draft(service: Service, world: World) -> Draft:
    return Draft(world, now=service.clock.now(), timing=service.timing, new_id=new_id)
