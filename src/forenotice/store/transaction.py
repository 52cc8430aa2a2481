"""What is read in one transaction, and what is written: the same on SQLite and PostgreSQL.

Every method raises UnavailableError when the database cannot be reached, is full or stays locked (then nothing of the
transaction was written, unless the connection broke during the commit itself), and UnsoundError when the database is
corrupt. Both leave the store usable: it recovers by itself once the database does. Times are aware and come back in
UTC, to the microsecond.
"""

from datetime import datetime

from sqlalchemy import Column, ColumnElement, Table, bindparam, delete, select, true, update

from forenotice.core.draft import Changes
from forenotice.store import rows, schema
from forenotice.store.events import Events
from forenotice.store.fleet import Hosts, Scopes, Vms
from forenotice.store.journal import Journal
from forenotice.store.operations import DriverResults, Operations
from forenotice.store.queries import Executor, Flavour, Query, Repository, Upsert, given
from forenotice.store.retention import Retention
from forenotice.store.rollouts import Rollouts
from forenotice.store.subscriptions import Subscriptions
from forenotice.store.tokens import Sessions, StoredResponses, Tokens
from forenotice.store.worlds import Worlds

CHANNEL = "forenotice"
"""Where PostgreSQL tells other processes of new journal positions."""

_NOTIFY = "SELECT pg_notify(%s, %s)"

_EPOCH = "epoch"
_PUT_META = Upsert(schema.meta)
_GET_META = Query(select(schema.meta.c.value).where(schema.meta.c.key == given.wanted))

_NOW, _AHEAD = (bindparam(name, type_=schema.MOMENT()) for name in ("now", "ahead"))
_SECOND = 1_000_000


def _pressed(table: Table, column: Column[int], which: ColumnElement[bool] | None = None) -> Query:
    """A second becomes a microsecond, so the order stays: it decides what a successor of the same name is shown."""
    pressed = _NOW - (_AHEAD - column) // _SECOND
    return Query(update(table).where(column > _NOW, true() if which is None else which).values({column: pressed}))


_FORMER, _TOKENS = schema.former_scopes, schema.tokens
_IS_FORMER = schema.journal.c.scope.in_(select(_FORMER.c.key))
_SET_BACK = (
    _pressed(_FORMER, _FORMER.c.ended_at),
    _pressed(_FORMER, _FORMER.c.ended_before),
    _pressed(schema.events, schema.events.c.created_at),
    _pressed(schema.journal, schema.journal.c.at, _IS_FORMER),
    _pressed(_TOKENS, _TOKENS.c.created_at),
    _pressed(_TOKENS, _TOKENS.c.last_used_at),
    _pressed(_TOKENS, _TOKENS.c.revoked_at),
)
_UNTIL = _TOKENS.c.previous_until
_SHORTEN = Query(update(_TOKENS).where(_UNTIL > _NOW).values(previous_until=_UNTIL - (_AHEAD - _NOW)))
_SIGN_OUT = Query(delete(schema.sessions))


class Meta(Repository):
    """Single values, by key."""

    def get(self, key: str) -> str | None:
        value: str | None = self._executor.value(_GET_META, wanted=key)
        return value

    def put(self, key: str, value: str) -> None:
        self._executor.upsert(_PUT_META, [(key, value)])

    def epoch(self) -> int:
        """0 before the first restore."""
        return int(self.get(_EPOCH) or 0)


class Reader:
    """One consistent view: all that it reads is of the same moment. For one thread, inside its `with` only."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.worlds = Worlds(executor)
        self.hosts = Hosts(executor)
        self.scopes = Scopes(executor)
        self.vms = Vms(executor)
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
        for query in (*_SET_BACK, _SHORTEN):
            self._executor.run(query, now=rows.number(now), ahead=rows.number(ahead))
        self._executor.run(_SIGN_OUT)
        self.scopes.shift_heard(now - ahead)
        self.rollouts.set_back(ahead - now)
        self.subscriptions.set_back(ahead - now)

    def raise_epoch(self, epoch: int) -> None:
        """Give every scope a tag of this epoch and an incarnation that goes on from there. Processes reload all."""
        self.meta.put(_EPOCH, str(epoch))
        self.scopes.raise_epoch(epoch)
        self._notify(-1)

    def _notify(self, position: int) -> None:
        if self._executor.flavour is Flavour.POSTGRESQL:
            self._executor.run_text(_NOTIFY, CHANNEL, str(position))
