"""The fleet as a map: hosts or groups by update domain, and in each cell its VMs with their state."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from forenotice.core.fleet import GROUP_PREFIX, STANDALONE_PREFIX, VmState, furthest, natural_key, vm_state
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


@dataclass(slots=True)
class _Row:
    noun: Literal["host", "group", "standalone"]
    name: str
    cordoned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    members: int = 0
    """All its VMs, also where more than a page can hold."""
    most_shown: int = MOST_SHOWN
    cells: dict[int, list[tuple[str, VmState]]] = field(default_factory=dict)
    """Names and states by update domain."""

    def put(self, place: Place, state: VmState) -> None:
        self.cells.setdefault(place.update_domain, []).append((place.vm, state))

    def view(self, domains: Sequence[int]) -> MapRow:
        columns: dict[int, list[tuple[str, VmState]]] = {domain: [] for domain in domains}
        for domain, vms in sorted(self.cells.items()):
            columns[min(domain, domains[-1])] += vms
        placed = sum(map(len, columns.values()))
        return MapRow(
            noun=self.noun,
            name=self.name,
            cordoned=self.cordoned,
            labels=dict(self.labels),
            kind=self.kind,
            vms=max(self.members, placed),
            left_out=max(self.members - placed, 0),
            cells=[_cell(vms, self.most_shown) for vms in columns.values()],
        )


def by_host(service: Service, *, after: str | None = None, rows: int = ROWS) -> FleetMap:
    """A page of hosts by name, beyond the name `after`."""
    with service.store.read() as reader:
        found = reader.hosts.page(after, rows + 1)
        shown, more = _page(found, rows)
        places = reader.vms.placed_on([host.name for host, _ in shown], MOST_VMS)
        known = _states(service, reader, places)
    made = [_Row("host", host.name, cordoned=host.cordoned, labels=host.labels, members=vms) for host, vms in shown]
    by_name = {row.name: row for row in made}
    for place in places:
        by_name[place.host].put(place, known[place.vm])
    return _map(made, made[-1].name if more else None)


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
    made: list[_Row] = []
    further: str | None = None
    with service.store.read() as reader:
        if behind.startswith(GROUP_PREFIX):
            groups = reader.scopes.groups(behind.removeprefix(GROUP_PREFIX), rows + 1, GroupFilter(seen=seen))
            shown, more = _page(groups, rows)
            made += [_Row("group", scope.name, kind=scope.kind.value, members=vms) for scope, vms in shown]
            further = shown[-1][0].key if more else None
            behind = STANDALONE_PREFIX
        places = reader.vms.placed_in([GROUP_PREFIX + row.name for row in made], MOST_VMS)
        by_key = {GROUP_PREFIX + row.name: row for row in made}
        if further is None:
            lone = reader.vms.standalone(behind.removeprefix(STANDALONE_PREFIX), alone + 1, seen)
            if len(lone) > alone:
                further = lone[alone - 1].scope
            if lone:
                row = _Row("standalone", "", most_shown=alone)
                made.append(row)
                by_key |= dict.fromkeys((place.scope for place in lone[:alone]), row)
                places += lone[:alone]
        known = _states(service, reader, places)
    for place in places:
        by_key[place.scope].put(place, known[place.vm])
    return _map(made, further)


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
        VmWithState(**msgspec.structs.asdict(vm), state=vm_state(named.get(vm.name), listening=vm.listening))
        for vm in vms
    ]


def _states(service: Service, reader: Reader, places: Collection[Place]) -> Mapping[str, VmState]:
    keys = {place.scope for place in places}
    named = furthest(reader.events.resources(keys))
    now = service.clock.now()
    listening = {key: is_listening(scope, now, service.timing) for key, scope in reader.scopes.named(keys).items()}
    return {place.vm: vm_state(named.get(place.vm), listening=listening[place.scope]) for place in places}


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


def _map(rows: Sequence[_Row], further: str | None) -> FleetMap:
    found = sorted({domain for row in rows for domain in row.cells}) or [0]
    domains = found[:MOST_DOMAINS]
    counts = Counter(state for row in rows for vms in row.cells.values() for _, state in vms)
    return FleetMap(
        domains=domains,
        folded=len(found) > len(domains),
        rows=[row.view(domains) for row in rows],
        states={state: counts[state] for state in VmState},
        next=further,
    )


def _cell(vms: list[tuple[str, VmState]], most: int) -> Cell:
    """The most urgent where not all are shown; by name all the same, so that they keep their places."""
    by_name = sorted(vms, key=lambda vm: natural_key(vm[0]))
    shown = set(by_name if len(vms) <= most else sorted(by_name, key=lambda vm: URGENCY[vm[1]])[:most])
    return Cell(
        vms=[MappedVm(name=name, state=state) for name, state in by_name if (name, state) in shown],
        more=len(vms) - len(shown),
    )
