"""What operators look at: lists, single things, explanations, documents, and the search by name."""

from collections.abc import Callable, Collection
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from forenotice.core import documents, driver_calls, errors, explanations, fleet, placement, selectors
from forenotice.core.draft import Draft, World
from forenotice.core.edges import EdgeState
from forenotice.core.operations import Event, EventType, Operation, Status
from forenotice.core.selectors import Selector
from forenotice.service import fleet_map, views, visibility
from forenotice.service.service import Service
from forenotice.store.events import EventFilter
from forenotice.store.fleet import GroupFilter, HostFilter, VmFilter
from forenotice.store.operations import OperationFilter
from forenotice.store.transaction import Reader
from forenotice.views import base, maintenance
from forenotice.views import fleet as shown
from forenotice.views.base import Matches, Page
from forenotice.views.edges import Edge
from forenotice.wire import document as wire_document
from forenotice.wire import versions

N = TypeVar("N", bound=shown.Host | shown.Vm | shown.Group)

VERSIONS = tuple(version.name for version in reversed(versions.ALL))
"""Newest first."""
MOST = 20
"""Of each noun."""
MEANT = frozenset("*?,!:")
"""A search with one of these is a pattern."""
LONGEST_PART = 62
"""With a wildcard at both ends it is as long as a pattern may be."""
FEW = 10
MOST_DRIFT = 1000
"""Of a host, or of all."""


def hosts(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    descending: bool = False,
    name: str | None = None,
    cordoned: bool | None = None,
) -> Page[shown.Host]:
    wanted = None if name is None else selectors.of_hosts(name)
    with service.store.read() as reader:
        found = reader.hosts.page(after, limit, HostFilter(name=wanted, cordoned=cordoned), descending=descending)
        names = [host.name for host, _ in found]
        used, drift = reader.hosts.used(names), reader.drift.counts(names)
    items = [
        views.host(host, vms, used[host.name], drift.get(host.name, 0), service.silent.get(host.name))
        for host, vms in found
    ]
    return base.page(items, limit, "name")


def host(service: Service, name: str) -> shown.Host:
    with service.store.read() as reader:
        draft = service.draft(reader.worlds.load(hosts=[name], operations=reader.operations.moving_to(name)))
        drift = reader.drift.counts([name])
    return views.loaded_host(draft, name, drift.get(name, 0), service.silent.get(name))


def drift(
    service: Service, *, host: str | None = None, vm: str | None = None, limit: int = MOST_DRIFT
) -> shown.FoundDrift:
    """How watched hosts differ from the fleet, by host and name."""
    with service.store.read() as reader:
        found = reader.drift.page(limit + 1, host=host, vm=vm)
    return shown.FoundDrift(items=[views.of(shown.Drift, each) for each in found[:limit]], more=len(found) > limit)


def edges(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    state: EdgeState | None = None,
    refused: bool | None = None,
) -> Page[Edge]:
    """By host, as this process hears them."""
    found = (
        edge
        for edge in service.edges.all()
        if (after is None or edge.host > after)
        and (state is None or edge.state is state)
        and (refused is None or bool(edge.refused) is refused)
    )
    return base.page(list(islice(found, limit)), limit, "host")


def edge(service: Service, host: str) -> Edge:
    found = service.edges.find(host)
    if found is None:
        raise errors.NotFoundError(f"host {host!r} has no edge", edge=host)
    return found


def vms(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    descending: bool = False,
    name: str | None = None,
    host: str | None = None,
    group: str | None = None,
    spot: bool | None = None,
    seen: Selector | None = None,
) -> Page[shown.Vm]:
    scope = None if group is None else fleet.group_key(group)
    wanted = None if name is None else selectors.of_names(name)
    with service.store.read() as reader:
        found = reader.vms.page(
            after, limit, VmFilter(name=wanted, host=host, scope=scope, spot=spot, seen=seen), descending=descending
        )
        scopes = reader.scopes.named({vm.scope for vm in found})
        drift = reader.drift.of_vms([vm.name for vm in found])
    now = service.clock.now()
    items = [
        views.vm(vm, scopes[vm.scope], now, service.timing, visibility.drift(drift.get(vm.name, ()), seen))
        for vm in found
    ]
    return base.page(items, limit, "name")


