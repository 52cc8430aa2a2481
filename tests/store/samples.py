"""Things to keep, with the fields that a test does not care about filled in."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from forenotice.core.draft import Changes
from forenotice.core.fleet import Host, Scope, ScopeKind, Vm
from forenotice.core.journal import Entry
from forenotice.core.operations import Event, EventType, Kind, Operation, Source, Status
from forenotice.store.database import Store
from forenotice.store.journal import JournalFilter
from forenotice.store.queries import Executor
from forenotice.store.transaction import Reader

T = TypeVar("T")
Thing = Host | Scope | Vm | Operation | Event | Entry

NOW = datetime(2030, 5, 17, 8, 30, 0, 123457, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def host(name: str, **fields: Any) -> Host:
    return Host(name=name, **fields)


def scope(key: str, **fields: Any) -> Scope:
    kind = ScopeKind.STANDALONE if key.startswith("vm:") else ScopeKind.AVAILABILITY_SET
    defaults: dict[str, Any] = {"kind": kind, "tag": "t-" + key}
    return Scope(key=key, **defaults | fields)


def vm(name: str, host: str, scope: str, **fields: Any) -> Vm:
    return Vm(name=name, vm_id=f"id-{name}", host=host, scope=scope, **fields)


def operation(name: str, host: str = "a", status: Status = Status.SCHEDULED, **fields: Any) -> Operation:
    ended = None if status.live else NOW
    due = NOW + 15 * MINUTE if status.live else None
    defaults: dict[str, Any] = {
        "kind": Kind.HOST_UPDATE,
        "vms": (),
        "created_at": NOW,
        "not_before": NOW + 15 * MINUTE,
        "ended_at": ended,
        "due_at": due,
    }
    return Operation(**defaults | {"id": name, "host": host, "status": status} | fields)


def event(name: str, operation: str, scope: str, status: Status = Status.SCHEDULED, **fields: Any) -> Event:
    defaults: dict[str, Any] = {
        "resources": ("web-0",),
        "update_domain": 0,
        "type": EventType.FREEZE,
        "source": Source.PLATFORM,
        "description": "",
        "duration": 9,
        "created_at": NOW,
        "not_before": NOW + 15 * MINUTE,
        "ended_at": None if status.live else NOW,
    }
    return Event(**defaults | {"id": name, "operation": operation, "scope": scope, "status": status} | fields)


def entry(action: str, **fields: Any) -> Entry:
    at: datetime = fields.pop("at", NOW)
    return Entry(at=at, action=action, **fields)


def changes(
    *things: Thing,
    without_hosts: Iterable[str] = (),
    without_scopes: Iterable[str] = (),
    without_vms: Iterable[str] = (),
) -> Changes:
    return Changes(
        hosts=dict.fromkeys(without_hosts) | {each.name: each for each in _only(Host, things)},
        scopes=dict.fromkeys(without_scopes) | {each.key: each for each in _only(Scope, things)},
        vms=dict.fromkeys(without_vms) | {each.name: each for each in _only(Vm, things)},
        operations={each.id: each for each in _only(Operation, things)},
        events={each.id: each for each in _only(Event, things)},
        entries=_only(Entry, things),
    )


def _only(kind: type[T], things: Iterable[object]) -> list[T]:
    return [thing for thing in things if isinstance(thing, kind)]


def keep(store: Store, *things: Thing) -> int:
    with store.write() as transaction:
        return transaction.apply(changes(*things))


def executor_of(reader: Reader) -> Executor:
    """What is below the contract, for tests that look there."""
    assert isinstance(reader, Reader)
    return reader._db


def positions(reader: Reader, **wanted: Any) -> list[int]:
    """Of the entries that a filter and a page give."""
    paging = {name: wanted.pop(name) for name in ("after", "before", "limit", "newest_first") if name in wanted}
    return [position for position, _ in reader.journal.page(JournalFilter(**wanted), **paging)]


def hosts_of(store: Store) -> set[str]:
    with store.read() as reader:
        return {host.name for host, _ in reader.hosts.page(None, 10_000)}
