"""The states of hosts as the database has them, and which hosts an entry of the journal concerns."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
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


def head(reader: Reader) -> tuple[Fence, datetime]:
    """Where the database is, and since when."""
    position, at = reader.journal.last() or (0, BEGINNING)
    return Fence(reader.meta.epoch(), position), at


def read(reader: Reader, hosts: Collection[str], now: datetime, speed: float) -> list[HostState]:
    """All of one moment."""
    fence, at = head(reader)
    world = reader.worlds.of_hosts(hosts, now - ENDED_APPROVABLE)
    live: dict[str, list[Event]] = {}
    ended: dict[str, list[EndedEvent]] = {}
    for event in world.events.values():
        if event.ended_at is None:
            # Who approved it is nobody's business on that host.
            live.setdefault(event.scope, []).append(replace(event, approved_by=None) if event.approved_by else event)
        else:
            ended.setdefault(event.scope, []).append(
                EndedEvent(id=event.id, scope=event.scope, ended_at=event.ended_at)
            )
    placed: dict[str, dict[str, list[Vm]]] = {host: {} for host in hosts}
    for vm in world.vms.values():
        placed[vm.host].setdefault(vm.scope, []).append(vm)
    return [
        HostState(
            host=host,
            epoch=fence.epoch,
            position=fence.position,
            at=at,
            speed=speed,
            scopes=tuple([publication.of(world.scopes[key], vms, live.get(key, ())) for key, vms in scopes.items()]),
            ended=tuple([each for key in scopes for each in ended.get(key, ())]),
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
        named.update(_hosts(entry))
        if entry.scope is not None:
            scopes.add(entry.scope)
    return named | {host for _, host in reader.worlds.places(scopes)}


def _hosts(entry: Entry) -> Iterator[str]:
    if entry.host is not None:
        yield entry.host
    # The host that a VM has left.
    source = entry.data.get("source")
    if isinstance(source, str):
        yield source


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
