"""Deletes old entries, operations and rollouts, some thousand rows at a time; never live ones, nor those with a
pending delivery."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

from forenotice.store.journal import Journal
from forenotice.store.queries import Repository

ENTRIES, OPERATIONS, ROLLOUTS = 5_000, 200, 1
"""Read in one transaction. An operation may name many VMs, and a rollout many hosts."""

Cursor: TypeAlias = tuple[Any, ...]
Step: TypeAlias = tuple[Counter[str], Cursor | None]
"""How much was deleted, and where to continue; None: that was all."""


def _stays(position: str) -> str:
    """Whether the entry at this position must be kept, whatever it is about."""
    return f"({position} >= :bound OR {position} IN (SELECT deliveries.position FROM deliveries))"


def _rollout_is_live(rollout: str) -> str:
    return f"EXISTS (SELECT 1 FROM rollouts AS live WHERE live.id = {rollout} AND live.ended_at IS NULL)"


def _has_ended(operations: str) -> str:
    """So long ago that no entry of it is left."""
    told = f"SELECT 1 FROM journal AS told WHERE told.operation = {operations}.id AND {_stays('told.position')}"
    return (
        f"{operations}.ended_at IS NOT NULL AND {operations}.ended_at < :before"
        f" AND NOT {_rollout_is_live(f'{operations}.rollout')} AND NOT EXISTS ({told})"
    )


_ENTRY_MAY_GO = f"""NOT {_stays("journal.position")} AND NOT {_rollout_is_live("journal.rollout")}
    AND NOT EXISTS (SELECT 1 FROM operations WHERE operations.id = journal.operation
        AND (operations.ended_at IS NULL OR {_rollout_is_live("operations.rollout")}))"""
_OPERATION_HAS_ENDED = _has_ended("operations")
_ROLLOUT_HAS_ENDED = f"""rollouts.ended_at < :before
    AND NOT EXISTS (SELECT 1 FROM operations AS part WHERE part.rollout = rollouts.id AND NOT ({_has_ended("part")}))
    AND NOT EXISTS (SELECT 1 FROM journal AS noted WHERE noted.rollout = rollouts.id AND {_stays("noted.position")})"""
_COUNTS = {
    "entries": f"journal WHERE {_ENTRY_MAY_GO}",
    "operations": f"operations WHERE {_OPERATION_HAS_ENDED}",
    "events": f"events WHERE events.operation IN (SELECT operations.id FROM operations WHERE {_OPERATION_HAS_ENDED})",
    "rollouts": f"rollouts WHERE {_ROLLOUT_HAS_ENDED}",
}


class Retention(Repository):
    """Deletes what is older than a moment, step by step: from a cursor (None: the beginning) to the next."""

    def count(self, before: datetime) -> Counter[str]:
        """What all steps together would delete now."""
        bound = self._bound(before)
        counted = {
            what: self._db.value(f"SELECT count(*) FROM {those}", before=before, bound=bound)
            for what, those in _COUNTS.items()
        }
        return Counter(counted)

    def older(self, before: datetime) -> int:
        """How many entries are older."""
        bound = Journal(self._db).first_since(before)
        return int(self._db.value("SELECT count(*) FROM journal WHERE position < :bound", bound=bound))

    def entries(self, before: datetime, cursor: Cursor | None) -> Step:
        [after], bound = cursor or (0,), self._bound(before)
        some = self._db.column(
            "SELECT position FROM journal WHERE position > :after AND position < :bound ORDER BY position LIMIT :limit",
            after=after,
            bound=bound,
            limit=ENTRIES,
        )
        if not some:
            return Counter(), None
        those = "journal.position > :after AND journal.position <= :last"
        query = f"DELETE FROM journal WHERE {those} AND {_ENTRY_MAY_GO}"
        removed = self._db.run(query, after=after, last=some[-1], bound=bound)
        return Counter(entries=removed), (some[-1],) if len(some) == ENTRIES else None

    def operations(self, before: datetime, cursor: Cursor | None) -> Step:
        some, gone = self._some("operations", _OPERATION_HAS_ENDED, before, cursor, OPERATIONS)
        removed = Counter(operations=len(gone))
        if gone:
            removed["events"] = self._db.run("DELETE FROM events WHERE operation IN :gone", gone=gone)
            self._db.run("DELETE FROM vm_operations WHERE operation IN :gone", gone=gone)
        return removed, some

    def rollouts(self, before: datetime, cursor: Cursor | None) -> Step:
        some, gone = self._some("rollouts", _ROLLOUT_HAS_ENDED, before, cursor, ROLLOUTS)
        if gone:
            self._db.run("DELETE FROM stops WHERE rollout IN :gone", gone=gone)
        return Counter(rollouts=len(gone)), some

    def _some(
        self, table: str, has_ended: str, before: datetime, cursor: Cursor | None, limit: int
    ) -> tuple[Cursor | None, list[str]]:
        since, after = cursor or (0, "")
        query = f"""SELECT created_at, id FROM {table} WHERE (created_at, id) > (:since, :after)
            AND created_at < :before ORDER BY created_at, id LIMIT :limit"""
        found = list(self._db.rows(query, since=since, after=after, before=before, limit=limit))
        names, bound = [row[1] for row in found], self._bound(before)
        remove = f"DELETE FROM {table} WHERE {table}.id IN :names AND {has_ended} RETURNING id"
        gone = self._db.column(remove, names=names, before=before, bound=bound) if names else []
        return tuple(found[-1]) if len(found) == limit else None, gone

    def _bound(self, before: datetime) -> int:
        """The first position whose entry is kept in any case. The newest is: the next position follows from it."""
        journal, told = Journal(self._db), self._db.value("SELECT min(position) FROM subscriptions")
        newest = journal.last()
        bounds = (journal.first_since(before), newest and newest[0], None if told is None else told + 1)
        return min(bound for bound in bounds if bound is not None)


Stage: TypeAlias = Callable[[Retention, datetime, Cursor | None], Step]
STAGES: tuple[Stage, ...] = (Retention.entries, Retention.operations, Retention.rollouts)
"""In this order: nothing is deleted before its entries."""
