"""What a store promises, whichever database is behind it.

Every method raises UnavailableError when the database cannot be reached, is full or stays locked (then nothing of the
transaction was written, unless the connection broke during the commit itself), and UnsoundError when the database is
corrupt. Both leave the store usable: it recovers by itself once the database does. Times are aware and come back in
UTC, to the microsecond.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from forenotice.core.draft import Changes, World
from forenotice.core.fleet import Host, Scope, Vm
from forenotice.core.journal import Entry
from forenotice.core.operations import Event, EventType, Kind, Operation, Status
from forenotice.core.selecting import Selector
from forenotice.core.tenancy import Former
from forenotice.store.answers import Answers
from forenotice.store.idempotency import Remembered
from forenotice.store.mark import Mark
from forenotice.store.overview import Overview
from forenotice.store.places import Places
from forenotice.store.pruning import Pruning
from forenotice.store.rollouts import Rollouts
from forenotice.store.sessions import Sessions
from forenotice.store.subscriptions import Subscriptions
from forenotice.store.tokens import MOST_TOKENS, Token

View = tuple[Scope, tuple[Vm, ...], tuple[Event, ...]]


class Reader(Protocol):
    """One consistent view: all that it reads is of the same moment. For one thread, inside its `with` only."""

    @property
    def rollouts(self) -> Rollouts: ...

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

    def load_to_explain(self, *, operations: Collection[str] = (), events: Collection[str] = ()) -> World:
        """What tells why these operations, or those of these events, wait; not enough to decide anything.

        Each comes with its VMs, their scopes, and all its events, in the order of their scopes. Of others, only what
        may be in the way: what has started on those VMs' hosts, and in those scopes what has started or is a deletion.
        """

    def load_to_schedule(self, vms: Collection[str], *, targets: bool = False, asked_by: bool = False) -> World:
        """What a decision about these VMs alone needs, however many others share their hosts.

        Each comes with its host, its scope with all live events, and the live operations that name it; a scope that
        limits its users' operations with all its VMs. `targets` adds every host that could take one, and where the
        groups have which domains; `asked_by` how many users' operations are live in the fleet, by who asked for them.
        """

    def load_hosts(self, names: Collection[str], vms: Collection[str] = ()) -> World:
        """These hosts with their VMs, and these VMs: nothing else."""

    def load_targets(self, scopes: Collection[str]) -> World:
        """Where VMs of these scopes could go: what `targets` adds above, and nothing else."""

    def load_to_approve(
        self, scopes: Collection[str], vms: Collection[str], ended_since: datetime | None = None
    ) -> World:
        """These VMs alone; the live events of these scopes, and those that ended since, with their operations.

        Of other scopes' events it is only told which operations wait for one of them to be approved.
        """

    def emptier_hosts(self, limit: int) -> list[str]:
        """Some that are not cordoned: those without any VM first."""

    def load_fleet(self) -> World:
        """All hosts, VMs, scopes and addresses, all live operations with all their events."""

    def due(self, now: datetime, limit: int) -> list[str]:
        """Ids of live operations due by `now` that nobody has claimed beyond `now`, by NotBefore, then by age."""

    def next_due(self, now: datetime) -> datetime | None:
        """The earliest moment at which `due` gives something, `now` if it already does; None: nothing is planned."""

    def last_entry(self) -> tuple[int, datetime] | None:
        """Position and time of the newest journal entry."""

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

    def views(self, scopes: Sequence[str] | None = None) -> Iterator[View]:
        """Each scope that is a group or has VMs, by key, with its VMs by name and live events by age; None: all.

        Streamed: it never holds more than a few thousand scopes, and ends with the `with` of the reader.
        """

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

    def scopes(self, keys: Collection[str]) -> dict[str, Scope]:
        """Those that exist."""

    def former(self, keys: Collection[str]) -> dict[str, Former]:
        """Which of these scope keys were removed at least once."""

    def moving_to(self, host: str) -> list[str]:
        """Ids of live operations that have chosen this host as a target."""

    def used(self, hosts: Collection[str]) -> dict[str, float]:
        """What the VMs on each of these hosts, and those on their way to it, take of its capacity."""

    def announced_hosts(self) -> list[str]:
        """Hosts that take nobody because their own maintenance is announced."""

    def counts(self) -> dict[tuple[str, str], int]:
        """How many events are live, by type and status."""

    def token_by_digest(self, digest: str) -> Token | None:
        """The token, even if revoked; also by the secret from before its last rotation."""

    def token_by_id(self, token_id: str) -> Token | None:
        """As above."""

    def list_tokens(
        self, after: str | None = None, limit: int = MOST_TOKENS, *, descending: bool = False
    ) -> list[Token]:
        """Oldest first, or `descending`, beyond the one with id `after`; revoked ones too."""

    def recall(self, token: str, key: str, since: datetime) -> Remembered | None:
        """What was remembered for this token and key at or after `since`."""

    def meta(self, key: str) -> str | None: ...

    def epoch(self) -> int:
        """0 before the first restore."""

    @property
    def subscriptions(self) -> Subscriptions: ...

    @property
    def answers(self) -> Answers: ...

    @property
    def places(self) -> Places: ...

    @property
    def pruning(self) -> Pruning: ...

    @property
    def overview(self) -> Overview: ...

    @property
    def sessions(self) -> Sessions: ...


class Transaction(Reader, Protocol):
    """A view that nobody else changes, and what is written through it: all of it or, on an exception, nothing."""

    database_time: datetime | None
    """The database server's time when this began; None: the database is a file on this machine."""

    def apply(self, changes: Changes) -> int:
        """Write all that changed and append the entries in order. Gives the newest position of the journal.

        Positions grow by one in the order of commits, so that a reader who has seen N has seen everything before N.
        """

    def wake(self, scopes: Collection[str], now: datetime) -> int:
        """Held Scheduled operations with an event in these scopes are due now. Gives how many were not before."""

    def replan(self, scopes: Collection[str], now: datetime) -> int:
        """Planned operations of hosts with VMs of these scopes are due now. Gives how many were not before."""

    def wake_held(self, now: datetime) -> int:
        """All held operations are due now. Gives how many were not before."""

    def set_heard(self, heard: Mapping[str, datetime]) -> None:
        """When scopes were last heard. Never goes back; unknown scopes are passed over."""

    def shift_heard(self, by: timedelta) -> None:
        """Move every last-heard: our own downtime does not count as silence."""

    def withhold(self, by: timedelta, before: datetime) -> None:
        """The clock jumped from `before`: notices and claims that were running then expire later by as much."""

    def set_back(self, now: datetime, ahead: datetime) -> None:
        """The clock was ahead: move back when scopes were heard, when rollouts and deliveries are due, and the times
        that separate scopes with the same key."""

    def renew_claims(self, process: str, ids: Collection[str], until: datetime) -> list[str]:
        """Keep claims of this process. Gives those that were still its own, in no particular order."""

    def release_claims(self, process: str | None) -> None:
        """Give up all claims of a process; None: of all."""

    def put_token(self, token: Token) -> None: ...

    def revoke_token(self, token_id: str, now: datetime) -> bool:
        """Whether it was there and not yet revoked."""

    def touch_tokens(self, used: Mapping[str, datetime]) -> None:
        """When tokens were last used, by id. Never goes back."""

    def remember(self, token: str, key: str, digest: str, status: int, result: bytes, now: datetime) -> None:
        """Replaces what was remembered for this token and key."""

    def forget_before(self, moment: datetime) -> None:
        """Drop what was remembered earlier than that."""

    def put_meta(self, key: str, value: str) -> None: ...

    def raise_epoch(self, epoch: int) -> None:
        """Give every scope a tag of this epoch and an incarnation that goes on from there. Processes reload all."""


