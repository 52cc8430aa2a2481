"""Deletes old entries, operations and rollouts, some thousand rows at a time; never live ones, nor those with a
pending delivery."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, FromClause, bindparam, delete, exists, func, select, tuple_

from forenotice.store import rows, schema
from forenotice.store.journal import Journal
from forenotice.store.queries import Among, Query, Repository, given

ENTRIES, OPERATIONS, ROLLOUTS = 5_000, 200, 1
"""Read in one transaction. An operation may name many VMs, and a rollout many hosts."""

Cursor: TypeAlias = tuple[Any, ...]
Step: TypeAlias = tuple[Counter[str], Cursor | None]
"""How much was deleted, and where to continue; None: that was all."""

_J, _O, _E = schema.journal.c, schema.operations.c, schema.events.c
_R, _S, _N = schema.rollouts.c, schema.stops.c, schema.vm_operations.c

_BEFORE = bindparam("before", type_=schema.MOMENT())
_BEYOND = tuple_(bindparam("since", type_=schema.MOMENT()), bindparam("after", type_=schema.NAME))
_UNTOLD = select(schema.deliveries.c.position)
# Positions are given after the newest: that one is never removed.
_TOLD = Query(select(func.min(schema.subscriptions.c.position)))


def _stays(position: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether the entry at this position must be kept, whatever it is about."""
    return (position >= given.bound) | position.in_(_UNTOLD)


def _rollout_is_live(rollout: ColumnElement[Any]) -> ColumnElement[bool]:
    return exists(select(_R.id).where(_R.id == rollout, _R.ended_at.is_(None)))


def _has_ended(operations: FromClause) -> ColumnElement[bool]:
    """So long ago that no entry of it is left."""
    of, told = operations.c, schema.journal.alias()
    return (
        of.ended_at.is_not(None)
        & (of.ended_at < _BEFORE)
        & ~_rollout_is_live(of.rollout)
        & ~exists(select(told.c.position).where(told.c.operation == of.id, _stays(told.c.position)))
    )


def _rollout_has_ended() -> ColumnElement[bool]:
    left, of = schema.operations.alias(), schema.journal.alias()
    return (
        (_R.ended_at < _BEFORE)
        & ~exists(select(left.c.id).where(left.c.rollout == _R.id, ~_has_ended(left)))
        & ~exists(select(of.c.position).where(of.c.rollout == _R.id, _stays(of.c.position)))
    )


_may_go = (
    ~_stays(_J.position)
    & ~exists(
        select(_O.id).where(_O.id == _J.operation, _O.ended_at.is_(None) | _rollout_is_live(_O.rollout)),
    )
    & ~_rollout_is_live(_J.rollout)
)
_OLDER = Query(select(func.count()).where(_J.position < given.bound))
_COUNT_ENTRIES = Query(select(func.count()).select_from(schema.journal).where(_may_go))
_COUNT_OPERATIONS = Query(select(func.count()).select_from(schema.operations).where(_has_ended(schema.operations)))
_COUNT_EVENTS = Query(select(func.count()).where(_E.operation.in_(select(_O.id).where(_has_ended(schema.operations)))))
_COUNT_ROLLOUTS = Query(select(func.count()).select_from(schema.rollouts).where(_rollout_has_ended()))

