"""What is read in one transaction, and what is written: the same on SQLite and PostgreSQL.

Every method raises UnavailableError when the database cannot be reached, is full or stays locked (then nothing of the
transaction was written, unless the connection broke during the commit itself), and UnsoundError when the database is
corrupt. Both leave the store usable: it recovers by itself once the database does. Times are aware and come back in
UTC, to the microsecond.
"""

from datetime import datetime
from functools import cached_property

from forenotice.core.draft import Changes
from forenotice.store import schema
from forenotice.store.edges import Edges
from forenotice.store.events import Events
from forenotice.store.fleet import Hosts, Scopes, Vms
from forenotice.store.inventory import Definitions, Drifts
from forenotice.store.journal import Journal
from forenotice.store.leases import Leases
from forenotice.store.operations import DriverResults, Operations
from forenotice.store.queries import Executor, Flavour, Repository
from forenotice.store.retention import Retention
from forenotice.store.rollouts import Rollouts
from forenotice.store.subscriptions import Subscriptions
from forenotice.store.tokens import Sessions, StoredResponses, Tokens
from forenotice.store.worlds import Worlds

CHANNEL = "forenotice"
"""Where PostgreSQL tells other processes of new journal positions."""

_EPOCH = "epoch"

# A second becomes a microsecond, so the order stays: it decides what a successor of the same name is shown.
_SET_BACK = "UPDATE {0} SET {1} = :now - (:ahead - {1}) / 1000000 WHERE {1} > :now"
_MOMENTS = {
    "former_scopes": ("ended_at", "ended_before"),
    "events": ("created_at",),
    "edges": ("since", "lost_since"),
    "tokens": ("created_at", "last_used_at", "revoked_at"),
}


class Meta(Repository):
    """Single values, by key."""

    def get(self, key: str) -> str | None:
        value: str | None = self._db.value("SELECT value FROM meta WHERE key = :key", key=key)
        return value

    def put(self, key: str, value: str) -> None:
        self._db.upsert(schema.meta, [(key, value)])
        self.__dict__.pop("_epoch", None)

    @cached_property
    def _epoch(self) -> int:
        return int(self.get(_EPOCH) or 0)

    def epoch(self) -> int:
        """0 before the first restore."""
        return self._epoch


class Reader:
    """One consistent view: all that it reads is of the same moment. For one thread, inside its `with` only."""

    def __init__(self, executor: Executor) -> None:
        self._db = executor
        self.worlds = Worlds(executor)
        self.hosts = Hosts(executor)
        self.scopes = Scopes(executor)
        self.vms = Vms(executor)
        self.edges = Edges(executor)
        self.drift = Drifts(executor)
        self.definitions = Definitions(executor)
        self.leases = Leases(executor)
        self.operations = Operations(executor)
        self.driver_results = DriverResults(executor)
        self.events = Events(executor)
        self.journal = Journal(executor)
        self.retention = Retention(executor)
        self.rollouts = Rollouts(executor)
        self.subscriptions = Subscriptions(executor)
        self.tokens = Tokens(executor)
        self.sessions = Sessions(executor)
        self.responses = StoredResponses(executor)
        self.meta = Meta(executor)


class Transaction(Reader):
    """A view that no other process changes, and what is written through it: all of it or, on an exception, nothing."""

    def __init__(self, executor: Executor, database_time: datetime | None) -> None:
        super().__init__(executor)
        self.database_time = database_time
        """The database server's time when this began; None: the database is a file on this machine."""

    def apply(self, changes: Changes) -> int:
        """Write all that changed and append the entries in order. Gives the newest position of the journal.

        Positions grow by one in the order of commits, so that a reader who has seen N has seen everything before N.
        """
        newest = self.journal.last()
        self.hosts.put(changes.hosts)
        self.scopes.put(changes.scopes, changes.entries[-1].at if changes.entries else None)
        self.vms.put(changes.vms)
        self.drift.put(changes.drift)
        self.operations.put(changes.operations.values())
        self.events.put(changes.events.values())
        self.events.put_names(changes, newest[1] if newest else None)
        self.rollouts.put(changes.rollouts.values())
        self.rollouts.put_hosts(changes.rollout_hosts.values())
        position = self.journal.append(changes.entries)
        if changes.entries:
            self._notify(position)
        return position

    def set_back(self, now: datetime, ahead: datetime) -> None:
        """The clock was ahead: move back when scopes were heard, when rollouts and deliveries are due, and the times
        that separate scopes with the same key.

        A rotated secret stays valid for as long as it had left. All operators have to sign in again.
        """
        run = self._db.run
        for table, moments in _MOMENTS.items():
            for moment in moments:
                run(_SET_BACK.format(table, moment), now=now, ahead=ahead)
        former = " AND scope IN (SELECT former_scopes.key FROM former_scopes)"
        run(_SET_BACK.format("journal", "at") + former, now=now, ahead=ahead)
        run(
            "UPDATE tokens SET previous_until = previous_until - :by WHERE previous_until > :now",
            by=ahead - now,
            now=now,
        )
        run("DELETE FROM sessions")
        self.scopes.shift_heard(now - ahead)
        self.rollouts.set_back(ahead - now)
        self.subscriptions.set_back(ahead - now)

    def raise_epoch(self, epoch: int) -> None:
        """Give every scope a tag of this epoch and an incarnation that goes on from there. Processes reload all."""
        self.meta.put(_EPOCH, str(epoch))
        self.scopes.raise_epoch(epoch)
        self._notify(-1)

    def _notify(self, position: int) -> None:
        if self._db.flavour is Flavour.POSTGRESQL:
            self._db.run(f"SELECT pg_notify('{CHANNEL}', :position)", position=str(position))