def vm(service: Service, name: str, seen: Selector | None = None) -> shown.Vm:
    with service.store.read() as reader:
        draft = service.draft(reader.worlds.load(vms=[name]), seen)
        drift = visibility.drift(reader.drift.of_vms([name]).get(name, ()), seen)
    found = draft.vm(name)
    return views.vm(found, draft.scope(found.scope), draft.now, service.timing, drift)


def groups(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    descending: bool = False,
    name: str | None = None,
    seen: Selector | None = None,
) -> Page[shown.Group]:
    wanted = None if name is None else selectors.of_scopes(name)
    with service.store.read() as reader:
        found = reader.scopes.groups(after, limit, GroupFilter(seen=seen, name=wanted), descending=descending)
    now = service.clock.now()
    return base.page([views.group(scope, vms, now, service.timing) for scope, vms in found], limit, "name")


def group(service: Service, name: str, seen: Selector | None = None) -> shown.Group:
    key = fleet.group_key(name)
    with service.store.read() as reader:
        draft = service.draft(reader.worlds.load(scopes=[key], members=True), seen)
    return views.group(draft.scope(key), len(draft.vms_in(key)), draft.now, service.timing)


def operations(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    live: bool | None = None,
    descending: bool = False,
    seen: Selector | None = None,
    **how: Any,
) -> Page[maintenance.Operation]:
    """Filters as in the store's list."""
    if not visibility.may_ask_for(seen, rollout=how.get("rollout")):
        return base.page([], limit, "id")
    with service.store.read() as reader:
        found = reader.operations.page(
            after, limit, OperationFilter(live=live, seen=seen, **how), descending=descending
        )
        draft = service.draft(reader.worlds.load(operations=[operation.id for operation in found]), seen)
    items = [views.operation(draft.operation(each.id), draft.events_of(each.id)) for each in found]
    return base.page(items, limit, "id")


def operation(service: Service, operation_id: str, seen: Selector | None = None) -> maintenance.Operation:
    with service.store.read() as reader:
        draft = service.draft(reader.worlds.load(operations=[operation_id]), seen)
    return views.operation(draft.operation(operation_id), draft.events_of(operation_id))


def events(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    live: bool | None = None,
    group: str | None = None,
    event_type: EventType | None = None,
    descending: bool = False,
    seen: Selector | None = None,
    **how: Any,
) -> Page[maintenance.Event]:
    """Filters as in the store's list; what was announced together stands in the document's order."""
    scope = None if group is None else fleet.group_key(group)
    with service.store.read() as reader:
        wanted = EventFilter(live=live, scope=scope, type=event_type, seen=seen, **how)
        found = reader.events.page(after, limit, wanted, descending=descending)
        draft = service.draft(reader.worlds.load(operations=[event.operation for event in found]), seen)
    items = {each.id: views.event_of(draft.operation(each.operation), draft.event(each.id)) for each in found}
    ordered = sorted(documents.in_order(found), key=lambda each: each.created_at, reverse=descending)
    page = base.page(list(items.values()), limit, "id")
    return Page(items=[items[each.id] for each in ordered], next=page.next)


def event(service: Service, event_id: str, seen: Selector | None = None) -> maintenance.Event:
    with service.store.read() as reader:
        draft = service.draft(reader.worlds.load(events=[event_id]), seen)
    found = draft.event(event_id)
    return views.event_of(draft.operation(found.operation), found)


def explain_event(service: Service, event_id: str, seen: Selector | None = None) -> maintenance.EventExplanation:
    with service.store.read() as reader:
        world = reader.worlds.to_explain(events=[event_id])
        event = service.draft(world, seen).event(event_id)
        draft = with_targets(service, reader, [event.operation], world)
    return explained(service, draft, draft.event(event.id), seen)


def explained(service: Service, draft: Draft, event: Event, seen: Selector | None) -> maintenance.EventExplanation:
    """Why an event waits, on a draft of what explains its operation."""
    # Of one that is over, as much as the caller sees of its operation.
    source = draft if event.status.live else visibility.visible(draft, seen)
    found = explanations.explain_event(source, event, service.expiry_from)
    found = visibility.explanation(draft, _with_calls(service, found, event.operation), seen)
    view: maintenance.EventExplanation = views.explanation(found, service.clock.behind)
    return view