class Store(Protocol):
    """May be used by any number of threads at once."""

    def read(self) -> AbstractContextManager[Reader]:
        """Never waits for a writer. A statement that takes too long is ended: OverdueError."""

    def write(self, check: Callable[[], None] = lambda: None) -> AbstractContextManager[Transaction]:
        """The one writer over all threads and processes, so that what was read is still true when it commits.

        Durable when the `with` ends; rolled back when it raises. Not to be nested. Its connection is none of those that
        readers share. `check` is called before and during statements and before the commit: what it raises is raised.
        """

    def backup(self, path: Path) -> None:
        """A complete copy of one moment into a new file. RefusedError where the database has a way of its own."""

    def mark(self) -> Mark | None:
        """The mark beside the database from when it was last settled; None: there is none, or it is not a file."""

    def settle(self) -> None:
        """Checkpoint the write-ahead log into the file, and write the mark beside it.

        UnsoundError when the file has gone.
        """

    def changes(self, stop: threading.Event) -> Iterator[int]:
        """Journal positions as commits of any process arrive, until `stop`; -1: some may have been missed, reload all;
        0, now and then: it still listens.

        The first is the newest position at the moment of listening, so that nothing falls between loading and
        listening. Reconnects by itself. On SQLite, where no other process serves, it ends at once.
        """

    def close(self) -> None: ...
