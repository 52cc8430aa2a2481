"""What is read in one transaction, and what is written: the same on SQLite and PostgreSQL.

Every method raises UnavailableError when the database cannot be reached, is full or stays locked (then nothing of the
transaction was written, unless the connection broke during the commit itself), and UnsoundError when the database is
corrupt. Both leave the store usable: it recovers by itself once the database does. Times are aware and come back in
UTC, to the microsecond.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from forenotice.core.draft import Changes, World
from forenotice.core.fleet import Host, Scope, Vm
from forenotice.core.journal import Entry
from forenotice.core.operations import Event, EventType, Kind, Operation, Status
from forenotice.core.roles import Former
from forenotice.core.selectors import Selector
from forenotice.store import (
    clock,
    events,
    fleet,
    former,
    idempotency,
    journal,
    meta,
    naming,
    operations,
    tokens,
    worlds,
)
from forenotice.store.driver_results import DriverResults
from forenotice.store.overview import Overview
from forenotice.store.places import Places
from forenotice.store.queries import Executor, Flavour
from forenotice.store.retention import Retention
from forenotice.store.rollouts import Rollouts
from forenotice.store.sessions import Sessions
from forenotice.store.subscriptions import Subscriptions

CHANNEL = "forenotice"
"""Where PostgreSQL tells other processes of new journal positions."""

_NOTIFY = "SELECT pg_notify(%s, %s)"


class Reader:
    """One consistent view: all that it reads is of the same moment. For one thread, inside its `with` only."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.rollouts = Rollouts(executor)

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
        """What a decision about the named things needs; unknown names are absent, event ids may be in any case.

        A named VM brings its host and scope, a named event its operation, a named operation its host and its targets.
        Each such host comes with all its VMs and live operations; each scope named, of those VMs, or of an event of
        those operations, with its live events; each event with its operation, each operation with all its events.
        `members` adds all VMs of the groups among those scopes; `targets` does too, adds every host that is neither
        cordoned nor to be updated or rebooted with its occupancy and what is used of its capacity, and tells which
        others await maintenance, and who is on the way to a host with a capacity.
        `addresses` tells which VM is known by each, and brings that VM alone. Operations come with their rollout, and
        scopes with a budget with their size.

        `to_explain`, not to decide: operations on other hosts come with their events in those scopes only.
        """
        wanted = worlds.Wanted(
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
        return worlds.load(self._executor, wanted)

    def load_to_explain(self, *, operations: Collection[str] = (), events: Collection[str] = ()) -> World:
        """What tells why these operations, or those of these events, wait; not enough to decide anything.

        Each comes with its VMs, their scopes, and all its events, in the order of their scopes. Of others, only what
        may be in the way: what has started on those VMs' hosts, and in those scopes what has started or is a deletion.
        """
        return worlds.load_to_explain(self._executor, operations, events)

    def load_to_schedule(self, vms: Collection[str], *, targets: bool = False, asked_by: bool = False) -> World:
        """What a decision about these VMs alone needs, however many others share their hosts.

        Each comes with its host, its scope with all live events, and the live operations that name it; a scope that
        limits its users' operations with all its VMs. `targets` adds every host that could take one, and where the
        groups have which domains; `asked_by` how many users' operations are live in the fleet, by who asked for them.
        """
        return worlds.load_to_schedule(self._executor, vms, targets, asked_by)

    def load_hosts(self, names: Collection[str], vms: Collection[str] = ()) -> World:
        """These hosts with their VMs, and these VMs: nothing else."""
        return worlds.load_hosts(self._executor, names, vms)

    def load_targets(self, scopes: Collection[str]) -> World:
        """Where VMs of these scopes could go: what `targets` adds above, and nothing else."""
        return worlds.load_targets(self._executor, scopes)

    def load_to_approve(
        self, scopes: Collection[str], vms: Collection[str], ended_since: datetime | None = None
    ) -> World:
        """These VMs alone; the live events of these scopes, and those that ended since, with their operations.

        Of other scopes' events it is only told which operations wait for one of them to be approved.
        """
        return worlds.load_to_approve(self._executor, scopes, vms, ended_since)

    def emptier_hosts(self, limit: int) -> list[str]:
        """Some that are not cordoned: those without any VM first."""
        return [row[0] for row in self._executor.rows(fleet.EMPTIER, limit=limit)]

    def load_fleet(self) -> World:
        """All hosts, VMs, scopes and addresses, all live operations with all their events."""
        return worlds.load_fleet(self._executor)

    def due(self, now: datetime, limit: int) -> list[str]:
        """Ids of live operations due by `now` that nobody has claimed beyond `now`, by NotBefore, then by age."""
        return operations.due(self._executor, now, limit)

    def next_due(self, now: datetime) -> datetime | None:
        """The earliest moment at which `due` gives something, `now` if it already does; None: nothing is planned."""
        return operations.next_due(self._executor, now)

    def last_entry(self) -> tuple[int, datetime] | None:
        """Position and time of the newest journal entry."""
        return journal.last(self._executor)

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
        """Entries with `after` < position < `before` and `since` <= at < `until` that match every filter given.

        An `action` that ends in `.` matches all that begin so; `without` leaves such out. Of a VM is what names it,
        what is of an event that named it, and what is of an operation that named it but of none of its events. `seen`:
        of these scopes only. `data` comes back as plain JSON values.
        """
        return journal.page(
            self._executor,
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

    def views(self, scopes: Sequence[str] | None = None) -> Iterator[tuple[Scope, tuple[Vm, ...], tuple[Event, ...]]]:
        """Each scope that is a group or has VMs, by key, with its VMs by name and live events by age; None: all.

        Streamed: it never holds more than a few thousand scopes, and ends with the `with` of the reader.
        """
        return worlds.views(self._executor, scopes)

    def list_hosts(
        self,
        after: str | None,
        limit: int,
        *,
        descending: bool = False,
        name: Selector | None = None,
        cordoned: bool | None = None,
    ) -> list[tuple[Host, int]]:
        """By name, beyond the name `after`, or `descending` before it; each with the number of its VMs.

        Filters as in all lists: one that is None does not filter, and `name` and `seen` are patterns.
        """
        how = {"descending": descending, "name": name, "cordoned": cordoned}
        return fleet.list_hosts(self._executor, after, limit, **how)

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
        """By name, as hosts; `seen`: those of these scopes, as in all lists."""
        how = {"name": name, "host": host, "scope": scope, "spot": spot, "seen": seen}
        return fleet.list_vms(self._executor, after, limit, descending=descending, **how)

    def list_groups(
        self,
        after: str | None,
        limit: int,
        seen: Selector | None = None,
        *,
        descending: bool = False,
        name: Selector | None = None,
    ) -> list[tuple[Scope, int]]:
        """By name, as hosts, each with the number of its VMs; `name` is of scopes' keys."""
        return fleet.list_groups(self._executor, after, limit, descending=descending, name=name, seen=seen)

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
        """Oldest first, or `descending`, beyond the one with id `after`; `live` None: ended ones too.

        An operation is `seen` by every scope that was told of it.
        """
        how = {"status": status, "host": host, "kind": kind, "rollout": rollout, "seen": seen}
        return operations.page(self._executor, after, limit, live, descending=descending, **how)

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
        """Oldest first, or `descending`, beyond the one with id `after`; `live` as above; `vm`: those that name it."""
        how = {"status": status, "type": event_type, "scope": scope, "seen": seen}
        return events.page(self._executor, after, limit, live, vm, descending=descending, **how)

    def scopes(self, keys: Collection[str]) -> dict[str, Scope]:
        """Those that exist."""
        return {scope.key: scope for scope in fleet.scopes_named(self._executor, keys)}

    def former(self, keys: Collection[str]) -> dict[str, Former]:
        """Which of these scope keys were removed at least once."""
        return former.named(self._executor, keys)

    def moving_to(self, host: str) -> list[str]:
        """Ids of live operations that have chosen this host as a target."""
        return operations.moving_to(self._executor, host)

    def used(self, hosts: Collection[str]) -> dict[str, float]:
        """What the VMs on each of these hosts, and those on their way to it, take of its capacity."""
        return worlds.used(self._executor, hosts)

    def announced_hosts(self) -> list[str]:
        """Hosts that take nobody because their own maintenance is announced."""
        return operations.announced_hosts(self._executor)

    def counts(self) -> dict[tuple[str, str], int]:
        """How many events are live, by type and status."""
        return events.counts(self._executor)

    def token_by_digest(self, digest: str) -> tokens.Token | None:
        """The token, even if revoked; also by the secret from before its last rotation."""
        return tokens.by_digest(self._executor, digest)

    def token_by_id(self, token_id: str) -> tokens.Token | None:
        """As above."""
        return tokens.by_id(self._executor, token_id)

    def list_tokens(
        self, after: str | None = None, limit: int = tokens.MOST_TOKENS, *, descending: bool = False
    ) -> list[tokens.Token]:
        """Oldest first, or `descending`, beyond the one with id `after`; revoked ones too."""
        return tokens.page(self._executor, after, limit, descending)

    def recall(self, token: str, key: str, since: datetime) -> idempotency.Remembered | None:
        """What was remembered for this token and key at or after `since`."""
        return idempotency.recall(self._executor, token, key, since)

    def epoch(self) -> int:
        """0 before the first restore."""
        return int(meta.get(self._executor, meta.EPOCH) or 0)

    def meta(self, key: str) -> str | None:
        return meta.get(self._executor, key)

    @property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(self._executor)

    @property
    def driver_results(self) -> DriverResults:
        return DriverResults(self._executor)

    @property
    def places(self) -> Places:
        return Places(self._executor)

    @property
    def retention(self) -> Retention:
        return Retention(self._executor)

    @property
    def overview(self) -> Overview:
        return Overview(self._executor)

    @property
    def sessions(self) -> Sessions:
        return Sessions(self._executor)


class Transaction(Reader):
    """A view that nobody else changes, and what is written through it: all of it or, on an exception, nothing."""

    def __init__(self, executor: Executor, database_time: datetime | None) -> None:
        super().__init__(executor)
        self.database_time = database_time
        """The database server's time when this began; None: the database is a file on this machine."""
        self._newest = journal.last(executor)

    def last_entry(self) -> tuple[int, datetime] | None:
        # Nobody else appends meanwhile.
        return self._newest

    def apply(self, changes: Changes) -> int:
        """Write all that changed and append the entries in order. Gives the newest position of the journal.

        Positions grow by one in the order of commits, so that a reader who has seen N has seen everything before N.
        """
        executor = self._executor
        fleet.put_hosts(executor, changes.hosts)
        fleet.put_scopes(executor, changes.scopes)
        fleet.put_vms(executor, changes.vms)
        operations.put(executor, changes.operations.values())
        events.put(executor, changes.events.values())
        self.rollouts.put(changes.rollouts.values())
        self.rollouts.put_stops(changes.stops.values())
        naming.put(executor, changes, self._newest[1] if self._newest else None)
        position = self._newest[0] if self._newest else 0
        if not changes.entries:
            return position
        if removed := [key for key, scope in changes.scopes.items() if scope is None]:
            former.put(executor, removed, changes.entries[-1].at)
        position = journal.append(executor, changes.entries, position)
        self._newest = (position, changes.entries[-1].at)
        if executor.flavour is Flavour.POSTGRESQL:
            executor.run_text(_NOTIFY, CHANNEL, str(position))
        return position

    def wake(self, scopes: Collection[str], now: datetime) -> int:
        """Held Scheduled operations with an event in these scopes are due now. Gives how many were not before."""
        return operations.wake(self._executor, scopes, now)

    def replan(self, scopes: Collection[str], now: datetime) -> int:
        """Planned operations of hosts with VMs of these scopes are due now. Gives how many were not before."""
        return operations.replan(self._executor, scopes, now)

    def wake_held(self, now: datetime) -> int:
        """All held operations are due now. Gives how many were not before."""
        return operations.wake_held(self._executor, now)

    def set_heard(self, heard: Mapping[str, datetime]) -> None:
        """When scopes were last heard. Never goes back; unknown scopes are passed over."""
        fleet.set_heard(self._executor, heard)

    def shift_heard(self, by: timedelta) -> None:
        """Move every last-heard: our own downtime does not count as silence."""
        fleet.shift_heard(self._executor, by)

    def withhold(self, by: timedelta, before: datetime) -> None:
        """The clock jumped from `before`: notices and claims that were running then expire later by as much."""
        operations.withhold(self._executor, by, before)

    def set_back(self, now: datetime, ahead: datetime) -> None:
        """The clock was ahead: move back when scopes were heard, when rollouts and deliveries are due, and the times
        that separate scopes with the same key."""
        by = ahead - now
        clock.set_back(self._executor, now, ahead)
        fleet.shift_heard(self._executor, -by)
        self.rollouts.set_back(by)
        self.subscriptions.set_back(by)

    def renew_claims(self, process: str, ids: Collection[str], until: datetime) -> list[str]:
        """Keep claims of this process. Gives those that were still its own, in no particular order."""
        return operations.renew_claims(self._executor, process, ids, until)

    def release_claims(self, process: str | None) -> None:
        """Give up all claims of a process; None: of all."""
        operations.release_claims(self._executor, process)

    def put_token(self, token: tokens.Token) -> None:
        tokens.put(self._executor, token)

    def revoke_token(self, token_id: str, now: datetime) -> bool:
        """Whether it was there and not yet revoked."""
        return tokens.revoke(self._executor, token_id, now)

    def touch_tokens(self, used: Mapping[str, datetime]) -> None:
        """When tokens were last used, by id. Never goes back."""
        tokens.touch(self._executor, used)

    def remember(self, token: str, key: str, digest: str, status: int, result: bytes, now: datetime) -> None:
        """Replaces what was remembered for this token and key."""
        remembered = idempotency.Remembered(digest=digest, status=status, result=result)
        idempotency.remember(self._executor, token, key, remembered, now)

    def forget_before(self, moment: datetime) -> None:
        """Drop what was remembered earlier than that."""
        idempotency.forget_before(self._executor, moment)

    def put_meta(self, key: str, value: str) -> None:
        meta.put(self._executor, key, value)

    def raise_epoch(self, epoch: int) -> None:
        """Give every scope a tag of this epoch and an incarnation that goes on from there. Processes reload all."""
        meta.put(self._executor, meta.EPOCH, str(epoch))
        fleet.raise_epoch(self._executor, epoch)
        if self._executor.flavour is Flavour.POSTGRESQL:
            self._executor.run_text(_NOTIFY, CHANNEL, "-1")