def explain_operation(
    service: Service, operation_id: str, seen: Selector | None = None
) -> maintenance.OperationExplanation:
    with service.store.read() as reader:
        world = reader.worlds.to_explain(operations=[operation_id])
        operation = service.draft(world, seen).operation(operation_id)
        if operation.status is Status.PLANNED:
            world = reader.worlds.to_explain(operations=[operation_id, *reader.operations.moving_to(operation.host)])
        draft = with_targets(service, reader, [operation_id], world)
    # Of one that is over, as much as the caller sees of it.
    operation = draft.operation(operation_id) if operation.status.live else operation
    found = explanations.explain_operation(draft, operation, service.expiry_from)
    found = visibility.explanation(draft, _with_calls(service, found, operation_id), seen)
    view: maintenance.OperationExplanation = views.explanation(found, service.clock.behind)
    return view


def _with_calls(service: Service, found: explanations.Explanation, operation_id: str) -> explanations.Explanation:
    pending = service.calls.pending(operation_id)
    return found if pending is None else explanations.with_pending_calls(found, pending)


def document(service: Service, vm_name: str, version: str = VERSIONS[0], seen: Selector | None = None) -> bytes:
    wanted = service.versions.get(version)
    if wanted is None:
        raise errors.RefusedError(f"there is no api-version {version[:80]!r}: choose one of {', '.join(VERSIONS)}")
    with service.store.read() as reader:
        draft = service.draft(reader.worlds.load(vms=[vm_name]), seen)
    scope = draft.scope(draft.vm(vm_name).scope)
    return wire_document.render(documents.document(scope, draft.live_events_in(scope.key)), wanted)


def search(service: Service, text: str, *, see_hosts: bool, seen: Selector | None = None) -> shown.Found:
    """VMs, groups and hosts with this text in their name, prefixes first; with `*` or `?` the text is a pattern."""
    text = text.strip()
    # Refuses what was written, not what is made of it below.
    selector = selectors.of_hosts(text)
    found_hosts = _found(text, partial(hosts, service)) if see_hosts else None
    if selector.wanted_labels or selector.unwanted_labels:
        return shown.Found(vms=Matches(), groups=Matches(), hosts=found_hosts)
    found_vms = _found(text, partial(vms, service, seen=seen))
    return shown.Found(
        vms=Matches(items=fleet_map.with_states(service, found_vms.items), more=found_vms.more),
        groups=_found(text, partial(groups, service, seen=seen)),
        hosts=found_hosts,
    )


def _found(text: str, ask: Callable[..., Page[N]]) -> Matches[N]:
    found: dict[str, N] = {}
    for pattern in _patterns(text):
        if len(found) <= MOST:
            found = {each.name: each for each in (*found.values(), *ask(name=pattern, limit=MOST + 1).items)}
    return Matches(items=list(found.values())[:MOST], more=len(found) > MOST)


def _patterns(text: str) -> list[str]:
    if MEANT & set(text) or len(text) > LONGEST_PART:
        return [text]
    # The first alone is found at once, however large the fleet.
    return [f"{text}*", f"*{text}*"]


def with_targets(service: Service, reader: Reader, operations: Collection[str], world: World) -> Draft:
    """What explains operations: `world`, which was loaded for them, and where they can go."""
    moving = [each for key in operations if (each := world.operations[key]).kind.traits.moves and _wants_a_host(each)]
    if moving:
        _add_a_few(reader, world)
    found = service.draft(world)
    for operation in moving:
        if not placement.choose(found, operation, operation.vms).keys() >= set(operation.vms):
            _add(world, reader.worlds.targets({world.vms[name].scope for each in moving for name in each.vms}))
            return service.draft(world)
    return found


def _wants_a_host(operation: Operation) -> bool:
    return operation.status is Status.SCHEDULED or driver_calls.waits_for_a_host(operation)


def _add_a_few(reader: Reader, world: World) -> None:
    """Hosts, each with its VMs, and the VMs that move to any of them."""
    few = reader.hosts.emptier(FEW)
    arriving = {name for operation in world.operations.values() for name in operation.targets}
    found = reader.worlds.hosts(few, arriving)
    found.occupancy.update(dict.fromkeys(few, 0))
    for vm in found.vms.values():
        if vm.host in found.occupancy:
            found.occupancy[vm.host] += 1
    _add(world, found)


def _add(world: World, more: World) -> None:
    for kind in ("hosts", "vms", "occupancy", "lost_edges", "awaiting", "used", "incoming"):
        getattr(world, kind).update(getattr(more, kind))
