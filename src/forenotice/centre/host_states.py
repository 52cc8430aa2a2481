"""The states of hosts as the database has them, and which hosts an entry of the journal concerns."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from forenotice import publication
from forenotice.cluster.messages import EndedEvent, Fence, HostState
from forenotice.core import documents
from forenotice.core.fleet import Vm
from forenotice.core.journal import Entry
from forenotice.core.operations import Event
from forenotice.core.timing import ENDED_APPROVABLE
from forenotice.store.transaction import Reader

BEGINNING = datetime.fromtimestamp(0, UTC)
"""Of a journal without entries."""
OF_ALL = "database.restored"
"""The entry after which every state is another."""
OF_NONE = frozenset({"edge.lost", "edge.returned", "edge.forgotten"})
"""Entries of a host that change no state."""


def head(reader: Reader) -> tuple[Fence, datetime]:
    """Where the database is, and since when."""
    position, at = reader.journal.last() or (0, BEGINNING)
    return Fence(reader.meta.epoch(), position), at


@dataclass(slots=True)
class _Placed:
    """VMs of one scope on one host."""

    here: list[Vm] = field(default_factory=list)
    arriving: list[Vm] = field(default_factory=list)


def read(reader: Reader, hosts: Collection[str], now: datetime, speed: float) -> list[HostState]:
    """All of one moment."""
    fence, at = head(reader)
    world = reader.worlds.of_hosts(hosts, now - ENDED_APPROVABLE)
    live: dict[str, list[Event]] = {}
    ended: dict[str, list[EndedEvent]] = {}
    for event in world.events.values():
        if event.ended_at is None:
            # Guests on that host must not learn which VM or operator approved.
            live.setdefault(event.scope, []).append(replace(event, approved_by=None) if event.approved_by else event)
        else:
            ended.setdefault(event.scope, []).append(
                EndedEvent(id=event.id, scope=event.scope, ended_at=event.ended_at)
            )
    placed: dict[str, dict[str, _Placed]] = {host: {} for host in hosts}
    for vm in world.vms.values():
        if vm.host in placed:
            placed[vm.host].setdefault(vm.scope, _Placed()).here.append(vm)
    for operation in world.operations.values():
        for name, target in operation.targets.items():
            mover = world.vms.get(name)
            if mover is not None and target in placed and mover.host != target:
                placed[target].setdefault(mover.scope, _Placed()).arriving.append(mover)
    return [
        HostState(
            host=host,
            epoch=fence.epoch,
            position=fence.position,
            at=at,
            speed=speed,
            scopes=tuple(
                [
                    publication.of(world.scopes[key], vms.here, live.get(key, ()), vms.arriving)
                    for key, vms in sorted(scopes.items())
                ]
            ),
            ended=tuple([each for key, vms in scopes.items() if vms.here for each in ended.get(key, ())]),
        )
        for host, scopes in placed.items()
    ]


def concerned(reader: Reader, entries: Iterable[Entry]) -> set[str] | None:
    """The hosts whose states may be others after these entries; None: all."""
    named: set[str] = set()
    scopes: set[str] = set()
    for entry in entries:
        if entry.action == OF_ALL:
            return None
        if entry.action in OF_NONE:
            continue
        named.update(_hosts(entry))
        if entry.scope is not None:
            scopes.add(entry.scope)
    return named | {host for _, host in reader.worlds.places(scopes)}


def _hosts(entry: Entry) -> Iterator[str]:
    if entry.host is not None:
        yield entry.host
    # The host that a VM has left, and those that VMs are on their way to.
    source, targets = entry.data.get("source"), entry.data.get("targets")
    if isinstance(source, str):
        yield source
    if isinstance(targets, Mapping):
        yield from map(str, targets.values())


def has_lost(reader: Reader, fence: Fence, at: datetime) -> bool:
    """Whether the database lacks what was once published with this fence and time."""
    known, _ = head(reader)
    if documents.is_behind(*known, was=fence):
        return True
    if known.epoch != fence.epoch or fence.position == 0:
        return False
    page = reader.journal.page(after=fence.position - 1, limit=1)
    # An entry that was pruned is not there; one that is must be the same.
    return bool(page) and page[0][0] == fence.position and page[0][1].at != at
