"""The fleet as a map: hosts or groups by update domain, and in each cell its VMs with their state."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from forenotice.core.fleet import GROUP_PREFIX, STANDALONE_PREFIX, Scope, VmState, furthest, natural_key, vm_state
from forenotice.core.lifecycle import is_listening
from forenotice.core.selectors import Selector
from forenotice.service.service import Service
from forenotice.store.fleet import GroupFilter, Place
from forenotice.store.transaction import Reader
from forenotice.views.fleet import Cell, FleetMap, MappedVm, MapRow, Vm, VmWithState

T = TypeVar("T")

ROWS = 25
"""Hosts or groups of one page."""
STANDALONE = 100
"""VMs without a group, of one page."""
MOST_VMS = 3000
"""Of one page: large hosts or groups make it shorter; of one that is larger still, the first."""
MOST_SHOWN = 12
"""In one cell; the others are counted."""
MOST_DOMAINS = 20
"""Columns; what lies beyond is in the last."""

URGENCY = {state: place for place, state in enumerate(VmState)}

Row = tuple[MapRow, Sequence[Place], int]
"""A row without cells, the VMs that it shows, and how many of them in one cell."""


def by_host(service: Service, *, after: str | None = None, rows: int = ROWS) -> FleetMap:
    """A page of hosts by name, beyond the name `after`."""
    with service.store.read() as reader:
        shown, more = _page(reader.hosts.page(after, rows + 1), rows)
        places = reader.vms.placed_on([host.name for host, _ in shown], MOST_VMS)
        states = _states(service, reader, places)
    made = [
        (
            _row("host", host.name, vms, cordoned=host.cordoned, labels=dict(host.labels)),
            [place for place in places if place.host == host.name],
            MOST_SHOWN,
        )
        for host, vms in shown
    ]
    return _map(made, states, shown[-1][0].name if more else None)


def by_group(
    service: Service,
    *,
    after: str | None = None,
    seen: Selector | None = None,
    rows: int = ROWS,
    alone: int = STANDALONE,
) -> FleetMap:
    """A page of groups by name, then of standalone VMs, all in one row; beyond the scope with the key `after`."""
    behind = after or GROUP_PREFIX
    groups: list[tuple[Scope, int]] = []
    standalone: list[Place] = []
    further: str | None = None
    with service.store.read() as reader:
        if behind.startswith(GROUP_PREFIX):
            known = reader.scopes.groups(behind.removeprefix(GROUP_PREFIX), rows + 1, GroupFilter(seen=seen))
            groups, more = _page(known, rows)
            further = groups[-1][0].key if more else None
            behind = STANDALONE_PREFIX
        places = reader.vms.placed_in([scope.key for scope, _ in groups], MOST_VMS)
        if further is None:
            found = reader.vms.standalone(behind.removeprefix(STANDALONE_PREFIX), alone + 1, seen)
            standalone = found[:alone]
            further = standalone[-1].scope if len(found) > alone else None
        states = _states(service, reader, [*places, *standalone])
    made: list[Row] = [
        (
            _row("group", scope.name, vms, kind=scope.kind.value),
            [place for place in places if place.scope == scope.key],
            MOST_SHOWN,
        )
        for scope, vms in groups
    ]
    if standalone:
        made.append((_row("standalone", "", 0), standalone, alone))
    return _map(made, states, further)


def names(service: Service, *, host: str | None = None, scope: str | None = None) -> list[str]:
    """The VMs of a host, or of a scope: as many as a page can hold."""
    with service.store.read() as reader:
        found = reader.vms.placed_in([scope], MOST_VMS) if scope else reader.vms.placed_on([host or ""], MOST_VMS)
    return [place.vm for place in found]


def with_states(service: Service, vms: Collection[Vm]) -> list[VmWithState]:
    """VMs as operators see them, each with its state."""
    with service.store.read() as reader:
        named = furthest(reader.events.resources({vm.scope for vm in vms}))
    return [
        VmWithState(
            **msgspec.structs.asdict(vm),
            state=vm_state(named.get(vm.name), listening=vm.listening, missing=vm.missing),
        )
        for vm in vms
    ]


def _states(service: Service, reader: Reader, places: Collection[Place]) -> Mapping[str, VmState]:
    keys = {place.scope for place in places}
    named = furthest(reader.events.resources(keys))
    now = service.clock.now()
    listening = {key: is_listening(scope, now, service.timing) for key, scope in reader.scopes.named(keys).items()}
    missing = reader.drift.missing([place.vm for place in places])
    return {
        place.vm: vm_state(named.get(place.vm), listening=listening[place.scope], missing=place.vm in missing)
        for place in places
    }


def _page(found: list[tuple[T, int]], rows: int) -> tuple[list[tuple[T, int]], bool]:
    """As many as a page can hold, at least one, each with how many VMs it has; and whether there are more."""
    shown: list[tuple[T, int]] = []
    vms = 0
    for thing, its in found[:rows]:
        vms += its
        if shown and vms > MOST_VMS:
            break
        shown.append((thing, its))
    return shown, len(shown) < len(found)


def _row(noun: Any, name: str, vms: int, **more: Any) -> MapRow:
    return MapRow(noun=noun, name=name, vms=vms, left_out=0, cells=[], **more)


def _map(rows: Sequence[Row], states: Mapping[str, VmState], further: str | None) -> FleetMap:
    found = sorted({place.update_domain for _, places, _ in rows for place in places}) or [0]
    domains = found[:MOST_DOMAINS]
    counts = Counter(states.values())
    return FleetMap(
        domains=domains,
        folded=len(found) > len(domains),
        rows=[_filled(row, places, most, domains, states) for row, places, most in rows],
        states={state: counts[state] for state in VmState},
        next=further,
    )


def _filled(
    row: MapRow, places: Sequence[Place], most: int, domains: Sequence[int], states: Mapping[str, VmState]
) -> MapRow:
    columns: dict[int, list[MappedVm]] = {domain: [] for domain in domains}
    for place in sorted(places, key=lambda place: natural_key(place.vm)):
        columns[min(place.update_domain, domains[-1])].append(MappedVm(name=place.vm, state=states[place.vm]))
    return msgspec.structs.replace(
        row,
        vms=max(row.vms, len(places)),
        left_out=max(row.vms - len(places), 0),
        cells=[_cell(vms, most) for vms in columns.values()],
    )


def _cell(vms: Sequence[MappedVm], most: int) -> Cell:
    """The most urgent where not all are shown; by name all the same, so that they keep their places."""
    urgent = {vm.name for vm in sorted(vms, key=lambda vm: URGENCY[vm.state])[:most]}
    return Cell(vms=[vm for vm in vms if vm.name in urgent], more=len(vms) - len(urgent))