_SOME_ENTRIES = Query(
    select(_J.position)
    .where(_J.position > given.after, _J.position < given.bound)
    .order_by(_J.position)
    .limit(given.limit)
)
_REMOVE_ENTRIES = Query(delete(schema.journal).where(_J.position > given.after, _J.position <= given.upto, _may_go))
_SOME_OPERATIONS = Query(
    select(_O.created_at, _O.id)
    .where(tuple_(_O.created_at, _O.id) > _BEYOND, _O.created_at < _BEFORE)
    .order_by(_O.created_at, _O.id)
    .limit(given.limit)
)
_REMOVE_OPERATIONS = Query(
    delete(schema.operations).where(Among(_O.id, "names"), _has_ended(schema.operations)).returning(_O.id)
)
_REMOVE_EVENTS = Query(delete(schema.events).where(Among(_E.operation, "names")))
_REMOVE_NAMES = Query(delete(schema.vm_operations).where(Among(_N.operation, "names")))
_SOME_ROLLOUTS = Query(
    select(_R.created_at, _R.id)
    .where(tuple_(_R.created_at, _R.id) > _BEYOND, _R.created_at < _BEFORE)
    .order_by(_R.created_at, _R.id)
    .limit(given.limit)
)
_REMOVE_ROLLOUTS = Query(delete(schema.rollouts).where(Among(_R.id, "names"), _rollout_has_ended()).returning(_R.id))
_REMOVE_STOPS = Query(delete(schema.stops).where(Among(_S.rollout, "names")))


class Retention(Repository):
    """Deletes what is older than a moment, step by step: from a cursor (None: the beginning) to the next."""

    def count(self, before: datetime) -> Counter[str]:
        """What all steps together would delete now."""
        parameters = {"before": rows.number(before), "bound": self._bound(before)}
        queries = {
            "entries": _COUNT_ENTRIES,
            "operations": _COUNT_OPERATIONS,
            "events": _COUNT_EVENTS,
            "rollouts": _COUNT_ROLLOUTS,
        }
        return Counter({what: int(self._executor.value(query, **parameters)) for what, query in queries.items()})

    def older(self, before: datetime) -> int:
        """How many entries are older."""
        return int(self._executor.value(_OLDER, bound=Journal(self._executor).first_since(before)))

    def entries(self, before: datetime, cursor: Cursor | None) -> Step:
        [after], bound = cursor or (0,), self._bound(before)
        some = self._executor.column(_SOME_ENTRIES, after=after, bound=bound, limit=ENTRIES)
        if not some:
            return Counter(), None
        removed = self._executor.run(_REMOVE_ENTRIES, after=after, upto=some[-1], bound=bound)
        return Counter(entries=removed), (some[-1],) if len(some) == ENTRIES else None

    def operations(self, before: datetime, cursor: Cursor | None) -> Step:
        some, gone = self._some(_SOME_OPERATIONS, _REMOVE_OPERATIONS, before, cursor, OPERATIONS)
        removed = Counter(operations=len(gone))
        if gone:
            removed["events"] = self._executor.run(_REMOVE_EVENTS, names=gone)
            self._executor.run(_REMOVE_NAMES, names=gone)
        return removed, some

    def rollouts(self, before: datetime, cursor: Cursor | None) -> Step:
        some, gone = self._some(_SOME_ROLLOUTS, _REMOVE_ROLLOUTS, before, cursor, ROLLOUTS)
        if gone:
            self._executor.run(_REMOVE_STOPS, names=gone)
        return Counter(rollouts=len(gone)), some

    def _some(
        self, some: Query, remove: Query, before: datetime, cursor: Cursor | None, limit: int
    ) -> tuple[Cursor | None, list[str]]:
        since, after = cursor or (0, "")
        number = rows.number(before)
        found = list(self._executor.rows(some, since=since, after=after, before=number, limit=limit))
        names = [row[1] for row in found]
        bound = self._bound(before)
        gone = self._executor.column(remove, names=names, before=number, bound=bound) if names else []
        return tuple(found[-1]) if len(found) == limit else None, gone

    def _bound(self, before: datetime) -> int:
        """The first position whose entry is kept in any case."""
        journal, told = Journal(self._executor), self._executor.value(_TOLD)
        newest = journal.last()
        bounds = (journal.first_since(before), newest and newest[0], None if told is None else told + 1)
        return min(bound for bound in bounds if bound is not None)


Stage: TypeAlias = Callable[[Retention, datetime, Cursor | None], Step]
STAGES: tuple[Stage, ...] = (Retention.entries, Retention.operations, Retention.rollouts)
"""In this order: nothing is deleted before its entries."""
