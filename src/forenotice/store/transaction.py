"""The contract's reader and transaction, over one session."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from forenotice.core.draft import Changes, World
from forenotice.core.fleet import Host, Scope, Vm
from forenotice.core.journal import Entry
from forenotice.core.operations import Event, EventType, Kind, Operation, Status
from forenotice.core.selecting import Selector
from forenotice.core.tenancy import Former
from forenotice.store import (
    clock,
    contract,
    events,
    fleet,
    former,
    idempotency,
    journal,
    loading,
    meta,
    naming,
    operations,
    tokens,
)
from forenotice.store.answers import Answers
from forenotice.store.overview import Overview
from forenotice.store.places import Places
from forenotice.store.pruning import Pruning
from forenotice.store.rollouts import Rollouts
from forenotice.store.session import Flavour, Session
from forenotice.store.sessions import Sessions
from forenotice.store.subscriptions import Subscriptions

CHANNEL = "forenotice"
"""Where PostgreSQL tells other processes of new journal positions."""

_NOTIFY = "SELECT pg_notify(%s, %s)"


class SqlReader:
    def __init__(self, session: Session) -> None:
        self._session = session
        self.rollouts = Rollouts(session)

    def load(
        self,
        *,
        hosts: Collection[str] = (),
        vms: Collection[str] = (),
        scopes: Collection[str] = (),
        operations: Collection[str] = (),
        events: Collection[str] = (),
        addresses: Collection[str] = (),
        rollouts: Collection[str] = (),
        targets: bool = False,
        members: bool = False,
        to_explain: bool = False,
    ) -> World:
        wanted = loading.Wanted(
            hosts=hosts,
            vms=vms,
            scopes=scopes,
            operations=operations,
            events=events,
            addresses=addresses,
            rollouts=rollouts,
            targets=targets,
            members=members,
            to_explain=to_explain,
        )
        return loading.load(self._session, wanted)

    def load_to_explain(self, *, operations: Collection[str] = (), events: Collection[str] = ()) -> World:
        return loading.load_to_explain(self._session, operations, events)

    def load_to_schedule(self, vms: Collection[str], *, targets: bool = False, asked_by: bool = False) -> World:
        return loading.load_to_schedule(self._session, vms, targets, asked_by)

    def load_hosts(self, names: Collection[str], vms: Collection[str] = ()) -> World:
        return loading.load_hosts(self._session, names, vms)

    def load_targets(self, scopes: Collection[str]) -> World:
        return loading.load_targets(self._session, scopes)

    def load_to_approve(
        self, scopes: Collection[str], vms: Collection[str], ended_since: datetime | None = None
    ) -> World:
        return loading.load_to_approve(self._session, scopes, vms, ended_since)

    def emptier_hosts(self, limit: int) -> list[str]:
        return [row[0] for row in self._session.rows(fleet.EMPTIER, limit=limit)]

    def load_fleet(self) -> World:
        return loading.load_fleet(self._session)

    def due(self, now: datetime, limit: int) -> list[str]:
        return operations.due(self._session, now, limit)

    def next_due(self, now: datetime) -> datetime | None:
        return operations.next_due(self._session, now)

    def last_entry(self) -> tuple[int, datetime] | None:
        return journal.last(self._session)

    def journal(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 100,
        newest_first: bool = False,
        action: str | None = None,
        scope: str | None = None,
        event: str | None = None,
        operation: str | None = None,
        host: str | None = None,
        vm: str | None = None,
        rollout: str | None = None,
        by: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        seen: Selector | None = None,
        without: str | None = None,
    ) -> list[tuple[int, Entry]]:
        return journal.page(
            self._session,
            limit=limit,
            newest_first=newest_first,
            since=since,
            until=until,
            seen=seen,
            filters={
                "after": after,
                "before": before,
                "action": action,
                "scope": scope,
                "event": event.upper() if event else None,
                "operation": operation,
                "host": host,
                "vm": vm,
                "rollout": rollout,
                "author": by,
                "without": without,
            },
        )

    def views(self, scopes: Sequence[str] | None = None) -> Iterator[contract.View]:
        return loading.views(self._session, scopes)

    def list_hosts(
        self,
        after: str | None,
        limit: int,
        *,
        descending: bool = False,
        name: Selector | None = None,
        cordoned: bool | None = None,
    ) -> list[tuple[Host, int]]:
        how = {"descending": descending, "name": name, "cordoned": cordoned}
        return fleet.list_hosts(self._session, after, limit, **how)

    def list_vms(
        self,
        after: str | None,
        limit: int,
        *,
        descending: bool = False,
        name: Selector | None = None,
        host: str | None = None,
        scope: str | None = None,
        spot: bool | None = None,
        seen: Selector | None = None,
    ) -> list[Vm]:
        how = {"name": name, "host": host, "scope": scope, "spot": spot, "seen": seen}
        return fleet.list_vms(self._session, after, limit, descending=descending, **how)

    def list_groups(
        self,
        after: str | None,
        limit: int,
        seen: Selector | None = None,
        *,
        descending: bool = False,
        name: Selector | None = None,
    ) -> list[tuple[Scope, int]]:
        return fleet.list_groups(self._session, after, limit, descending=descending, name=name, seen=seen)

    def list_operations(
        self,
        after: str | None,
        limit: int,
        live: bool | None,
        *,
        descending: bool = False,
        status: Status | None = None,
        host: str | None = None,
        kind: Kind | None = None,
        rollout: str | None = None,
        seen: Selector | None = None,
    ) -> list[Operation]:
        how = {"status": status, "host": host, "kind": kind, "rollout": rollout, "seen": seen}
        return operations.page(self._session, after, limit, live, descending=descending, **how)

    def list_events(
        self,
        after: str | None,
        limit: int,
        live: bool | None,
        *,
        descending: bool = False,
        status: Status | None = None,
        event_type: EventType | None = None,
        scope: str | None = None,
        vm: str | None = None,
        seen: Selector | None = None,
    ) -> list[Event]:
        how = {"status": status, "type": event_type, "scope": scope, "seen": seen}
        return events.page(self._session, after, limit, live, vm, descending=descending, **how)

    def scopes(self, keys: Collection[str]) -> dict[str, Scope]:
        return {scope.key: scope for scope in fleet.scopes_named(self._session, keys)}

    def former(self, keys: Collection[str]) -> dict[str, Former]:
        return former.named(self._session, keys)

    def moving_to(self, host: str) -> list[str]:
        return operations.moving_to(self._session, host)

    def used(self, hosts: Collection[str]) -> dict[str, float]:
        return loading.used(self._session, hosts)

    def announced_hosts(self) -> list[str]:
        return operations.announced_hosts(self._session)

    def counts(self) -> dict[tuple[str, str], int]:
        return events.counts(self._session)

    def token_by_digest(self, digest: str) -> tokens.Token | None:
        return tokens.by_digest(self._session, digest)

    def token_by_id(self, token_id: str) -> tokens.Token | None:
        return tokens.by_id(self._session, token_id)

    def list_tokens(
        self, after: str | None = None, limit: int = tokens.MOST_TOKENS, *, descending: bool = False
    ) -> list[tokens.Token]:
        return tokens.page(self._session, after, limit, descending)

    def recall(self, token: str, key: str, since: datetime) -> idempotency.Remembered | None:
        return idempotency.recall(self._session, token, key, since)

    def epoch(self) -> int:
        return int(meta.get(self._session, meta.EPOCH) or 0)

    def meta(self, key: str) -> str | None:
        return meta.get(self._session, key)

    @property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(self._session)

    @property
    def answers(self) -> Answers:
        return Answers(self._session)

    @property
    def places(self) -> Places:
        return Places(self._session)

    @property
    def pruning(self) -> Pruning:
        return Pruning(self._session)

    @property
    def overview(self) -> Overview:
        return Overview(self._session)

    @property
    def sessions(self) -> Sessions:
        return Sessions(self._session)


class SqlTransaction(SqlReader):
    def __init__(self, session: Session, database_time: datetime | None) -> None:
        super().__init__(session)
        self.database_time = database_time
        self._newest = journal.last(session)

    def last_entry(self) -> tuple[int, datetime] | None:
        # Nobody else appends meanwhile.
        return self._newest

    def apply(self, changes: Changes) -> int:
        session = self._session
        fleet.put_hosts(session, changes.hosts)
        fleet.put_scopes(session, changes.scopes)
        fleet.put_vms(session, changes.vms)
        operations.put(session, changes.operations.values())
        events.put(session, changes.events.values())
        self.rollouts.put(changes.rollouts.values())
        self.rollouts.put_stops(changes.stops.values())
        naming.put(session, changes, self._newest[1] if self._newest else None)
        position = self._newest[0] if self._newest else 0
        if not changes.entries:
            return position
        if removed := [key for key, scope in changes.scopes.items() if scope is None]:
            former.put(session, removed, changes.entries[-1].at)
        position = journal.append(session, changes.entries, position)
        self._newest = (position, changes.entries[-1].at)
        if session.flavour is Flavour.POSTGRESQL:
            session.run_text(_NOTIFY, CHANNEL, str(position))
        return position

    def wake(self, scopes: Collection[str], now: datetime) -> int:
        return operations.wake(self._session, scopes, now)

    def replan(self, scopes: Collection[str], now: datetime) -> int:
        return operations.replan(self._session, scopes, now)

    def wake_held(self, now: datetime) -> int:
        return operations.wake_held(self._session, now)

    def set_heard(self, heard: Mapping[str, datetime]) -> None:
        fleet.set_heard(self._session, heard)

    def shift_heard(self, by: timedelta) -> None:
        fleet.shift_heard(self._session, by)

    def withhold(self, by: timedelta, before: datetime) -> None:
        operations.withhold(self._session, by, before)

    def set_back(self, now: datetime, ahead: datetime) -> None:
        by = ahead - now
        clock.set_back(self._session, now, ahead)
        fleet.shift_heard(self._session, -by)
        self.rollouts.set_back(by)
        self.subscriptions.set_back(by)

    def renew_claims(self, process: str, ids: Collection[str], until: datetime) -> list[str]:
        return operations.renew_claims(self._session, process, ids, until)

    def release_claims(self, process: str | None) -> None:
        operations.release_claims(self._session, process)

    def put_token(self, token: tokens.Token) -> None:
        tokens.put(self._session, token)

    def revoke_token(self, token_id: str, now: datetime) -> bool:
        return tokens.revoke(self._session, token_id, now)

    def touch_tokens(self, used: Mapping[str, datetime]) -> None:
        tokens.touch(self._session, used)

    def remember(self, token: str, key: str, digest: str, status: int, result: bytes, now: datetime) -> None:
        remembered = idempotency.Remembered(digest=digest, status=status, result=result)
        idempotency.remember(self._session, token, key, remembered, now)

    def forget_before(self, moment: datetime) -> None:
        idempotency.forget_before(self._session, moment)

    def put_meta(self, key: str, value: str) -> None:
        meta.put(self._session, key, value)

    def raise_epoch(self, epoch: int) -> None:
        meta.put(self._session, meta.EPOCH, str(epoch))
        fleet.raise_epoch(self._session, epoch)
        if self._session.flavour is Flavour.POSTGRESQL:
            self._session.run_text(_NOTIFY, CHANNEL, "-1")
